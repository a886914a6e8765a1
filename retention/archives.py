"""One conversation as one file (rule L5): written, verified, read.

A ZIP archive of JSON lines, one record each, and of objects named by their digests; the format is
in docs/lifecycle.md.  It stands alone: rows that a fork shares with its base are in it.  Reading
verifies everything before anything is written, keeps to fixed bounds, and puts nothing on the disk.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TypeVar, get_args

import msgspec

from retention.digest import SIZE, Digest, Domain, digest, from_hex, to_hex
from retention.errors import (
    ConversationExists,
    DamagedObject,
    InvalidArchive,
    InvalidParams,
    UnknownConversation,
    UnknownObject,
)
from retention.model import (
    START,
    Conversation,
    Offer,
    Output,
    RequestRecord,
    Row,
    Source,
    Struct,
)
from retention.store import Reader, Store, Writer
from retention.store.records import Record, needed, references
from retention.store.tables import conversation_key

FORMAT = "gptel-retention conversation"
VERSION = 1
MAX_MEMBERS = 500_000
MAX_MEMBER = 256 * 1024 * 1024  # bytes of one member, unpacked
MAX_TOTAL = 2 * 1024 * 1024 * 1024  # bytes of all members, unpacked
MAX_NUMBER = 1 << 40  # of the next row, request or round
MAX_NAME = 64  # characters of the id of an output or a source
COMPRESSION = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # of others an archive sets the memory

_OBJECT = re.compile(r"objects/([a-z]+)/([0-9a-f]{64})")
_MOMENT = (1980, 1, 1, 0, 0, 0)  # equal conversations make equal files
# What `zipfile` and the decoders raise for what they cannot read: RuntimeError for an encrypted
# member, NotImplementedError for a compression of another version.
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    OverflowError, msgspec.MsgspecError,
)  # fmt: skip

T = TypeVar("T", bound=Struct)


class Manifest(Struct, frozen=True):
    """What the archive is, in its member `manifest.json`.

    `missing` are the digests, in hexadecimal, of objects that were damaged or gone when it was
    written.
    """

    format: str
    version: int
    id: str
    title: str = ""
    missing: tuple[str, ...] = ()


class Archive(Struct, frozen=True):
    """One conversation with its records; the objects stay in the file until they are stored."""

    record: Conversation
    rows: tuple[Row, ...]
    requests: tuple[RequestRecord, ...]
    outputs: tuple[Output, ...]
    offers: tuple[Offer, ...]
    sources: tuple[Source, ...]

    @property
    def records(self) -> Iterator[Record]:
        """All records, the head first."""
        yield self.record
        for each in (self.rows, self.requests, self.outputs, self.offers, self.sources):
            yield from each


class Exported(Struct, frozen=True):
    """How much was written: objects, bytes of the file, and objects that could not be read."""

    objects: int
    bytes: int
    missing: int


class Imported(Struct, frozen=True):
    """The conversation as it is now in the store; `created` is false if it was there already."""

    record: Conversation
    created: bool
    rows: int


# Members with one JSON record a line, and their type, in the order of `Archive`.
_LISTS: dict[str, type[Struct]] = {
    "rows": Row,
    "requests": RequestRecord,
    "outputs": Output,
    "offers": Offer,
    "sources": Source,
}


# Writing


def export_conversation(store: Store, id: str, file: Path) -> Exported:
    """Write conversation ID to FILE, which must not exist; it is private to this user.

    Raise UnknownConversation, and InvalidParams if FILE cannot be made.
    """
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:
        raise InvalidParams(f"{file}: {error}") from None
    try:
        with os.fdopen(handle, "wb") as stream, store.read() as reader:
            objects, missing = _write(reader, _gather(reader, id), stream)
        return Exported(objects=objects, bytes=file.stat().st_size, missing=missing)
    except BaseException as error:
        file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InvalidParams(f"{file}: {error}") from None
        raise


def _gather(reader: Reader, id: str) -> Archive:
    record = reader.conversation(id)
    if record is None or record.forgotten:
        raise UnknownConversation(f"no conversation {id!r}")
    # Where it lay, what it was split from and how often it was written mean nothing elsewhere.
    head = msgspec.structs.replace(record, base="", base_rows=START, files=(), version=0)
    return Archive(
        record=head,
        rows=tuple(reader.rows(id)),
        requests=tuple(reversed(reader.requests(id, record.next_seq))),
        outputs=tuple(reversed(reader.outputs(id, MAX_MEMBERS))),
        offers=tuple(reader.offers(id)),
        sources=tuple(_placeless(source, head.title) for source in reader.sources(id)),
    )


def _placeless(source: Source, title: str) -> Source:
    """Return SOURCE without the name of a file; without a title, a conversation's is one."""
    if source.kind == "conversation":
        source = msgspec.structs.replace(source, title=title)
    return msgspec.structs.replace(source, path="")


