"""The LMDB environment behind a store: its files, generations, map growth and transactions.

Owns every file below the store's directory and knows nothing of what the records mean.

Files.  `CURRENT` names the generation in use; `gen-N/` holds one LMDB environment.  Compaction
writes the next generation and switches `CURRENT` by a rename (adapter.md Y1).  A transaction is
used only if, after it began, the environment holds no `retired` record and `CURRENT` is still the
file it was opened by; otherwise the environment of the new generation is opened and the
transaction begun again.  A writer makes that check while it holds LMDB's lock, and a compactor
switches while it holds that same lock, so no write can land in a generation that was left.  The
second half of the check is what holds when the compactor was killed between the two steps.

Never open `data.mdb` or `lock.mdb` by other means in a process that has the store open: closing
any descriptor of a file drops the process's POSIX locks on it.

Durability.  Commits flush data and leave the meta page to the next commit or to the system
(`metasync=False`).  A killed process loses nothing.  A power failure may lose the last commit as
a whole, never part of one.

Threads.  An `Environment` may be shared by threads.  Writers of one process queue on a lock of
ours before they queue on LMDB's.  Changing the size of the map and opening another generation
need a moment without transactions in this process, hence: a thread has at most one transaction at
a time, and must not wait for another thread while it has one.  Not usable after a fork.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import lmdb

from retention.errors import StoreError, StoreFull, StoreVersionError
from retention.store.tables import (
    FORMAT,
    FORMAT_KEY,
    META,
    RETIRED_KEY,
    Session,
    decode_format,
    encode_format,
    encode_retired,
)

MAP_SIZE = 64 * 1024 * 1024  # bytes; address space, not disk: the file grows as it is written
MAX_MAP_SIZE = 16 * 1024 * 1024 * 1024  # bytes; doubling ends here and the store counts as full
DIRECTORY_MODE = 0o700  # rule Z2
FILE_MODE = 0o600  # rule Z2
CURRENT = "CURRENT"
LOW_SPACE = 1024 * 1024  # bytes; LMDB reports a write cut short by a full disk as EIO only

_GENERATION = re.compile(r"gen-([1-9][0-9]{0,8})")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

T = TypeVar("T")
Stamp = tuple[int, int]  # inode and modification time of CURRENT; each switch makes a new file
Moment = tuple[str, int]  # a generation, and the number of the last commit in it

_open_roots: set[Path] = set()
_open_lock = threading.Lock()


def checkpoint(name: str) -> None:
    """Do nothing.  Crash tests replace this function to stop the process at a named point.

    The points are before-commit, after-commit, compact-begin, compact-copied, compact-switched,
    compact-retired and compact-done.
    """


class Environment:
    """One store's directory, opened by this process."""

    def __init__(self, root: Path, map_size: int, max_map_size: int) -> None:
        self.root = root
        self.map_size = map_size
        self.max_map_size = max_map_size
        self._gate = _Gate()
        self._writer = threading.RLock()  # so that a nested write fails the gate's assertion
        self._suspect = False
        self._closed = False
        try:
            _claim(root)
            try:
                _make(root, map_size)
                self._open_current()
            except BaseException:
                _release(root)
                raise
        except (lmdb.Error, OSError) as error:
            raise self.translate(error) from error

    def close(self) -> None:
        """Close the environment once no transaction is open; a second time does nothing."""
        with self._writer, self._gate.exclusive():
            if not self._closed:
                self._closed = True
                self._env.close()
                _release(self.root)

    # Transactions

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Yield a session on a snapshot that stays as it is until the block ends."""
        try:
            session = self._start(write=False)
            try:
                yield session
            finally:
                session.txn.abort()
                self._gate.leave()
        except lmdb.Error as error:
            raise self.translate(error) from error

    def write(self, apply: Callable[[Session], T]) -> T:
        """Return what APPLY returns, its writes committed; nothing is written if it raises.

        APPLY runs again from the start, in a new transaction, after the map was full.
        """
        with self._writer:
            while True:
                try:
                    return self._attempt(apply)
                except lmdb.MapFullError:
                    self._grow()
                except lmdb.Error as error:
                    self._suspect = True
                    raise self.translate(error) from error

    def moment(self, session: Session) -> Moment:
        """Return the moment that SESSION, a reading one, shows."""
        return self._generation, session.txn.id()

    def follows(self, session: Session, seen: Moment) -> bool:
        """Return whether nobody wrote between the moment SEEN and SESSION, a writing one.

        A compaction counts the commits of the next generation from the beginning.
        """
        generation, number = seen
        return (self._generation, session.txn.id()) == (generation, number + 1)

    def _attempt(self, apply: Callable[[Session], T]) -> T:
        session = self._start(write=True)
        try:
            try:
                result = apply(session)
                checkpoint("before-commit")
                session.txn.commit()
            except BaseException:
                session.txn.abort()
                raise
        finally:
            self._gate.leave()
        checkpoint("after-commit")
        return result

    def _start(self, *, write: bool) -> Session:
        # Begin a transaction and hold the gate; the caller leaves the gate.
        while True:
            self._gate.enter()
            try:
                if self._closed:
                    raise StoreError(f"the store {self.root} is closed")  # noqa: TRY301
                env = self._env
                remedy: Callable[[], None] = partial(self._reopen, env)
                if not self._suspect:
                    try:
                        txn = env.begin(write=write)
                    except lmdb.MapResizedError:
                        remedy = self._adopt_size
                    else:
                        if self._is_current(txn):
                            return Session(txn)
                        txn.abort()
            except BaseException:
                self._gate.leave()
                raise
            self._gate.leave()
            remedy()

    def _is_current(self, txn: lmdb.Transaction[bytes]) -> bool:
        try:
            retired = Session(txn).get(META, RETIRED_KEY) is not None
            return not retired and _stamp(self.root / CURRENT) == self._stamp
        except OSError as error:
            txn.abort()
            raise self.translate(error) from error
        except lmdb.Error:
            txn.abort()
            raise

    # The size of the map

    def _adopt_size(self) -> None:
        # Another process made the map larger and wrote beyond ours.
        with self._gate.exclusive():
            if not self._closed:
                self._env.set_mapsize(0)

    def _grow(self) -> None:
        with self._gate.exclusive():
            if self._env.reader_check():
                return  # a killed reader held pages that can be used again now
            size = self._env.info()["map_size"]
            if size >= self.max_map_size:
                raise StoreFull(f"the store {self.root} reached its {self.max_map_size} bytes")
            self.map_size = min(2 * size, self.max_map_size)
            self._env.set_mapsize(self.map_size)

    # Generations

    def _reopen(self, left: lmdb.Environment) -> None:
        with self._gate.exclusive():
            if self._closed or self._env is not left:
                return  # another thread came first
            self._suspect = True  # until it is open, so that the next transaction tries again
            left.close()
            try:
                self._open_current()
            except (lmdb.Error, OSError) as error:
                raise self.translate(error) from error
            self._suspect = False

    def _open_current(self) -> None:
        while True:
            name, stamp = _read_current(self.root)
            try:
                env, retired = _open_generation(self.root / name, self.map_size)
            except (lmdb.Error, FileNotFoundError):
                if _read_current(self.root)[1] != stamp:
                    continue  # a compactor removed this generation meanwhile
                raise
            if not retired:
                break
            env.close()
            if _read_current(self.root)[1] == stamp:
                raise StoreError(f"{self.root / CURRENT} names {name}, which was replaced")
        self._env, self._generation, self._stamp = env, name, stamp

    def compact(self) -> None:
        """Copy what is in use into a new generation and leave the old one (adapter.md Y1).

        Writers of every process wait; readers do not.
        """
        with self._writer:
            while True:
                try:
                    env, left = self._switch()
                    self._reopen(env)
                    _remove(left)
                    break
                except lmdb.MapFullError:
                    self._grow()
                except (lmdb.Error, OSError) as error:
                    self._suspect = True
                    raise self.translate(error) from error
        checkpoint("compact-done")

    def _switch(self) -> tuple[lmdb.Environment, Path]:
        session = self._start(write=True)
        try:
            try:
                checkpoint("compact-begin")
                env, left = self._env, self.root / self._generation
                _sweep(self.root, keep=self._generation)
                name = f"gen-{_number(self._generation) + 1}"
                session.put(META, RETIRED_KEY, encode_retired(name))  # the copy does not see it
                self._copy(self.root / name)
                checkpoint("compact-copied")
                _write_current(self.root, name)
                checkpoint("compact-switched")
                session.txn.commit()
            except BaseException:
                session.txn.abort()
                raise
        finally:
            self._gate.leave()
        checkpoint("compact-retired")
        return env, left

    def _copy(self, directory: Path) -> None:
        try:
            directory.mkdir(DIRECTORY_MODE)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            target = os.open(directory / "data.mdb", flags, FILE_MODE)
            try:
                self._env.copyfd(target, compact=True)
                os.fsync(target)
            finally:
                os.close(target)
            _sync_directory(directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)  # the next compaction would remove it too
            raise

    def translate(self, error: lmdb.Error | OSError) -> StoreError:
        """Return the error of ours that says what ERROR means."""
        code = error.errno if isinstance(error, OSError) else _find_errno(error)
        full = isinstance(error, lmdb.DiskError | lmdb.MapFullError) or code in _FULL
        if full or (code == errno.EIO and _free(self.root) < LOW_SPACE):
            return StoreFull(f"no space for the store {self.root}: {error}")
        return StoreError(f"the store {self.root}: {error}")


class _Gate:
    """Lets transactions in, or one change of the environment alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside: set[int] = set()
        self._alone = False

    def enter(self) -> None:
        me = threading.get_ident()
        with self._condition:
            assert me not in self._inside, "a thread has one transaction at a time"
            self._condition.wait_for(lambda: not self._alone)
            self._inside.add(me)

    def leave(self) -> None:
        with self._condition:
            self._inside.remove(threading.get_ident())
            self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            assert threading.get_ident() not in self._inside, "no transaction may be open here"
            self._condition.wait_for(lambda: not self._alone)
            self._alone = True
            self._condition.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._condition:
                self._alone = False
                self._condition.notify_all()


