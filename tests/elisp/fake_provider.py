# noqa: INP001 - a script, run by its file name
"""A provider of the OpenAI chat API on a free port of 127.0.0.1, for tests of the Emacs side.

usage: fake_provider.py SCRIPT LOG

SCRIPT is a JSON list of answers, taken in order: {"text": ..., "calls": [[NAME, ARGUMENTS], ...]},
or {"status": N} for an error, or {"wire": BASE64, "cut": N}, the bytes of a whole answer with its
headers, N bytes (or all) at a time; after the last one it says "More.".  `delay` waits that many
seconds first.  LOG gets the body of each request, one line each.  The port is printed when it
listens.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """Answers one request by the script."""

    script: list[dict]  # set by main, as is `log`
    lock = threading.Lock()
    count = 0

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with self.lock:
            Handler.log.write(body + "\n")
            answer = self.script.pop(0) if self.script else {"text": "More."}
            Handler.count += 1
            number = Handler.count
        time.sleep(answer.get("delay", 0))
        if wire := base64.b64decode(answer.get("wire", "")):
            self.reply_wire(wire, answer.get("cut") or len(wire))
            return
        calls = [
            {
                "index": n,
                "id": f"call_{number}_{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for n, (name, arguments) in enumerate(answer.get("calls", []))
        ]
        reason = "tool_calls" if calls else "stop"
        text = answer.get("text")
        if status := answer.get("status"):
            self.reply(status, "application/json", [{"error": {"message": "no", "type": "bad"}}])
        elif json.loads(body).get("stream") is True:
            events = [{"content": text[n : n + 5]} for n in range(0, len(text or ""), 5)]
            events += [{"tool_calls": [call]} for call in calls]
            chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in events]
            chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
            self.reply(200, "text/event-stream", chunks)
        else:
            message = {"role": "assistant", "content": text}
            if calls:
                message["tool_calls"] = calls
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self.reply(200, "application/json", [{"choices": [choice]}])

    def reply(self, status, kind, objects):
        """Send OBJECTS as events or, one alone, as the body."""
        lines = [json.dumps(each) for each in objects]
        if kind == "text/event-stream":
            data = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
        else:
            data = lines[0].encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def reply_wire(self, data, cut):
        """Send DATA as it is, CUT bytes at a time, and close the connection."""
        for start in range(0, len(data), cut):
            self.wfile.write(data[start : start + cut])
            self.wfile.flush()
            time.sleep(0.002)
        self.close_connection = True

    def log_message(self, *_):
        """Be quiet."""


def main(script, log):
    """Serve until killed."""
    Handler.script = json.loads(Path(script).read_text())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with Path(log).open("a", buffering=1) as Handler.log:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
