"""Hand-over files: texts too large for a frame travel in private files (adapter.md P2).

Owns how such a file is written, checked, read, removed and swept, in either direction.  The reader
removes it.  Files carry a sha256, which Emacs can compute, rather than a blake3, which it cannot.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from retention.errors import HandOverError
from retention.protocol import MAX_FILE, File, Text

PREFIX = "gptel-retention-"  # of the names of all hand-over files; only such files are swept
STALE = 3600.0  # seconds; a file is read within the client's time-out, seconds after it was made
_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_text(text: Text) -> bytes:
    """Return the bytes of TEXT, inline or handed over; a handed-over file is removed.

    The file has to be a regular one with an absolute name and a single link, owned by this user and
    closed to others, of `bytes` bytes (at most MAX_FILE) and, unless `sha256` is empty, of that
    digest (64 hex digits).  Otherwise raise HandOverError.  A file that only fails in size or
    digest is removed as well: it was made to be handed over and nobody else would remove it.  One
    that fails otherwise is not a hand-over file and stays.
    """
    if isinstance(text, str):
        return text.encode()
    if not text.file.startswith("/"):
        raise HandOverError(f"{text.file}: not an absolute file name")
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer.
        handle = os.open(text.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _failed(text.file, "cannot be opened", error) from error
    try:
        found = os.fstat(handle)
        _check_private(text.file, found)
        try:
            return _read_checked(handle, found.st_size, text)
        finally:
            _remove(text.file, found)
    finally:
        os.close(handle)


def write_file(directory: str, data: bytes, label: str = "answer") -> File:
    """Write DATA to a new file of mode 0600 in DIRECTORY and return what names it.

    LABEL becomes a part of the file's name, for somebody who looks into DIRECTORY.  Raise
    HandOverError if DIRECTORY is not one in which only this user can put or replace files, or if it
    is full; nothing is left behind then.
    """
    _check_directory(directory)
    # Random as well: another backend may use the same directory and the same label.
    name = f"{PREFIX}{label}-{os.urandom(8).hex()}.json"
    # Spelt as the client did, who compares the directory by name.
    path = f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:
        raise _failed(path, "cannot be made", error) from error
    try:
        _write_all(handle, data)
    except OSError as error:
        Path(path).unlink(missing_ok=True)
        raise _failed(path, "cannot be written", error) from error
    finally:
        os.close(handle)
    return File(file=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def sweep(directory: str, now: float, older: float = STALE) -> int:
    """Remove hand-over files in DIRECTORY that nobody came for, and return how many.

    Those are files whose name begins with PREFIX, that are private to this user and were last
    written more than OLDER seconds before NOW (seconds since the epoch).  Raise HandOverError if
    DIRECTORY cannot be listed or is not private.
    """
    _check_directory(directory)
    removed = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX):
                    removed += _sweep_one(entry.path, now - older)
    except OSError as error:
        raise _failed(directory, "cannot be swept", error) from error
    return removed


def _sweep_one(path: str, oldest: float) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:  # its reader was faster
        return False
    if _refusal(found) or found.st_mtime >= oldest:
        return False
    _remove(path, found)
    return True


def _check_private(path: str, found: os.stat_result) -> None:
    refusal = _refusal(found)
    if refusal:
        raise HandOverError(f"{path}: {refusal}")


def _refusal(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if found.st_uid != os.geteuid():
        return f"owned by user {found.st_uid}"
    if found.st_mode & _FOR_OTHERS:
        return f"open to others (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_nlink != 1:
        return f"{found.st_nlink} links"
    return ""


def _check_directory(directory: str) -> None:
    if not directory.startswith("/"):
        raise HandOverError(f"{directory!r}: not an absolute directory name")
    try:
        found = Path(directory).stat()
    except (OSError, ValueError) as error:
        raise _failed(directory, "cannot be used", error) from error
    if not stat.S_ISDIR(found.st_mode):
        raise HandOverError(f"{directory}: not a directory")
    # In a sticky directory (/tmp, /dev/shm) others cannot replace our files.
    shared = found.st_uid != os.geteuid() or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    if shared and not found.st_mode & stat.S_ISVTX:
        raise HandOverError(f"{directory}: others can replace files there")


def _read_checked(handle: int, size: int, text: File) -> bytes:
    if size != text.bytes:
        raise HandOverError(f"{text.file}: {size} bytes instead of {text.bytes}")
    if size > MAX_FILE:
        raise HandOverError(f"{text.file}: {size} bytes; the most is {MAX_FILE}")
    data = _read_all(handle, size, text.file)
    if len(data) != size:
        raise HandOverError(f"{text.file}: changed while it was read")
    if text.sha256 and hashlib.sha256(data).hexdigest() != text.sha256.lower():
        raise HandOverError(f"{text.file}: its sha256 is another one")
    return data


# One byte more than expected is asked for, so that a file that grew is noticed.
def _read_all(handle: int, size: int, path: str) -> bytes:
    data = bytearray()
    try:
        while len(data) <= size:
            chunk = os.read(handle, size + 1 - len(data))
            if not chunk:
                break
            data += chunk
    except OSError as error:
        raise _failed(path, "cannot be read", error) from error
    return bytes(data)


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


# Only the very file that was looked at: its name may stand for another one by now.
def _remove(path: str, seen: os.stat_result) -> None:
    try:
        now = os.lstat(path)
        if (now.st_dev, now.st_ino) == (seen.st_dev, seen.st_ino):
            Path(path).unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _failed(path, "cannot be removed", error) from error


def _failed(path: str, what: str, error: Exception) -> HandOverError:
    cause = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else str(error)
    return HandOverError(f"{path}: {what}: {cause or error}")
