mkdir -p out
javac -d out src/main/java/shop/Crash.java
java -cp out shop.Crash
