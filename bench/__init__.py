"""The figures that docs and release notes quote; `python -m bench` prints them."""
