"""The file `index.sqlite` of a directory of its own: opened, judged, made anew.

All that it holds follows from the store.  So a file that is torn, foreign, or of another version is
removed and an empty one takes its place, at opening or whenever damage shows later; `needs_rebuild`
then says that everything has to be added again.

One connection reads and one writes, each behind a lock of its own: with SQLite's log in front of
the file a search does not wait for a writer.  Several processes may use one directory.  Whoever
opens or replaces the file holds `index.lock`; the others find a new file in its place at their next
call and go over to it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from retention.errors import StoreError, StoreFull

NAME: Final = "index.sqlite"
LOCK: Final = "index.lock"
BESIDE: Final = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a file
DIRECTORY_MODE: Final = 0o700  # rule Z2
FILE_MODE: Final = 0o600  # rule Z2
PAGE: Final = 4_096  # bytes; SQLite takes what a last page lacks for zeros
PATIENCE: Final = 5.0  # seconds to wait for another process
APPLICATION: Final = 0x67707472  # "gptr"
VERSION: Final = 2  # of the tables, and of what is done to a text before it is indexed

T = TypeVar("T")

# A chunk's `id` is the row of its words.  No id comes twice, so that what a process remembers of a
# chunk never goes over to another.  `digest` is that of the indexed text, `model` and `view` what
# its vectors were made by: NULL where there are none yet.
_SCHEMA: Final = """
BEGIN;
CREATE TABLE state (needs_rebuild INTEGER NOT NULL);
INSERT INTO state VALUES (1);
CREATE TABLE sources (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, stamp BLOB NOT NULL,
    kind TEXT NOT NULL, time REAL NOT NULL, conversation TEXT NOT NULL, UNIQUE (owner, name));
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, source INTEGER NOT NULL, number INTEGER NOT NULL,
    name TEXT NOT NULL, kind TEXT NOT NULL, tool TEXT NOT NULL, start INTEGER NOT NULL,
    end INTEGER NOT NULL, whole INTEGER NOT NULL, marks TEXT NOT NULL, first REAL NOT NULL,
    last REAL NOT NULL, digest BLOB NOT NULL, model TEXT, view INTEGER,
    UNIQUE (source, number));
CREATE VIRTUAL TABLE words USING fts5(body, parts, content='', tokenize='unicode61');
CREATE TABLE vectors (
    id INTEGER PRIMARY KEY, model TEXT NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL,
    UNIQUE (digest, model));
CREATE TABLE embeddings (
    id INTEGER PRIMARY KEY AUTOINCREMENT, chunk INTEGER NOT NULL, vector INTEGER NOT NULL,
    start INTEGER, end INTEGER);
CREATE INDEX embeddings_of_chunk ON embeddings (chunk);
COMMIT;
"""

# What a damaged file leads to; everything else is about the disk or another process.
_DAMAGE: Final = frozenset((
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_FORMAT,
))  # fmt: skip


class Damaged(sqlite3.DatabaseError):
    """The file is torn, or another program or version wrote it."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class _Opened(NamedTuple):
    """The two connections to one file, and which file that is."""

    reader: sqlite3.Connection
    writer: sqlite3.Connection
    file: tuple[int, int] | None  # device and inode

    def close(self) -> None:
        for connection in (self.reader, self.writer):
            with suppress(sqlite3.Error):
                connection.close()


