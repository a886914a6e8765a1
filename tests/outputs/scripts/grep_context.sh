cd /usr/include && grep -n -C3 -E 'struct (timespec|itimerspec)' time.h linux/time.h linux/*.h | head -c 50000
