javac -Xlint:all -d out src/main/java/shop/Orders.java
