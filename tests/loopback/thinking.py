"""Claude's reasoning: how it is signed, and what is refused of it on its way back.

Anthropic and Bedrock write the same blocks in two ways; each tells in a `Way` how it does, and
everything here works on `Piece` values.  A piece of another model is dropped, as the API does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.loopback.issued import Issued, Place
from tests.loopback.model import Atom, Context, Object, Refused, Request
from tests.loopback.seals import NONCE, opens, seal, take_apart
from tests.loopback.strictness import Strictness

THINKING = ("thinking", "redacted_thinking")
MODIFIED = (
    "{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be"
    " modified. These blocks must remain as they were in the original response."
)
INVALID = "{path}: Invalid `signature` in `thinking` block"
BOUND = (
    INVALID + ". The block is bound to a different conversation. Remove the block, or set"
    ' `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". Content before this block'
    " differs from when it was created, first at `{first}`."
)
EXPECTED = (
    "{path}.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. When `thinking`"
    " is enabled, a final `assistant` message must start with a thinking block (preceeding the"
    " lastmost set of `tool_use` and `tool_result` blocks)."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A content block, whatever the API calls it; `type` is Anthropic's name.

    `turn` numbers runs of messages of one role.  `token` is the signature or data of reasoning and
    the id of a call, `text` the text of reasoning.  `canonical` is the block as JSON text without
    what does not count for binding.
    """

    path: str
    turn: int
    role: str
    type: str
    token: str = ""
    text: str = ""
    canonical: str = ""

    @property
    def thinks(self) -> bool:
        """Whether this is reasoning."""
        return self.type in THINKING


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How one API writes what Claude says."""

    api: str
    head: Callable[[Object], list[tuple[str, str]]]
    """Path and canonical text of what stands in front of the messages of a body."""
    pieces: Callable[[Sequence[Object]], list[Piece]]
    """The blocks of messages."""
    settings: Callable[[Object], Object | None]
    """The `thinking` member of a body."""
    model: Callable[[Request], str]


class Sealer:
    """Seals the reasoning of one answer while it is written block by block."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context = context
        self._what = (way.api, way.model(context.request))
        self._bound = context.strictness.thinking == "bound"
        self._prefix = hashlib.sha256()
        self._before = ""
        self._count = 0
        for _, canonical in way.head(context.request.json):
            self.pass_by(canonical)
        for piece in find_own(context.request, context.issued, way):
            if piece.thinks:
                self._before = take_apart(piece.token)[0]
            else:
                self.pass_by(piece.canonical)

    def pass_by(self, canonical: str) -> None:
        """Take in a block of ordinary content."""
        feed(self._prefix, canonical)

    def seal(self, kind: str, text: str) -> str:
        """A token for reasoning of KIND with TEXT that stands here."""
        nonce = self._context.id("", NONCE, self._count)
        self._count += 1
        prefix = self._prefix.hexdigest() if self._bound else ""
        token = seal(nonce, *self._what, kind, text, prefix, before=self._before)
        self._before = nonce
        return token


def feed(prefix: hashlib._Hash, canonical: str) -> None:
    data = canonical.encode(errors="surrogatepass")
    prefix.update(len(data).to_bytes(8) + data)


def find_own(request: Request, issued: Issued, way: Way) -> list[Piece]:
    """The pieces of REQUEST without reasoning of other models."""
    model = way.model(request)
    return [
        piece
        for piece in way.pieces(request.json["messages"])
        if not issued.is_foreign(way.api, piece.token, model)
    ]


def find(issued: Issued, way: Way, piece: Piece) -> Sequence[Place]:
    """Where the reasoning PIECE was issued."""
    return issued.find(way.api, Atom("seal", piece.token))


def check_thinking(request: Request, strictness: Strictness, issued: Issued, way: Way) -> None:
    """Refuse reasoning that is not as it was, and in the stricter modes where it is."""
    pieces = find_own(request, issued, way)
    check_seals(pieces, request, issued, way, bound=strictness.thinking == "bound")
    check_places(pieces, issued, way)
    if strictness.thinking == "required":
        check_start(pieces, request, issued, way)


