python -m pytest --color=yes --tb=long --showlocals -p no:cacheprovider
