"""Bytes <-> frames: ``Content-Length: N CR LF CR LF`` and then N bytes of body.

Owns the frame format and nothing else: no I/O, no JSON.  `Decoder.next_body` answers in one of
three ways, and for any bytes split anywhere: a body, None (more bytes are needed), or FramingError.
A stream that broke once stays broken, since nothing says where its next frame would begin.
"""

from __future__ import annotations

from retention.errors import FramingError

MAX_HEADER = 1024  # bytes with the blank line; our own takes under 30, language servers under 100
_END = b"\r\n\r\n"
_LENGTH = b"content-length"


def encode(body: bytes) -> bytes:
    """Return the frame of BODY.

    Content-Length stands alone: jsonrpc.el recognizes a header only within 100 bytes.
    """
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Decoder:
    """Takes chunks of a stream and gives back the bodies of its frames, in order."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._length: int | None = None  # of the body that is awaited; None: a header is
        self._broken: FramingError | None = None

    def feed(self, chunk: bytes) -> None:
        """Append CHUNK to what is to be decoded; take the bodies out before feeding more."""
        if self._broken is None:
            self._buffer += chunk

    def next_body(self) -> bytes | None:
        """Return the next complete body, or None if more bytes are needed.

        Raise FramingError if no frame can begin with the bytes so far; every later call raises it
        again.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._take()
        except FramingError as error:
            self._broken = error
            self._buffer.clear()
            raise

    def end(self) -> None:
        """Say that the stream ended; raise FramingError if it did so within a frame."""
        if self._broken is None and (self._buffer or self._length is not None):
            awaited = "a header" if self._length is None else f"a body of {self._length} bytes"
            self._broken = FramingError(
                f"the stream ended after {len(self._buffer)} bytes of {awaited}"
            )
        if self._broken is not None:
            raise self._broken

    def _take(self) -> bytes | None:
        if self._length is None:
            self._length = self._take_length()
        if self._length is None or len(self._buffer) < self._length:
            return None
        body = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        self._length = None
        return body

    def _take_length(self) -> int | None:
        end = self._buffer.find(_END, 0, MAX_HEADER)
        if end >= 0:
            length = parse_header(bytes(self._buffer[:end]), self._max_body)
            del self._buffer[: end + len(_END)]
            return length
        if len(self._buffer) >= MAX_HEADER:
            raise FramingError(f"no header ends within {MAX_HEADER} bytes")
        _check_line_ends(bytes(self._buffer))
        return None


def parse_header(block: bytes, max_body: int) -> int:
    """Return the length that a header BLOCK (without its blank line) gives.

    Names are compared without regard to case, as in HTTP; other headers are ignored.  Raise
    FramingError if the length is missing, given twice, not digits alone or above MAX_BODY bytes.
    """
    _check_line_ends(block)
    found: int | None = None
    for line in block.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon:
            raise FramingError(f"a header line without a colon: {_show(line)}")
        if name.lower() != _LENGTH:
            continue
        if found is not None:
            raise FramingError("Content-Length is given twice")
        found = _parse_length(value.strip(b" \t"), max_body)
    if found is None:
        raise FramingError("Content-Length is missing")
    return found


def _parse_length(digits: bytes, max_body: int) -> int:
    if not digits.isdigit():  # of bytes: ASCII digits alone, so no sign, space or underscore
        raise FramingError(f"Content-Length is not a number: {_show(digits)}")
    length = int(digits)  # at most MAX_HEADER digits
    if length > max_body:
        raise FramingError(f"a frame of {_show(digits)} bytes; the most is {max_body}")
    return length


# A line feed alone would leave a header that never ends, and the client waiting for its answer.
def _check_line_ends(block: bytes) -> None:
    if block.count(b"\n") != block.count(b"\r\n"):
        raise FramingError("a header line ends in a line feed alone")


def _show(data: bytes) -> str:
    return repr(data[:40])[1:]