def _write(reader: Reader, archive: Archive, stream: IO[bytes]) -> tuple[int, int]:
    """Write ARCHIVE to STREAM; return how many objects it has, and how many it lacks."""
    missing: list[str] = []
    count = 0
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        must = {name for record in archive.records for name in needed(record)}
        for name in sorted({name for record in archive.records for name in references(record)}):
            try:
                data, domain = reader.object(name), reader.object_domain(name)
            except (UnknownObject, DamagedObject):
                if name in must:
                    missing.append(to_hex(name))
                continue
            _add(packed, f"objects/{domain}/{to_hex(name)}", data)
            count += 1
        for member in _LISTS:
            _add(packed, f"{member}.jsonl", _lines(getattr(archive, member)))
        _add(packed, "conversation.json", msgspec.json.encode(archive.record) + b"\n")
        manifest = Manifest(
            format=FORMAT, version=VERSION, id=archive.record.id, title=archive.record.title,
            missing=tuple(missing),
        )  # fmt: skip
        _add(packed, "manifest.json", msgspec.json.encode(manifest) + b"\n")
    return count, len(missing)


def _add(packed: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, _MOMENT)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = 0o600 << 16
    packed.writestr(member, data)


def _lines(records: Iterable[Struct]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


# Reading


def import_conversation(
    store: Store, file: Path, now: float, *, as_new: Callable[[], str] | None = None
) -> Imported:
    """Store the conversation in FILE, used NOW; change nothing if it is there already, and equal.

    With AS_NEW it gets another id, which AS_NEW makes.  Raise InvalidArchive, ConversationExists,
    and InvalidParams if FILE cannot be read; nothing is written then.
    """
    try:
        with file.open("rb") as stream, zipfile.ZipFile(stream) as packed:
            archive = _read(packed)
            if as_new is not None:
                archive = _renamed(archive, as_new())
            names = _objects_of(archive, packed)
            record = msgspec.structs.replace(archive.record, used=now)

            def apply(writer: Writer) -> Imported:
                found = writer.conversation(archive.record.id)
                if found is not None:
                    _compare(writer, found, archive)
                    return Imported(record=found, created=False, rows=len(archive.rows))
                _store(writer, record, archive, (_object(packed, name) for name in names))
                return Imported(record=record, created=True, rows=len(archive.rows))

            return store.write(apply)
    except OSError as error:
        raise InvalidParams(f"{file}: {error}") from None
    except _UNREADABLE as error:
        raise InvalidArchive(f"{file}: {error}") from None


def _read(packed: zipfile.ZipFile) -> Archive:
    """Return what PACKED holds once all of it is verified."""
    members = packed.infolist()
    names = [member.filename for member in members]
    plain = {"manifest.json", "conversation.json", *(f"{name}.jsonl" for name in _LISTS)}
    if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > MAX_TOTAL:
        raise InvalidArchive("it holds more than is read")
    if not COMPRESSION.issuperset(member.compress_type for member in members):
        raise InvalidArchive("a member is compressed in another way")
    if len(set(names)) < len(names) or not plain.issubset(names):
        raise InvalidArchive("a member is missing, or is there twice")
    strange = next((n for n in names if n not in plain and not _OBJECT.fullmatch(n)), None)
    if strange is not None:
        raise InvalidArchive(f"a member {strange[:80]!r} does not belong there")
    manifest = msgspec.json.decode(_member(packed, "manifest.json"), type=Manifest)
    if manifest.format != FORMAT or manifest.version != VERSION:
        raise InvalidArchive(f"version {manifest.version} of {manifest.format[:80]!r}")
    lists = {name: _records(packed, name, kind) for name, kind in _LISTS.items()}
    record = msgspec.json.decode(_member(packed, "conversation.json"), type=Conversation)
    archive = Archive(record=record, **lists)  # type: ignore[arg-type]
    objects = {_object(packed, name)[0] for name in names if _OBJECT.fullmatch(name)}
    _verify(archive, objects, set(map(from_hex, manifest.missing)))
    return archive


def _member(packed: zipfile.ZipFile, name: str) -> bytes:
    # The size that the archive states is a claim: no more is unpacked than is allowed.
    with packed.open(name) as stream:
        data = stream.read(MAX_MEMBER + 1)
    if len(data) > MAX_MEMBER:
        raise InvalidArchive(f"{name[:80]} is larger than is read")
    return data


def _records(packed: zipfile.ZipFile, name: str, kind: type[T]) -> tuple[T, ...]:
    decode = msgspec.json.Decoder(kind).decode
    lines = _member(packed, f"{name}.jsonl").split(b"\n")
    return tuple(decode(line) for line in lines if line)


def _object(packed: zipfile.ZipFile, name: str) -> tuple[Digest, Domain, bytes]:
    """Return the digest, kind and bytes of the object in member NAME, verified."""
    match = _OBJECT.fullmatch(name)
    domain = next((each for each in get_args(Domain) if match and each == match[1]), None)
    data = _member(packed, name)
    if match is None or domain is None or to_hex(digest(domain, data)) != match[2]:
        raise InvalidArchive(f"the bytes of {name[:120]} do not hash to it")
    return from_hex(match[2]), domain, data


def _verify(archive: Archive, objects: set[Digest], missing: set[Digest]) -> None:
    """Raise InvalidArchive unless the records of ARCHIVE fit together and to its OBJECTS."""
    record = archive.record
    conversation_key(record.id)
    rows = [row.id for row in archive.rows]
    known = {START, *rows}
    named = {
        id
        for row in archive.rows
        for id in (row.pred, *((row.delivery.after, row.delivery.before) if row.delivery else ()))
    } | {id for each in archive.requests for id in (*each.rows, *each.delivered, *each.changed)}
    numbers = (
        rows,
        [each.seq for each in archive.requests],
        [each.number for each in archive.outputs],
        [each.number for each in archive.offers],
    )
    names = [each.id for each in archive.outputs] + [each.id for each in archive.sources]
    problems = {
        "a record is out of order": any(
            numbered != sorted(set(numbered)) or min(numbered, default=1) < 1
            for numbered in numbers
        ),
        "a row stands after a later one": any(row.pred >= row.id for row in archive.rows),
        "a request follows from a later one": any(
            not 0 <= each.parent < each.seq or each.keep < 0 for each in archive.requests
        ),
        "a request puts a message into none": not _begins_well(archive.requests),
        "a number is too large": max(rows, default=0) >= record.next_row
        or max(numbers[1], default=0) >= record.next_seq
        or max(record.next_row, record.next_seq, record.next_round) > MAX_NUMBER,
        "a record names a row that is not there": not named <= known,
        "it retires rows that are not there": any(
            not {first, last, *each.end} <= known or last - first >= len(rows)
            for each in record.retired
            for first, last in each.rows
        ),
        "it is a fork, or was forgotten": bool(record.base) or record.forgotten,
        "it names files of another machine": bool(record.files)
        or any(source.path for source in archive.sources),
        "a source is of another conversation": any(s.owner != record.id for s in archive.sources),
        "a name is too long": any(len(name) > MAX_NAME for name in names),
        "a digest has another size": any(
            len(name) != SIZE for each in archive.records for name in references(each)
        ),
        "an object is missing": not {n for each in archive.records for n in needed(each)}
        <= objects | missing,
        "an object belongs to no record": not objects
        <= {n for each in archive.records for n in references(each)},
    }
    for problem, found in problems.items():
        if found:
            raise InvalidArchive(problem)


def _begins_well(requests: Iterable[RequestRecord]) -> bool:
    """Tell whether no array of REQUESTS, which follow one another, begins inside a message."""
    filled: set[int] = set()
    for each in requests:
        kept = each.keep > 0 and each.parent in filled
        if each.rows and each.rows[0] in each.inside and not kept:
            return False
        if each.rows or kept:
            filled.add(each.seq)
    return True


def _objects_of(archive: Archive, packed: zipfile.ZipFile) -> list[str]:
    """Return the members of PACKED with objects that the records of ARCHIVE name."""
    used = {to_hex(name) for record in archive.records for name in references(record)}
    return [name for name in packed.namelist() if name.rpartition("/")[2] in used]


def _renamed(archive: Archive, id: str) -> Archive:
    """Return ARCHIVE as the conversation ID.  What was learned of it is learned anew."""
    record = msgspec.structs.replace(archive.record, id=id)
    return msgspec.structs.replace(archive, record=record, sources=())


def _compare(reader: Reader, found: Conversation, archive: Archive) -> None:
    """Raise ConversationExists unless FOUND is what ARCHIVE holds."""
    if found.forgotten or _said(_gather(reader, found.id)) != _said(archive):
        raise ConversationExists(f"another conversation {found.id} is there already")


def _said(archive: Archive) -> Archive:
    """Return ARCHIVE without what changes although the conversation does not go on."""
    record = msgspec.structs.replace(archive.record, used=0.0)
    return msgspec.structs.replace(archive, record=record, sources=())


def _store(
    writer: Writer,
    record: Conversation,
    archive: Archive,
    objects: Iterable[tuple[Digest, Domain, bytes]],
) -> None:
    id = record.id
    for _, domain, data in objects:
        writer.put_object(domain, data)
    writer.put_conversation(record)
    for row in archive.rows:
        writer.put_row(id, row)
    for request in archive.requests:
        writer.put_request(id, request)
    for output in archive.outputs:
        writer.put_output(id, output)
    for offer in archive.offers:
        writer.put_offer(id, offer)
    for source in archive.sources:
        writer.put_source(source)
