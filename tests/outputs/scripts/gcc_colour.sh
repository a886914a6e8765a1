for n in 1 2 3 4; do gcc -fdiagnostics-color=always -Wall -Wextra -c shop.c -o shop.o; done
