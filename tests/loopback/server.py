"""The server: a request comes in, is judged, recorded and answered.

`Loopback.answer` is the whole of it without sockets.  One lock covers judging, recording and taking
the next response, so the order of the records is the order of the answers.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.loopback.apis import find_api
from tests.loopback.cache import Cache, Cached
from tests.loopback.exact import check_exact
from tests.loopback.issued import Issued, Response
from tests.loopback.model import Answer, Api, Context, Json, Object, Recorded, Refused, Request
from tests.loopback.quirks import check_quirks, disturb
from tests.loopback.recorder import Recorder
from tests.loopback.script import Script, ScriptError
from tests.loopback.shape import ShapeError
from tests.loopback.strictness import Strictness
from tests.loopback.wire import dumps, split

CREDENTIALS = {"key", "api_key", "access_token"}  # query parameters that are never kept
CHUNK = 120  # bytes
POLL = 0.005  # seconds between looks at the order to stop; each test waits for one


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What goes back to the client."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    streamed: bool = False
    delay: float = 0.0
    cut: int | None = None


Verdict = tuple[Reply, str | None, tuple[Object, ...]]


def json_reply(value: Json, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    """VALUE as a whole document."""
    return Reply(
        status=status,
        headers={"Content-Type": "application/json", **(headers or {})},
        body=dumps(value).encode(errors="backslashreplace"),  # half a surrogate is an escape again
    )


class Loopback:
    """The provider.  A context manager that serves on 127.0.0.1 in threads of its own."""

    def __init__(
        self,
        script: Iterable[Json] = (),
        *,
        strictness: Strictness | None = None,
        chunk: int | None = CHUNK,
        record: Path | None = None,
        port: int = 0,
    ) -> None:
        """SCRIPT is as in `script.py`; CHUNK is bytes a write of a stream, None for all at once."""
        self.strictness = strictness or Strictness()
        self.chunk = chunk
        self._lock = threading.Lock()
        self._script = Script(script)
        self._recorder = Recorder(record)
        self._issued = Issued()
        self._cache = Cache()
        self._stopping = threading.Event()
        self._http = HttpServer(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(POLL,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the socket and wake answers that are being delayed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """The address, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Recorded]:
        """Everything that came in so far."""
        with self._lock:
            return list(self._recorder.requests)

    @property
    def refusals(self) -> list[Recorded]:
        """The requests that were not answered with 200."""
        return [each for each in self.requests if each.status != 200]

    def load(self, script: Iterable[Json]) -> None:
        """Replace the script."""
        fresh = Script(script)
        with self._lock:
            self._script = fresh

    def reset(self, script: Iterable[Json] = ()) -> None:
        """Forget the requests and replace the script."""
        fresh = Script(script)
        with self._lock:
            self._script = fresh
            self._recorder.clear()
            self._issued = Issued()
            self._cache = Cache()

    def wait(self, seconds: float) -> None:
        """Wait, or less if the server stops."""
        self._stopping.wait(seconds)

    def answer(self, method: str, target: str, body: bytes) -> Reply:
        """The reply to one HTTP request; TARGET is its path and query."""
        url = urlsplit(target)
        if url.path.startswith("/__"):
            return self._control(method, url.path, body)
        query = {name: value for name, value in parse_qsl(url.query) if name not in CREDENTIALS}
        path = url.path + ("?" + urlencode(query) if query else "")
        api = find_api(url.path) if method == "POST" else None
        request = Request(path=url.path, query=query, body=body, json=parse_json(body))
        with self._lock:
            seq = len(self._recorder.requests) + 1
            reply, refusal, issued = self._judge(api, request, seq)
            self._recorder.add(
                Recorded(
                    seq=seq,
                    path=path,
                    api=api.name if api else None,
                    body=body,
                    json=request.json,
                    status=reply.status,
                    refusal=refusal,
                    issued=issued,
                )
            )
        return reply

    def _judge(self, api: Api | None, request: Request, seq: int) -> Verdict:
        """The reply, the message if it is a refusal, and what is issued with it."""
        if api is None:
            return refuse(None, Refused("not found", status=404), request)
        if not isinstance(request.json, dict):
            refused = Refused("The body of the request is not a JSON object in UTF-8.")
            return refuse(api, refused, request)
        context = Context(
            request=request,
            seq=seq,
            strictness=self.strictness,
            issued=self._issued,
            cached=Cached(),
        )
        try:
            return self._serve(api, context)
        except Refused as refused:
            return refuse(api, refused, request)
        except ShapeError as error:
            return refuse(api, api.misshapen(error.path, error.expected), request)
        except ScriptError as error:
            return refuse(api, api.fault(500, str(error)), request)

    def _serve(self, api: Api, context: Context) -> Verdict:
        """The answer to an acceptable request."""
        request = context.request
        api.check(request, context.strictness, self._issued)
        if context.strictness.exact:
            check_exact(api, request, self._issued)
        answer = self._script.next(api.steps(request.json))
        streamed = api.streams(request)
        status = answer.status or (500 if answer.error is not None and not streamed else 200)
        if status != 200:
            raise api.fault(status, answer.error or f"scripted status {status}")
        context = replace(context, cached=self._cache.use(api.entries(request.json)))
        reply = render(api, answer, context, streamed)
        if answer.is_fault:
            return reply, None, ()
        response = Response(
            seq=context.seq,
            api=api.name,
            model=api.model(request),
            body=request.json,
            elements=api.said(answer, context),
        )
        self._issued.add(api, response)
        return reply, None, tuple(filter(None, api.returnable(response)))

    def _control(self, method: str, path: str, body: bytes) -> Reply:
        """`GET /__requests[/SEQ]`, `POST /__script`, `POST /__reset`."""
        try:
            if method == "GET":
                return self._show(path)
            return self._change(path, parse_json(body) if body.strip() else None)
        except (LookupError, TypeError, ValueError) as error:
            return json_reply({"error": str(error)}, 400)

    def _show(self, path: str) -> Reply:
        requests = self.requests
        if path == "/__requests":
            return json_reply([each.meta for each in requests])
        name, _, number = path.rpartition("/")
        if name != "/__requests":
            raise LookupError(f"no such control: {path}")
        found = next((each for each in requests if str(each.seq) == number), None)
        if found is None:
            raise LookupError(f"no such request: {number}")
        return Reply(headers={"Content-Type": "application/json"}, body=found.body)

    def _change(self, path: str, value: Json) -> Reply:
        if path == "/__script":
            self.load(want_list(value))
        elif path == "/__reset":
            self._configure(value or {})
        else:
            raise LookupError(f"no such control: {path}")
        return json_reply({"ok": True})

    def _configure(self, options: Object) -> None:
        """Reset, with script, chunk (0: all at once) and strictness as far as OPTIONS has them."""
        unknown = set(options) - {"script", "chunk", "strictness"}
        if unknown:
            raise LookupError(f"no such option: {', '.join(sorted(unknown))}")
        strictness = (
            Strictness.from_json(options["strictness"])
            if "strictness" in options
            else self.strictness
        )
        chunk = int(options["chunk"]) or None if "chunk" in options else self.chunk
        self.reset(want_list(options.get("script", [])))
        self.strictness, self.chunk = strictness, chunk


