python -m pytest -v -p no:cacheprovider tests/test_orders.py -k one_line
