"""Tool outputs over the store: kept whole, shown in part, recalled (tool-output.md O1, O2, O7, O8).

What the model gets is decided by `saver`; here it is stored before it is handed on, and found
again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import msgspec

from retention.digest import Digest
from retention.errors import DamagedObject, InvalidParams, UnknownConversation, UnknownObject
from retention.estimating import estimate_size
from retention.model import Output, Struct
from retention.rendering import CAP_VARIABLE, result_cap
from retention.saver import asking, excerpting, recalling
from retention.saver.formats import parse
from retention.saver.lines import read_lines, read_pieces
from retention.saver.segments import Segment, split
from retention.store import Store, Writer

EARLIER = 1_000  # newest outputs of a conversation among which an equal one is looked for
JUDGED = ("format", "segments", "generic")  # strategies that a model's scores may replace
HIGH_RATE = 0.1  # a recall rate above it means that too little is shown (O8)


class Tool(Struct, frozen=True):
    """A call that returned: the tool, its arguments as JSON text, the latest user turn, and when,
    in seconds since the epoch.
    """

    name: str
    call: str = ""
    task: str = ""
    at: float = 0.0


class Part(Struct, frozen=True):
    """What of an output is recalled: one segment, lines, a pattern, or else all of it."""

    segment: str = ""
    first: int = 0
    last: int = 0
    pattern: str = ""
    context: int = recalling.CONTEXT
    offset: int = 0

    @property
    def whole(self) -> bool:
        """Whether it is not a part."""
        return not (self.segment or self.first or self.pattern)


class Stats(Struct, frozen=True):
    """The ledger of a conversation's outputs (O8), over those that were stored.

    `token_turns` are the tokens that were not sent, summed over the turns since.  The rate is that
    of outputs that the model recalled any part of.
    """

    large: int = 0
    excerpts: int = 0
    duplicates: int = 0
    chars: int = 0
    shown: int = 0
    token_turns: int = 0
    recalls: int = 0
    whole_recalls: int = 0
    rate: float = 0.0
    strategies: dict[str, int] = msgspec.field(default_factory=dict)


def save_output(
    store: Store, id: str, data: bytes, tool: Tool, options: excerpting.Options
) -> tuple[excerpting.Excerpt, bool]:
    """Decide what the model gets of DATA in conversation ID; store it first if it is not all.

    Return that and whether it was stored.  Raise UnknownConversation, and StoreError if it cannot
    be stored: the caller keeps the original.
    """
    with store.read() as reader:
        earlier = reader.outputs(id, EARLIER)
    known = excerpting.Known(
        earlier={
            output.same: excerpting.Earlier(id=output.id, tool=output.tool)
            for output in reversed(earlier)
            if output.same is not None
        },
        handles=[output.id for output in earlier],
    )
    output = excerpting.Output(data=data, task=tool.task, tool=tool.name, call=tool.call)
    made = excerpting.excerpt(output, options, known)
    stored = (
        made.chars > options.tail_min_chars
        or made.strategy is not excerpting.Strategy.WHOLE
        or made.undecoded > 0  # what the model gets has not these bytes
    )
    if stored:
        _keep(store, id, data, tool, made)
    return made, stored


def ask_about(store: Store, id: str, name: str) -> asking.Inquiry:
    """Return what to ask a model about output NAME of conversation ID (O5)."""
    kept = find_output(store, id, name)
    text = excerpting.decode(read_output(store, name))
    parsed = parse(read_lines(text))
    return asking.ask(
        text, segments_of(text), format=parsed[0] if parsed else "",
        task=kept.task, tool=kept.tool, call=kept.call,
    )  # fmt: skip


def score_output(
    store: Store, id: str, name: str, answer: str, options: excerpting.Options
) -> excerpting.Excerpt:
    """Decide again what the model gets of output NAME, by ANSWER, a model's JSON text.

    An answer of another form leaves what was decided without it.  Raise UnknownObject.
    """
    kept = find_output(store, id, name)
    data = read_output(store, name)
    judged = asking.judge(answer, segments_of(excerpting.decode(data)))
    made = excerpting.excerpt(
        excerpting.Output(data=data, task=kept.task, tool=kept.tool, call=kept.call),
        options,
        scores=judged.scores if judged else None,
        whole=judged is not None and judged.whole,
    )

    def apply(writer: Writer) -> None:
        excerpt = writer.put_object("blob", made.text.encode())
        writer.put_output(id, _shown(kept, made, excerpt))

    store.write(apply)
    return made


def _keep(store: Store, id: str, data: bytes, tool: Tool, made: excerpting.Excerpt) -> None:
    same = excerpting.sameness(excerpting.decode(data))

    def apply(writer: Writer) -> None:
        record = writer.conversation(id)
        if record is None or record.forgotten:
            raise UnknownConversation(f"no conversation {id!r}")
        newest = writer.outputs(id, 1)
        output = Output(
            number=newest[0].number + 1 if newest else 1,
            id=made.id, blob=writer.put_object("blob", data), tool=tool.name, call=tool.call,
            task=tool.task, bytes=made.size, chars=made.chars, lines=made.lines, same=same,
            turn=record.turns, at=tool.at,
        )  # fmt: skip
        excerpt = writer.put_object("blob", made.text.encode())
        writer.put_output(id, _shown(output, made, excerpt))

    store.write(apply)


def _shown(output: Output, made: excerpting.Excerpt, excerpt: Digest) -> Output:
    return msgspec.structs.replace(
        output, shown=len(made.text), excerpt=excerpt, strategy=made.strategy.value, why=made.why
    )


# Recall


def find_output(store: Store, id: str, name: str) -> Output:
    """Return the newest record of output NAME in conversation ID; raise UnknownObject."""
    with store.read() as reader:
        found = next((o for o in reader.outputs(id, EARLIER) if o.id == name), None)
    if found is None:
        raise UnknownObject(f"no output {name!r} in this conversation")
    return found


def read_output(store: Store, name: str) -> bytes:
    """Return the bytes of output NAME, exactly, from whichever conversation they come.

    Raise UnknownObject, or DamagedObject if they are not what was stored (rule Z3).
    """
    prefix = name.removeprefix("o")
    if name == prefix or len(prefix) != excerpting.ID:
        raise UnknownObject(f"no output {name!r}")
    with store.read() as reader:
        for found in reader.find_objects(prefix):
            if reader.object_domain(found) == "blob":
                return reader.object(found)
    raise UnknownObject(f"no output {name!r}")


def recall_output(
    store: Store, name: str, part: Part, limit: int
) -> tuple[recalling.Recalled, int]:
    """Return one page of output NAME, exactly as it is, in at most LIMIT code points.

    And how many code points it has in all.  Raise UnknownObject, InvalidParams.
    """
    text = excerpting.decode(read_output(store, name))
    more = {"limit": limit, "offset": part.offset}
    if part.segment:
        page = recalling.recall_segment(name, text, segments_of(text), part.segment, **more)
    elif part.first:
        page = recalling.recall_lines(name, text, part.first, part.last or part.first, **more)
    elif part.pattern:
        page = recalling.recall_pattern(name, text, part.pattern, context=part.context, **more)
    else:
        page = recalling.recall_whole(name, text, **more)
    return page, len(text)


def segments_of(text: str) -> tuple[Segment, ...]:
    """Return the segments of an output whose text is TEXT, as its excerpt names them."""
    lines = read_lines(text)
    parsed = parse(lines)
    return split(read_pieces(lines), parsed[1].boundaries if parsed else ())


def note_recall(store: Store, id: str, name: str, part: Part) -> None:
    """Count that the model recalled PART of output NAME in conversation ID (O8)."""

    def apply(writer: Writer) -> None:
        found = next((o for o in writer.outputs(id, EARLIER) if o.id == name), None)
        if found is not None:
            counts = {"whole_recalls": found.whole_recalls + 1} if part.whole else {}
            writer.put_output(
                id, msgspec.structs.replace(found, recalls=found.recalls + 1, **counts)
            )

    store.write(apply)


def search_outputs(
    store: Store, id: str, query: str, limit: int, offset: int = 0
) -> tuple[str, int]:
    """Return the lines of the conversation's outputs that have all words of QUERY, newest first.

    At most LIMIT code points, and where to go on, 0 for nowhere: OFFSET counts hits.
    """
    words = [word.casefold() for word in query.split()]
    if not words:
        raise InvalidParams("a query has at least one word")
    hits = _hits(store, id, words)
    lines: list[str] = []
    room = limit - 200  # for what stands around them
    for n, hit in enumerate(hits):
        if n < offset:
            continue
        if len(hit) + 1 > room:
            return _found(lines, query, n), n
        lines.append(hit)
        room -= len(hit) + 1
    return _found(lines, query, 0), 0


def _hits(store: Store, id: str, words: Sequence[str]) -> Iterable[str]:
    with store.read() as reader:
        outputs = reader.outputs(id, EARLIER)
    for output in {output.id: output for output in reversed(outputs)}.values():
        try:
            lines = read_lines(excerpting.decode(read_output(store, output.id)))
        except (UnknownObject, DamagedObject):
            continue
        for number, line in enumerate(lines.clean, 1):
            folded = line.casefold()
            if all(word in folded for word in words):
                yield excerpting.legible(f"{output.id}:{number}: {line[:200]}")


def _found(lines: Sequence[str], query: str, more: int) -> str:
    if not lines:
        return (
            f"[no line of the stored outputs has all of: {query}. Outputs that were short were not"
            " stored; a narrower or other wording may find more.]\n"
        )
    rest = f"; go on with offset {more}" if more else ""
    return f"[lines with all of: {query}{rest}]\n" + "\n".join(lines) + "\n"


def answer_limit(cap: int = 0) -> int:
    """Return the bound of an answer of our own tools, in code points (rule K1)."""
    return result_cap(os.environ.get(CAP_VARIABLE, ""), cap)


# The ledger


def count_outputs(outputs: Sequence[Output], turns: int, least: int) -> Stats:
    """Return the ledger of OUTPUTS of a conversation that has had TURNS; LEAST makes one large."""
    saved = [output for output in outputs if output.shown < output.chars]
    used = sum(1 for output in saved if output.recalls)
    strategies: dict[str, int] = {}
    for output in outputs:
        strategies[output.strategy] = strategies.get(output.strategy, 0) + 1
    return Stats(
        large=sum(1 for output in outputs if output.chars > least),
        excerpts=sum(1 for output in saved if output.strategy != "duplicate"),
        duplicates=strategies.get("duplicate", 0),
        chars=sum(output.chars for output in outputs),
        shown=sum(output.shown for output in outputs),
        token_turns=sum(
            estimate_size(output.chars - output.shown) * max(1, turns - output.turn + 1)
            for output in saved
            if not output.whole_recalls
        ),
        recalls=sum(output.recalls for output in outputs),
        whole_recalls=sum(output.whole_recalls for output in outputs),
        rate=used / len(saved) if saved else 0.0,
        strategies=strategies,
    )
