python -m unittest -v tests.test_totals
