strace -f python -c 'import json; open("/etc/none.conf")' 2>&1 | grep -v -e "$MACHINE" | head -c 50000
