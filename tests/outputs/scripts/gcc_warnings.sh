gcc -Wall -Wextra -O2 -c shop.c -o shop.o
