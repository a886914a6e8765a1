"""A strict provider on 127.0.0.1 that speaks the wire format of each API gptel can talk to.

It refuses what the real API refuses, with the real envelope and wording, answers from a script and
keeps every request body and what it answered.  It signs its reasoning, and knows on the way back
what it issued; how much of that it minds is told by `strictness.py`, how much of it came back by
`kept.py`.  It knows nothing of the package under test.

    with Loopback([{"match": "weather", "responses": [{"text": "Sunny."}]}]) as server:
        post(server.url + "/v1/messages", body)
        server.requests[0].json

`python -m tests.loopback --help` runs it as a process.  Start reading at `server.py`; the rules of
one API are in one file of `apis/`, and `apis/__init__.py` is the table of them.
"""

from tests.loopback.model import Answer, Call, Recorded, Text
from tests.loopback.script import Script, ScriptError
from tests.loopback.server import Loopback
from tests.loopback.strictness import Strictness

__all__ = ["Answer", "Call", "Loopback", "Recorded", "Script", "ScriptError", "Strictness", "Text"]