def check_seals(
    pieces: Sequence[Piece], request: Request, issued: Issued, way: Way, *, bound: bool
) -> None:
    """Each token vouches for its text, and if BOUND for what stands in front of it."""
    model = way.model(request)
    entries = way.head(request.json)
    prefix = hashlib.sha256()
    for _, canonical in entries:
        feed(prefix, canonical)
    latest = ""
    for piece in pieces:
        if not piece.thinks:
            feed(prefix, piece.canonical)
            entries.append((piece.path, piece.canonical))
            continue
        digest = prefix.hexdigest() if bound else ""
        nonce, _, before = take_apart(piece.token)
        if not opens(piece.token, way.api, model, piece.type, piece.text, digest):
            raise Refused(word_mismatch(piece, entries, issued, way))
        if bound and latest and before != latest:
            raise Refused(BOUND.format(path=piece.path, first=piece.path))
        latest = nonce


def word_mismatch(
    piece: Piece, entries: Sequence[tuple[str, str]], issued: Issued, way: Way
) -> str:
    """Why PIECE, with ENTRIES in front of it, is not valid."""
    for place in find(issued, way, piece):
        before = list(iter_prefix(place, piece.token, way))
        if before[-1] != (piece.type, piece.text):
            continue
        changed = (
            path
            for (path, now), (_, then) in zip(entries, before[:-1], strict=False)
            if now != then
        )
        return BOUND.format(path=piece.path, first=next(changed, piece.path))
    return INVALID.format(path=piece.path)


def iter_prefix(place: Place, token: str, way: Way) -> Iterator[tuple[str, str]]:
    """What stood in front of TOKEN when it was issued, and at last its type and text."""
    body = place.response.body
    yield from way.head(body)
    for piece in way.pieces([*body["messages"], *place.response.elements]):
        if piece.token == token:
            yield piece.type, piece.text
            return
        if not piece.thinks:
            yield piece.path, piece.canonical


def check_places(pieces: Sequence[Piece], issued: Issued, way: Way) -> None:
    """Reasoning stands once, in its own message, among the blocks that it was issued with."""
    seen: set[str] = set()
    for piece in pieces:
        if not piece.thinks:
            continue
        if piece.token in seen:
            raise Refused(MODIFIED.format(path=piece.path))
        seen.add(piece.token)
        turn = [each for each in pieces if each.turn == piece.turn]
        present = {each.token for each in turn}
        for place in find(issued, way, piece):
            own = [
                (each.type, each.token)
                for each in way.pieces([place.element])
                if not each.thinks or each.token in present
            ]
            start = turn.index(piece) - own.index((piece.type, piece.token))
            there = turn[max(start, 0) : max(start + len(own), 0)]
            if own != [(each.type, each.token) for each in there]:
                raise Refused(MODIFIED.format(path=piece.path))


def check_start(pieces: Sequence[Piece], request: Request, issued: Issued, way: Way) -> None:
    """Inside a tool loop the latest message of the assistant begins with its reasoning."""
    spoken = [piece for piece in pieces if piece.role != "system"]
    turns = [list(group) for _, group in groupby(spoken, key=lambda piece: piece.turn)]
    if len(turns) < 2 or turns[-1][0].type != "tool_result":
        return
    first, calls = turns[-2][0], [piece for piece in turns[-2] if piece.type == "tool_use"]
    kind = str((way.settings(request.json) or {}).get("type", ""))
    if first.thinks or kind == "disabled":
        return
    places = issued.find(way.api, Atom("id", calls[0].token))
    thought = [way.pieces([place.element])[0].thinks for place in places]
    if any(thought) or (kind and not thought):
        raise Refused(EXPECTED.format(path=first.path, found=first.type))
