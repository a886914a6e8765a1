"""The stdio loop: frames in, JSON-RPC 2.0 dispatch to a service, frames out.

`Endpoint` turns the body of a request into the body of an answer and knows no stream; `serve` moves
bytes between two file descriptors and an endpoint; `run` takes over the process's standard streams
and signals.  Whatever a client sends is answered with a result, with a typed error, or (as the
specification asks for notifications) not at all.  Bodies are never logged (rule Z5).
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from retention import framing, handover, protocol
from retention.errors import FramingError, HandOverError, InvalidPayload, RetentionError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
UNKNOWN_METHOD = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
FAILED = -32000  # every other error of the tree; `data.code` tells which

MAX_DEPTH = 64  # of arrays and objects in a body; ours nest 6 deep, payload parts cross as strings
MAX_MESSAGE = 500  # characters of an error's message
MAX_RESULT = protocol.MAX_FRAME - 1024  # bytes of a result in a frame; 1024 for what surrounds it

EXIT_DONE = 0
EXIT_BAD_INPUT = 2

_CHUNK = 64 * 1024  # bytes of one read: the capacity of a Linux pipe
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # also a cut one: linear for any bytes
_BRACKETS = re.compile(rb"[\[{\]}]")
_NUMBERS = {"invalid_params": INVALID_PARAMS, "internal": INTERNAL_ERROR}


class Service(Protocol):
    """What answers the methods of `protocol.METHODS`."""

    def call(self, method: str, params: bytes, /) -> object:
        """Return an encodable result for PARAMS, a JSON object, or raise RetentionError."""


class _Envelope(msgspec.Struct):
    """The members of a JSON-RPC message, unread: an absent one is empty."""

    jsonrpc: msgspec.Raw = msgspec.Raw(b"")
    id: msgspec.Raw = msgspec.Raw(b"")
    method: msgspec.Raw = msgspec.Raw(b"")
    params: msgspec.Raw = msgspec.Raw(b"")
    result: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _Malformed(Exception):
    """A message that reaches no method; `number` and `code` are what the answer says."""

    def __init__(self, number: int, code: str, message: str) -> None:
        super().__init__(message)
        self.number = number
        self.code = code


class Endpoint:
    """Answers bodies.  `ended` becomes true with `shutdown`, whatever the service says to it."""

    def __init__(
        self,
        service: Service,
        *,
        clock: Callable[[], float],
        debug: bool = False,
    ) -> None:
        self.ended = False
        self._service = service
        self._clock = clock
        self._debug = debug
        self._handover = ""  # the client's directory, known after `initialize`

    def answer(self, body: bytes) -> bytes | None:
        """Return the answer to the message BODY, or None where none is due. Never raises."""
        try:
            envelope = _parse_envelope(body)
        except _Malformed as error:
            return _error(b"null", error.number, str(error), error.code)
        if not envelope.method and (envelope.result or envelope.error):
            return None  # an answer, but nothing was asked
        request_id = _parse_id(bytes(envelope.id))
        answer = self._answer_request(envelope, request_id or b"null")
        return answer if request_id != b"" else None

    def _answer_request(self, envelope: _Envelope, request_id: bytes) -> bytes:
        try:
            method, params = _parse_request(envelope)
            return _result(request_id, self._call(method, params))
        except _Malformed as error:
            return _error(request_id, error.number, str(error), error.code)
        except RetentionError as error:
            number = _NUMBERS.get(error.code, FAILED)
            return _error(request_id, number, str(error), error.code)
        except Exception as error:  # noqa: BLE001 - the client needs an answer whatever happened
            log_failure(error, debug=self._debug)
            text = f"internal error: {type(error).__name__}"
            return _error(request_id, INTERNAL_ERROR, text, RetentionError.code)

    def _call(self, method: str, params: bytes) -> bytes:
        if method == "shutdown":
            self.ended = True
        try:
            result = msgspec.json.encode(self._service.call(method, params))
        except RecursionError as error:
            raise InvalidPayload("nested too deeply") from error
        if method == "initialize":
            self._use_handover(msgspec.json.decode(params, type=protocol.Initialize).handover)
        if len(result) <= MAX_RESULT:
            return result
        if not self._handover:
            raise HandOverError(
                f"the answer has {len(result)} bytes and `initialize` named no directory for it"
            )
        return msgspec.json.encode(handover.write_file(self._handover, result))

    def _use_handover(self, directory: str) -> None:
        self._handover = directory
        if not directory:
            return
        try:
            handover.sweep(directory, self._clock())
        except HandOverError as error:  # said now, and as a typed error once a file is needed
            log(str(error))


class _Stopped(Exception):
    """The wake descriptor became readable: end now."""


def serve(
    stdin: int,
    stdout: int,
    service: Service,
    *,
    wake: int | None = None,
    clock: Callable[[], float] = time.time,
    debug: bool = False,
) -> int:
    """Answer what arrives on the descriptor STDIN on STDOUT until there is a reason to end.

    That is `shutdown`, the end of STDIN (also within a frame), a broken STDOUT, or WAKE becoming
    readable; the status is then 0.  Bytes that are no frame are answered once with a parse error;
    the status is then 2.
    """
    endpoint = Endpoint(service, clock=clock, debug=debug)
    try:
        _loop(stdin, stdout, wake, endpoint)
    except (_Stopped, ConnectionError):
        return EXIT_DONE
    except FramingError as error:
        log(str(error))
        return EXIT_BAD_INPUT
    return EXIT_DONE


def run(open_service: Callable[[], Service], *, debug: bool = False) -> int:
    """Serve this process's standard streams until they end or a signal asks to; return the status.

    OPEN_SERVICE is called once the streams are safe, so that nothing it prints or opens can get
    into a frame.
    """
    stdin, stdout = take_streams()
    return serve(stdin, stdout, open_service(), wake=_wake_on_signals(), debug=debug)


def take_streams() -> tuple[int, int]:
    """Move standard input and output away and return their new descriptors.

    Afterwards descriptor 0 reads nothing and descriptor 1 is standard error, for this process and
    for those that it starts: a stray print, also one from C, cannot break a frame (adapter.md P4).
    """
    _fill_standard_descriptors()
    sys.stdout.flush()
    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return stdin, stdout


def log(text: str) -> None:
    """Write a line to standard error."""
    print(f"retention: {text}", file=sys.stderr, flush=True)  # noqa: T201 - stdout is the protocol


def log_failure(error: BaseException, *, debug: bool = False) -> None:
    """Write to standard error what ERROR is and where it was raised.

    Its message may quote a body, so that it is left out unless DEBUG (rule Z5).
    """
    import traceback  # noqa: PLC0415 - 8 ms that a healthy start does not spend

    if debug:
        log("".join(traceback.format_exception(error)).rstrip())
        return
    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    log(f"internal error: {type(error).__name__} (most recent call last)\n{frames}")


def _loop(stdin: int, stdout: int, wake: int | None, endpoint: Endpoint) -> None:
    decoder = framing.Decoder(protocol.MAX_FRAME)
    while not endpoint.ended:
        _wait(stdin, select.POLLIN, wake)
        chunk = os.read(stdin, _CHUNK)
        if not chunk:
            return _log_cut(decoder)
        decoder.feed(chunk)
        _answer_all(decoder, endpoint, stdout, wake)
    return None


def _answer_all(
    decoder: framing.Decoder, endpoint: Endpoint, stdout: int, wake: int | None
) -> None:
    while not endpoint.ended:
        try:
            body = decoder.next_body()
        except FramingError as error:
            _write(stdout, wake, _error(b"null", PARSE_ERROR, str(error), error.code))
            raise
        if body is None:
            return
        answer = endpoint.answer(body)
        if answer is not None:
            _write(stdout, wake, answer)


# A client that was killed while it wrote is no error of anybody who could still be told.
def _log_cut(decoder: framing.Decoder) -> None:
    try:
        decoder.end()
    except FramingError as error:
        log(str(error))


# Polling for room and then writing at most PIPE_BUF bytes never blocks, so that a signal ends the
# loop even while the client does not read.
def _write(stdout: int, wake: int | None, body: bytes) -> None:
    rest = memoryview(framing.encode(body))
    while rest:
        _wait(stdout, select.POLLOUT, wake)
        rest = rest[os.write(stdout, rest[: select.PIPE_BUF]) :]


def _wait(descriptor: int, event: int, wake: int | None) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if wake is not None:
        poll.register(wake, select.POLLIN)
    if any(ready == wake for ready, _ in poll.poll()):
        raise _Stopped


# The descriptor is readable after a signal: a signal between a check and a blocking call is not
# lost, and none interrupts a transaction.
def _wake_on_signals() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


# With one of them closed, the next file that is opened (the store's) would get its number, and a
# traceback would be written into it.
def _fill_standard_descriptors() -> None:
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115


def _parse_envelope(body: bytes) -> _Envelope:
    try:
        body.decode()  # msgspec does not look into strings that it passes over
        if _too_deep(body):
            raise _Malformed(PARSE_ERROR, "parse_error", f"nested more than {MAX_DEPTH} deep")
        return _ENVELOPES.decode(body)
    except UnicodeDecodeError as error:
        text = f"not UTF-8 (byte {error.start})"
        raise _Malformed(PARSE_ERROR, "parse_error", text) from error
    except msgspec.ValidationError as error:
        text = "not a request object; batches are not supported"
        raise _Malformed(INVALID_REQUEST, "invalid_request", text) from error
    except msgspec.DecodeError as error:
        raise _Malformed(PARSE_ERROR, "parse_error", str(error)) from error


_ENVELOPES = msgspec.json.Decoder(_Envelope)


def _too_deep(body: bytes) -> bool:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _BRACKETS.finditer(_STRINGS.sub(b"", body)):
        depth += 1 if match[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


# An empty id marks a notification; None stands for one that cannot be given back.
def _parse_id(raw: bytes) -> bytes | None:
    if raw in {b"", b"null"}:
        return raw
    short = len(raw) <= protocol.MAX_ID + 2  # the quotes
    return raw if short and raw[:1] in b'"-0123456789' else None


def _parse_request(envelope: _Envelope) -> tuple[str, bytes]:
    if _parse_id(bytes(envelope.id)) is None:
        text = f"an id is a string or a number of at most {protocol.MAX_ID} bytes"
        raise _Malformed(INVALID_REQUEST, "invalid_request", text)
    if _parse_string(envelope.jsonrpc) != "2.0":
        raise _Malformed(INVALID_REQUEST, "invalid_request", "`jsonrpc` is not 2.0")
    method = _parse_string(envelope.method)
    if method is None:
        raise _Malformed(INVALID_REQUEST, "invalid_request", "`method` is not a string")
    if method not in protocol.METHODS:
        raise _Malformed(UNKNOWN_METHOD, "unknown_method", f"no method {method[:64]!r}")
    params = bytes(envelope.params)
    if params in {b"", b"null"}:  # what jsonrpc.el makes of an empty plist
        return method, b"{}"
    if params[:1] != b"{":
        raise _Malformed(INVALID_PARAMS, "invalid_params", "`params` is not an object")
    return method, params


def _parse_string(raw: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:  # absent, or of another type
        return None


def _result(request_id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result)


def _error(request_id: bytes, number: int, message: str, code: str) -> bytes:
    # A file name may hold what is not UTF-8.
    text = message[:MAX_MESSAGE].encode(errors="replace").decode()
    error = {"code": number, "message": text, "data": {"code": code}}
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, msgspec.json.encode(error))
