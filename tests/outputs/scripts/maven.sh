mvn -o -B -Dmaven.repo.local=$MACHINE/.m2/repository -DskipTests compile
