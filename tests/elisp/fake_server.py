# noqa: INP001 - a script, run by its file name
"""A backend that behaves as a script says, for the tests of the Emacs side.

usage: fake_server.py SCRIPT LOG

SCRIPT is a JSON object: a method name to a list of steps, one a request, the last one repeated.  A
step is an object; its keys are applied in this order:

    delay: SECONDS      wait first
    stop: true          stop reading and answering (SIGSTOP to itself)
    die: true           end at once
    hang: true          do not answer
    garbage: TEXT       write TEXT as it is, instead of an answer
    error: {...}        answer with this JSON-RPC error
    result: {...}       answer with this result, added to the ordinary one
    file: {KEY: TEXT}   hand TEXT over in a file as KEY of the result

LOG gets one JSON object a line for each request: method, params with handed-over texts read (and
their files removed), and for `request/prepare` the whole array that base and tail stand for.  The
body of a response and of an output is logged in hexadecimal, since it may be any bytes.

The ordinary answer to `request/prepare` names two new states and has no edits.  States are kept as
the real backend keeps them: an unknown base is a resync error; edits of the script are applied, so
that the state `sent` is what the client must hold after them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path


def read_frame(stream):
    """Return the next frame's object, or None at the end."""
    length = 0
    while line := stream.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if not length:
        return None
    return json.loads(stream.read(length))


def read_text(value):
    """Return what a text stands for, as bytes if it was handed over; remove its file."""
    if not (isinstance(value, dict) and "file" in value):
        return value
    path = Path(value["file"])
    assert path.stat().st_mode & 0o777 == 0o600, oct(path.stat().st_mode)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    data = path.read_bytes()
    path.unlink()
    assert len(data) == value["bytes"]
    assert hashlib.sha256(data).hexdigest() == value["sha256"]
    return data


def read_params(method, params):
    """Return PARAMS of a METHOD with handed-over texts read."""
    texts = {key: read_text(value) for key, value in params.items()}
    if method in ("response/record", "output/save"):
        body = texts["body"]
        texts["body"] = (body.encode() if isinstance(body, str) else body).hex()
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in texts.items()}


class Server:
    """Answers by the script, and remembers the states."""

    def __init__(self, script):
        self.script = script
        self.used = {}
        self.states = {}
        self.count = 0
        self.handover = ""

    def step(self, method):
        """Return the next step for METHOD."""
        steps = self.script.get(method) or [{}]
        used = self.used.get(method, 0)
        self.used[method] = used + 1
        return steps[min(used, len(steps) - 1)]

    def ordinary(self, method, params, step):
        """Return what an ordinary backend answers, and what is worth logging."""
        if method == "initialize":
            self.handover = params.get("handover", "")
            said = {"protocol": 1, "version": "fake", "store": "none"}
            return said | {"capabilities": ["response/record"]}, {}
        if method == "conversation/open":
            return {"id": params.get("id") or "0123456789abcdef0123456789abcdef"}, {}
        if method == "request/prepare":
            return self.prepare(params, step)
        return {"ok": True}, {}

    def prepare(self, params, step):
        """Keep the states of a prepare and name them."""
        tail = json.loads(params["tail"])
        base = params.get("base") or ""
        if base and base not in self.states:
            return None, {"unknown": base}
        array = self.states[base][: params.get("keep", 0)] + tail if base else tail
        self.count += 1
        names = {"plan": f"p{self.count}", "ordinary": f"o{self.count}", "sent": f"s{self.count}"}
        result = step.get("result", {})
        edits = result.get("edits") or json.loads(step.get("file", {}).get("edits_file", "[]"))
        self.states[names["ordinary"]] = array
        self.states[names["sent"]] = self.apply(array, edits, result.get("reuse", ""))
        return names, {"array": array, "sent": self.states[names["sent"]]}

    def apply(self, array, edits, reuse):
        """Return ARRAY after EDITS."""
        if not edits:
            return array
        at, sent = 0, []
        for edit in edits:
            if edit.get("keep"):
                sent += array[at : at + edit["keep"]]
                at += edit["keep"]
            elif edit.get("drop"):
                at += edit["drop"]
            elif edit.get("insert"):
                with contextlib.suppress(ValueError):  # broken on purpose
                    sent += json.loads(edit["insert"])
            elif edit.get("reuse"):
                sent += self.states.get(reuse, [])[: edit["reuse"]]
        return sent

    def hand_over(self, texts):
        """Write each of TEXTS to a file and return what names them."""
        result = {}
        for key, text in texts.items():
            data = text.encode()
            path = Path(self.handover, f"gptel-retention-{self.count}-{key}.json")
            path.touch(mode=0o600)
            path.write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            result[key] = {"file": str(path), "bytes": len(data), "sha256": digest}
        return result


def main(script_file, log_file):
    """Serve stdin until it ends."""
    script = json.loads(Path(script_file).read_text())
    server = Server(script)
    out = sys.stdout.buffer
    with Path(log_file).open("a", buffering=1) as log:
        while (message := read_frame(sys.stdin.buffer)) is not None:
            method = message["method"]
            params = read_params(method, message.get("params") or {})
            step = server.step(method)
            result, extra = server.ordinary(method, params, step)
            log.write(json.dumps({"method": method, "params": params, **extra}) + "\n")
            time.sleep(step.get("delay", 0))
            if step.get("stop"):
                os.kill(os.getpid(), signal.SIGSTOP)
            if step.get("die"):
                os._exit(3)
            if step.get("hang"):
                continue
            if "garbage" in step:
                out.write(step["garbage"].encode())
                out.flush()
                continue
            answer = {"jsonrpc": "2.0", "id": message.get("id")}
            if "error" in step:
                answer["error"] = step["error"]
            elif result is None:
                answer["error"] = {"code": -32000, "message": "?", "data": {"code": "resync"}}
            else:
                files = server.hand_over(step.get("file", {}))
                answer["result"] = result | step.get("result", {}) | files
            body = json.dumps(answer).encode()
            out.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            out.flush()
            if method == "shutdown":
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
