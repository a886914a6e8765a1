python recursion.py; python -c 'import recursion'; python server.py | tail -n 3