class Database:
    """The index's file in DIRECTORY, opened by this process.  Threads may share it."""

    def __init__(self, directory: Path) -> None:
        """Open the file, or make it.  Raise StoreError where the directory cannot be used."""
        self.path = directory / NAME
        self._reading = threading.Lock()
        self._writing = threading.Lock()  # where both are taken, this one first
        self._closed = False
        self._opened: _Opened | None = None
        self.opening = 0  # grows: what was read from a file says nothing about the next one
        try:
            directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            directory.chmod(DIRECTORY_MODE)
        except OSError as error:
            raise _translate(error) from error
        self._follow()

    def close(self) -> None:
        """Close the connections; a second time does nothing."""
        with self._writing, self._reading:
            self._closed = True
            self._close()

    def read(self, work: Callable[[sqlite3.Connection], T], lost: T) -> T:
        """Return what WORK returns on one snapshot of the file; LOST where the file is damaged."""
        opening = self._follow()
        try:
            with self._reading, _transaction(self._current().reader, "BEGIN") as connection:
                return work(connection)
        except sqlite3.Error as error:
            self._mend(error, opening)
            return lost

    def write(self, work: Callable[[sqlite3.Connection], T], lost: T) -> T:
        """Return what WORK returns, its writes committed as one; LOST where the file is damaged."""
        opening = self._follow()
        try:
            with (
                self._writing,
                _transaction(self._current().writer, "BEGIN IMMEDIATE") as connection,
            ):
                return work(connection)
        except sqlite3.Error as error:
            self._mend(error, opening)
            return lost

    def scrub(self) -> bool:
        """Leave nothing in the files of what was removed; False where another process reads on."""
        opening = self._follow()
        try:
            with self._writing:
                connection = self._current().writer
                connection.execute("INSERT INTO words (words) VALUES ('optimize')")
                connection.execute("VACUUM")
                busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                return not busy
        except sqlite3.Error as error:
            self._mend(error, opening)
            return True

    def check(self) -> bool:
        """Tell whether the whole file is sound; one that is not is made anew."""
        opening = self._follow()
        try:
            # A connection that has read nothing yet: the others remember pages.
            with closing(_connect(self.path)) as connection:
                _check_pages(connection)
                connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        except sqlite3.Error as error:
            self._mend(error, opening)
            return False
        return True

    def _current(self) -> _Opened:
        """Return what is open; to be called with a lock held, after `_follow`."""
        if self._opened is None:
            raise StoreError(f"search index: {self.path} is closed")
        return self._opened

    def _follow(self) -> int:
        """Open the file, where it is not open or another process put a new one in its place.

        Return which opening it is.
        """
        if self._opened is None or self._opened.file != _file(self.path):
            with self._writing, self._reading, self._claim():
                self._open()
        return self.opening

    def _mend(self, error: sqlite3.Error, opening: int) -> None:
        """Make the file anew where ERROR, of an OPENING, says that it is damaged, else raise it."""
        if not _is_damage(error):
            raise _translate(error) from error
        with self._writing, self._reading, self._claim():
            if self._opened is None or self.opening != opening:
                return  # another thread was first, or it was closed
            if self._opened.file == _file(self.path):  # else another process was first
                self._close()
                self._remove()
            self._open()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _remove(self) -> None:
        for end in (*BESIDE, ""):
            Path(f"{self.path}{end}").unlink(missing_ok=True)

    @contextmanager
    def _claim(self) -> Iterator[None]:
        """Hold the lock under which a file is opened or replaced, among processes."""
        try:
            handle = os.open(self.path.with_name(LOCK), os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise _translate(error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _open(self) -> None:
        """Open the file, or one made anew where it is not what we wrote; all locks are held."""
        self._close()
        if self._closed:
            return
        self.opening += 1
        try:
            try:
                self._opened = self._connect()
            except sqlite3.Error as error:
                if not _is_damage(error):
                    raise
                self._remove()
                self._opened = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise _translate(error) from error

    def _connect(self) -> _Opened:
        # With the right mode before there is anything in it; the files beside it get the same.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, FILE_MODE))
        self.path.chmod(FILE_MODE)
        opened = _Opened(_connect(self.path), _connect(self.path), _file(self.path))
        try:
            if not self.path.stat().st_size:
                _make_tables(opened.writer)
            if self.path.stat().st_size % PAGE:
                raise Damaged("cut in a page")  # noqa: TRY301 - closed below
            _check_pages(opened.writer)
            for connection in (opened.writer, opened.reader):
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA secure_delete = ON")
                _check_marks(connection)
        except BaseException:
            opened.close()
            raise
        return opened


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)


def _file(path: Path) -> tuple[int, int] | None:
    """Return which file is at PATH, None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


_MARKS: Final = {"application_id": APPLICATION, "user_version": VERSION}


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(_SCHEMA)
    for name, value in _MARKS.items():  # last: a file that has them is complete
        connection.execute(f"PRAGMA {name} = {value}")


def _check_marks(connection: sqlite3.Connection) -> None:
    """Raise Damaged for a file that this version did not write.

    It reads: what a connection has not opened by now it would look up by name later.
    """
    found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _MARKS}
    if found != _MARKS:
        raise Damaged(f"not an index of this version: {found}")


def _check_pages(connection: sqlite3.Connection) -> None:
    """Raise Damaged for a file of which a page is gone or has no form."""
    found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise Damaged(found)


def _is_damage(error: sqlite3.Error) -> bool:
    return _code(error) in _DAMAGE


def _code(error: Exception) -> int:
    """Return SQLite's code of ERROR without its details, 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
    connection.execute(begin)
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _translate(error: Exception) -> StoreError:
    kind = StoreFull if _code(error) == sqlite3.SQLITE_FULL else StoreError
    return kind(f"search index: {error}")
