mkdir -p lib; cp -r $(python -c 'import json; print(json.__path__[0])')/../{json,http,email,asyncio} lib/; mypy --strict --cache-dir=/dev/null lib/http lib/json lib/email | head -c 50000
