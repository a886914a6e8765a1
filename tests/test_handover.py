"""Hand-over files: what is read, what is refused, what is removed (adapter.md P2)."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from retention import handover
from retention.errors import HandOverError
from retention.protocol import MAX_FILE, File


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "handover"
    path.mkdir(mode=0o700)
    return path


def private(path: Path, data: bytes = b"text") -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def named(path: Path, data: bytes = b"text", **changes: object) -> File:
    fields = {"file": str(path), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return File(**fields | changes)


def test_read_gives_an_inline_text_as_utf_8():
    assert handover.read_text("é") == b"\xc3\xa9"


@pytest.mark.parametrize("data", [b"", b"text", b"\0\xff" * 300_000])
def test_read_gives_the_bytes_and_removes_the_file(directory: Path, data: bytes):
    path = private(directory / "a", data)

    assert handover.read_text(named(path, data)) == data
    assert not path.exists()


def test_read_takes_an_upper_case_digest_and_does_without_one(directory: Path):
    digest = hashlib.sha256(b"text").hexdigest().upper()
    assert handover.read_text(named(private(directory / "a"), sha256=digest)) == b"text"
    assert handover.read_text(named(private(directory / "b"), sha256="")) == b"text"


REFUSED_AND_REMOVED = {
    "shorter": {"bytes": 5},
    "longer": {"bytes": 3},
    "a negative size": {"bytes": -1},
    "another digest": {"sha256": "0" * 64},
    "a cut digest": {"sha256": hashlib.sha256(b"text").hexdigest()[:63]},
}


@pytest.mark.parametrize("changes", REFUSED_AND_REMOVED.values(), ids=REFUSED_AND_REMOVED.keys())
def test_read_refuses_and_removes_a_file_that_is_not_what_was_announced(
    directory: Path, changes: dict[str, object]
):
    path = private(directory / "a")

    with pytest.raises(HandOverError) as raised:
        handover.read_text(named(path, **changes))
    assert raised.value.code == "hand_over"
    assert not path.exists()


def test_read_refuses_a_file_above_the_limit_without_reading_it(directory: Path):
    path = private(directory / "a", b"")
    os.truncate(path, MAX_FILE + 1)

    with pytest.raises(HandOverError, match="the most is"):
        handover.read_text(named(path, bytes=MAX_FILE + 1))
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o601])
def test_read_refuses_and_keeps_a_file_that_is_open_to_others(directory: Path, mode: int):
    """A name that is wrong must not cost the user a file that was never handed over."""
    path = private(directory / "a")
    path.chmod(mode)

    with pytest.raises(HandOverError, match="open to others"):
        handover.read_text(named(path))
    assert path.read_bytes() == b"text"


def test_read_refuses_and_keeps_a_file_with_a_second_name(directory: Path):
    path = private(directory / "a")
    (directory / "b").hardlink_to(path)

    with pytest.raises(HandOverError, match="2 links"):
        handover.read_text(named(path))
    assert path.exists()


def test_read_refuses_and_keeps_a_link(directory: Path):
    target = private(directory / "a")
    link = directory / "b"
    link.symlink_to(target)

    with pytest.raises(HandOverError, match="ELOOP"):
        handover.read_text(named(link))
    assert target.exists()
    assert link.is_symlink()


def test_read_refuses_a_pipe_without_waiting_for_its_writer(directory: Path):
    path = directory / "a"
    os.mkfifo(path, 0o600)

    with pytest.raises(HandOverError, match="not a regular file"):
        handover.read_text(named(path))


@pytest.mark.parametrize("name", ["relative", "", "/no/such/file", "/nul\0", "/tmp", "/dev/null"])
def test_read_refuses_what_is_no_file_of_ours(name: str):
    with pytest.raises(HandOverError):
        handover.read_text(named(Path("x"), file=name))


def test_write_makes_a_private_file_that_read_takes(directory: Path):
    file = handover.write_file(str(directory), b"answer")

    path = Path(file.file)
    assert path.parent == directory
    assert path.name.startswith(handover.PREFIX)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.sha256 == hashlib.sha256(b"answer").hexdigest()
    assert handover.read_text(file) == b"answer"


def test_write_spells_the_directory_as_the_client_did(directory: Path):
    """The adapter takes only files whose directory is spelled as it gave it."""
    for spelt in (f"{directory}", f"{directory}/"):
        file = handover.write_file(spelt, b"answer").file
        assert file.startswith(f"{directory}/{handover.PREFIX}")


def test_write_gives_each_answer_a_file_of_its_own(directory: Path):
    first, second = (
        handover.write_file(str(directory), b"1"),
        handover.write_file(str(directory), b"2"),
    )
    assert (handover.read_text(first), handover.read_text(second)) == (b"1", b"2")


@pytest.mark.parametrize("path", ["", "relative", "/no/such/directory", "/dev/null", "/nul\0"])
def test_write_refuses_what_is_no_directory(path: str):
    with pytest.raises(HandOverError):
        handover.write_file(path, b"answer")


def test_write_refuses_a_directory_in_which_others_can_replace_files(directory: Path):
    directory.chmod(0o777)
    with pytest.raises(HandOverError, match="others can replace"):
        handover.write_file(str(directory), b"answer")

    directory.chmod(0o1777)
    assert handover.read_text(handover.write_file(str(directory), b"answer")) == b"answer"


def test_write_leaves_nothing_behind_when_the_disk_is_full(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(HandOverError, match="ENOSPC"):
        handover.write_file(str(directory), b"answer")
    assert list(directory.iterdir()) == []


def test_sweep_removes_old_hand_over_files_and_nothing_else(directory: Path):
    old = private(directory / f"{handover.PREFIX}old")
    new = private(directory / f"{handover.PREFIX}new")
    foreign = private(directory / "notes")
    shared = private(directory / f"{handover.PREFIX}shared")
    shared.chmod(0o644)
    for path in (old, foreign, shared):
        os.utime(path, (1000, 1000))
    os.utime(new, (1000 + handover.STALE, 1000 + handover.STALE))

    assert handover.sweep(str(directory), now=1001 + handover.STALE) == 1
    assert sorted(directory.iterdir()) == sorted([new, foreign, shared])


def test_sweep_says_when_a_directory_is_missing(directory: Path):
    with pytest.raises(HandOverError, match="ENOENT"):
        handover.sweep(f"{directory}/gone", now=0)
