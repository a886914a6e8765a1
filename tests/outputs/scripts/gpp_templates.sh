g++ -std=c++17 -c shop.cpp -o shop.o
