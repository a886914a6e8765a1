mkdir -p lib; cp -r $(python -c 'import json; print(json.__path__[0])')/../{json,http,email,asyncio} lib/; ruff check --no-cache --isolated --select E,F --output-format json lib/http lib/json
