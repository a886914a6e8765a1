python server.py 2>/dev/null