# LMDB


def _open(directory: Path, map_size: int) -> lmdb.Environment:
    return lmdb.open(
        str(directory),
        map_size=map_size,
        create=False,
        mode=FILE_MODE,
        metasync=False,
    )


def _open_generation(directory: Path, map_size: int) -> tuple[lmdb.Environment, bool]:
    """Return the environment, its format checked, and whether it is retired."""
    _protect(directory)
    env = _open(directory, map_size)
    try:
        env.reader_check()  # frees what killed readers held
        while True:
            try:
                with env.begin() as txn:
                    session = Session(txn)
                    _check_format(directory, session)
                    return env, session.get(META, RETIRED_KEY) is not None
            except lmdb.MapResizedError:
                env.set_mapsize(0)
    except BaseException:
        env.close()
        raise


def _check_format(directory: Path, session: Session) -> None:
    value = session.get(META, FORMAT_KEY)
    if value is None:
        raise StoreVersionError(f"{directory} has no version record")
    found = decode_format(value)
    if found != FORMAT:
        hint = "update gptel-retention" if found > FORMAT else "it was never released"
        raise StoreVersionError(
            f"{directory} has format {found}, this version reads format {FORMAT}: {hint}"
        )


# Files


def _claim(root: Path) -> None:
    with _open_lock:
        if root in _open_roots:
            raise StoreError(f"the store {root} is already open in this process")
        _open_roots.add(root)


