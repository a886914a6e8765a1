python -m pytest -v -p no:cacheprovider
