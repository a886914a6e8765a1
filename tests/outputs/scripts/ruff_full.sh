ruff check --no-cache --isolated --select ALL --output-format full shop