def _release(root: Path) -> None:
    with _open_lock:
        _open_roots.discard(root)


def _make(root: Path, map_size: int) -> None:
    """Make the directory private and, if it has no store yet, make the first generation.

    Processes that do this at the same time share the first generation's lock, and the one that
    finds no `CURRENT` while it holds that lock writes it.
    """
    root.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    if not (root / CURRENT).exists():
        strange = [p.name for p in root.iterdir() if not p.name.startswith(("gen-", CURRENT))]
        if strange:
            raise StoreError(f"{root} holds other files than a store's: {min(strange)}")
    if root.stat().st_mode & 0o777 != DIRECTORY_MODE:
        root.chmod(DIRECTORY_MODE)
    if (root / CURRENT).exists():
        return
    first = root / "gen-1"
    first.mkdir(DIRECTORY_MODE, exist_ok=True)
    env = _open(first, map_size)
    try:
        with env.begin(write=True) as txn:
            txn.put(META + FORMAT_KEY, encode_format(), overwrite=False)
        env.sync(True)
        _sync_directory(first)
        with env.begin(write=True):
            if not (root / CURRENT).exists():
                _write_current(root, first.name)
    finally:
        env.close()


def _protect(directory: Path) -> None:
    """Take the rights of others away (rule Z2), as after a copy; raise if the files are missing."""
    for path, mode in (
        (directory, DIRECTORY_MODE),
        (directory / "data.mdb", FILE_MODE),
        (directory / "lock.mdb", FILE_MODE),
    ):
        if path.name == "lock.mdb" and not path.exists():
            continue  # LMDB makes it
        if path.stat().st_mode & 0o077:
            path.chmod(mode)


def _read_current(root: Path) -> tuple[str, Stamp]:
    with (root / CURRENT).open("rb") as file:
        status = os.fstat(file.fileno())
        text = file.read(64).decode("ascii", "replace").removesuffix("\n")
    if not _GENERATION.fullmatch(text):
        raise StoreError(f"{root / CURRENT} names no generation: {text!r}")
    return text, (status.st_ino, status.st_mtime_ns)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _write_current(root: Path, name: str) -> None:
    temporary = root / f"{CURRENT}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        os.write(descriptor, f"{name}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(root / CURRENT)
    _sync_directory(root)


def _sweep(root: Path, keep: str) -> None:
    """Remove what killed compactors left; the caller holds the lock of generation KEEP."""
    for path in root.iterdir():
        if path.name.startswith("gen-") and path.name != keep:
            _remove(path)
        elif path.name.startswith(f"{CURRENT}."):
            path.unlink(missing_ok=True)


def _remove(directory: Path) -> None:
    """Remove a generation.  It is renamed first: who still opens it finds all of it or nothing."""
    aside = directory.with_name(f"{directory.name.removesuffix('.left')}.left")
    try:
        if aside != directory:
            if aside.exists():
                shutil.rmtree(aside)
            directory.rename(aside)
        shutil.rmtree(aside)
    except FileNotFoundError:
        return  # another process removes it too


def _number(generation: str) -> int:
    return int(generation.removeprefix("gen-"))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _find_errno(error: lmdb.Error) -> int:
    # Older releases of lmdb give the system's error only by its text.
    text = str(error)
    return next((code for code in (*_FULL, errno.EIO) if os.strerror(code) in text), 0)


def _free(root: Path) -> int:
    status = os.statvfs(root)
    return status.f_bavail * status.f_frsize
