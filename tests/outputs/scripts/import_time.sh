python -X importtime -c 'import asyncio, http.server, email.mime.text, unittest, sqlite3'