def want_list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ScriptError("script: not a list")
    return value


def parse_json(body: bytes) -> Json:
    """BODY parsed, or None."""
    try:
        return json.loads(body.decode("utf-8"))
    except ValueError:
        return None


def refuse(api: Api | None, refused: Refused, request: Request) -> Verdict:
    """The refusal in the envelope of API."""
    if api is None:
        return json_reply({"error": refused.message}, refused.status), refused.message, ()
    headers = api.headers(refused)
    if refused.status == 429:
        headers = {**headers, "retry-after": "1"}
    envelope = api.envelope(refused, request)
    return json_reply(envelope, refused.status, headers), refused.message, ()


def render(api: Api, answer: Answer, context: Context, streamed: bool) -> Reply:
    """ANSWER in the format of API."""
    if not streamed:
        reply = json_reply(api.document(answer, context))
    else:
        check_quirks(answer, api.name)
        body = b"".join(disturb(api.events(answer, context), answer))
        reply = Reply(
            headers={"Content-Type": api.stream_type(context.request)}, body=body, streamed=True
        )
    return replace(reply, delay=answer.delay, cut=answer.cut)


class HttpServer(ThreadingHTTPServer):
    """Threads that die with the process, and a way back to the provider."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # connections that wait to be accepted; 5 makes a busy test lose some

    def __init__(self, address: tuple[str, int], provider: Loopback) -> None:
        self.provider = provider
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.1; nothing is logged, since headers carry credentials."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def handle(self) -> None:
        # The client may go away at any point, as one does on C-g.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reply = self.server.provider.answer(self.command, self.path, body)
        if reply.delay:
            self.server.provider.wait(reply.delay)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.streamed:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        for piece in split(
            reply.body[: reply.cut], self.server.provider.chunk if reply.streamed else None
        ):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.streamed else piece)
            self.wfile.flush()
        if reply.cut is not None:
            self.close_connection = True
        elif reply.streamed:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass
