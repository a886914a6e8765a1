cd /usr/include && grep -rn EINVAL . | sort | head -c 55000
