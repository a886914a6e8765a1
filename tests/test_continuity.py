"""How a request compares with the one before it, and what the provider's figures say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from retention.arrays import Item, common_length, make_sent
from retention.continuity import (
    CONTEXT,
    PATH,
    Compared,
    compare,
    judge,
    minimum_tokens,
    sentence,
)
from retention.digest import Digest, digest
from retention.estimating import estimate_size
from retention.model import START, Cause, Continuity, Face, Message, Reason, Role, Usage
from retention.providers import Head, choose
from tests.helpers import assistant, call, encode, identity, message, result

HERE, THERE = digest("identity", b"here"), digest("identity", b"there")
PROVIDER = choose(identity(), "messages")
NEW = -1_000_000_000
LEFT_OUT, BACK = "reasoning left out", "reasoning sent again"


def item(element: object, row: int, **changes: Any) -> Item:
    raw = element if isinstance(element, bytes) else encode(element)  # type: ignore[arg-type]
    return Item(message=PROVIDER.parse(raw), row=row, **changes)


def system(text: str, row: int) -> Item:
    raw = encode({"role": "system", "content": text})
    parsed = Message(
        role=Role.SYSTEM, exact=digest("message", raw), size=len(raw), parts=(), raw=raw
    )
    return Item(message=parsed, row=row)


def delivery(id: int, text: str = "[env]") -> Item:
    return item(message(text), START, deliveries=(id,))


def side(
    items: Sequence[Item], *reasons: Reason, head: Head | None = None, where: Digest = HERE
) -> Compared:
    return Compared(identity=where, head=head, sent=make_sent(items), reasons=reasons)


def read_nothing(_: Digest) -> bytes | None:
    return None


def between(before: Compared | None, after: Compared) -> Continuity:
    common = common_length(after.sent.items, before.sent.items) if before else 0
    return compare(before, after, common=common, array="messages", read=read_nothing)


def cause(
    before: Sequence[Item], after: Sequence[Item], *reasons: Reason
) -> tuple[Cause, str, int]:
    found = between(side(before), side(after, *reasons))
    return found.cause, found.detail, found.element


U1, A1, U2, A2, U3 = (
    item(message("one"), 1),
    item(assistant("first answer"), 2),
    item(message("two"), 3),
    item(assistant("second answer"), 4),
    item(message("three"), 5),
)
D1 = delivery(11)


# Where a request goes, and what stands in front of the array


def test_a_first_request_has_nothing_to_repeat() -> None:
    after = side([U1], head=Head(tools=b"[1]"))

    found = between(None, after)

    assert found == Continuity(cause=Cause.FIRST, total=U1.message.size)


def test_another_provider_has_read_nothing_of_it() -> None:
    found = between(side([U1, A1], where=THERE), side([U1, A1, U2]))

    assert (found.cause, found.reused, found.tokens) == (Cause.PROVIDER, 0, 0)


TOOLS = b'[{"name":"a","description":"reads"},{"name":"b","description":"writes"}]'


@pytest.mark.parametrize(
    ("tools", "detail", "path"),
    [
        (TOOLS[:-1] + b',{"name":"fetch"}]', "added: fetch", "tools.2"),
        (b'[{"name":"a","description":"reads"}]', "removed: b", "tools.1"),
        (TOOLS.replace(b"writes", b"wrote"), "changed: b", "tools.1.description"),
        (b'[{"name":"b","description":"writes"},{"name":"a","description":"reads"}]',
         "reordered", "tools.0.name"),
        (b'[{"name":"c"},{"name":"d"},{"name":"e"},{"name":"f"}]',
         "added: c, d, e and 1 more; removed: a, b", "tools.0.name"),
        (TOOLS.replace(b",", b", "), "", "tools"),
        (b"", "removed: a, b", "tools"),
        (b"not JSON", "removed: a, b", "tools"),
    ],
)  # fmt: skip
def test_tools_that_changed_are_named(tools: bytes, detail: str, path: str) -> None:
    before = side([U1], head=Head(tools=TOOLS, system=b'"be brief"'))

    found = between(before, side([U1, A1], head=Head(tools=tools, system=b'"be long"')))

    assert (found.cause, found.detail, found.path) == (Cause.TOOLS, detail, path)
    assert (found.element, found.reused, found.tokens) == (-1, 0, 0)


@pytest.mark.parametrize(
    "tools",
    [
        b'[{"type":"function","function":{"name":"%s"}}]',
        b'[{"function_declarations":[{"name":"%s"}]}]',
        b'{"tools":[{"toolSpec":{"name":"%s"}}]}',
        b'[{"type":"%s"}]',
        b'[{"%s":{}}]',
    ],
)
def test_tools_are_named_whatever_an_api_wraps_around_them(tools: bytes) -> None:
    before, after = side([U1], head=Head(tools=tools % b"old")), Head(tools=tools % b"new")

    assert between(before, side([U1], head=after)).detail == "added: new; removed: old"


def test_a_changed_system_prompt_shows_where_and_leaves_the_tools() -> None:
    start, end = "s" * 100, "e" * 100
    before = Head(tools=b"t" * 40, system=f'"{start} Monday {end}"'.encode())
    after = Head(tools=b"t" * 40, system=f'"{start} Tuesday {end}"'.encode())

    found = between(side([U1], head=before), side([U1, A1], head=after))

    assert (found.cause, found.path, found.element) == (Cause.SYSTEM, "system", -1)
    assert found.before.startswith("ss")
    assert "s Monday e" in found.before
    assert "s Tuesday e" in found.after
    assert len(found.before) == len(found.after) == 2 * CONTEXT
    assert (found.reused, found.tokens) == (0, 10)


@pytest.mark.parametrize(
    ("parameters", "detail", "path"),
    [
        ({"effort": b'{"level":"high"}', "temperature": b"1"},
         'effort: {"level":"low"} -> {"level":"high"}', "effort.level"),
        ({"effort": b'{"level":"low"}', "temperature": b"0"}, "temperature: 1 -> 0", "temperature"),
        ({"effort": b'{"level":"low"}'}, "temperature: 1 -> absent", "temperature"),
        ({"effort": b'{"level":"low"}', "temperature": b"1", "top_p": b'"' + 50 * b"x" + b'"'},
         'top_p: absent -> "' + 38 * "x" + "…", "top_p"),
    ],
)  # fmt: skip
def test_the_first_changed_parameter_is_named_with_its_values(
    parameters: dict[str, bytes], detail: str, path: str
) -> None:
    before = Head(parameters={"effort": b'{"level":"low"}', "temperature": b"1"})

    found = between(side([U1], head=before), side([U1, A1], head=Head(parameters=parameters)))

    assert (found.cause, found.detail, found.path) == (Cause.PARAMETER, detail, path)
    assert (found.element, found.reused) == (-1, U1.message.size)


@pytest.mark.parametrize(("old", "new"), [(None, Head(tools=b"[1]")), (Head(tools=b"[1]"), None)])
def test_a_head_that_is_not_known_is_not_compared(old: Head | None, new: Head | None) -> None:
    assert between(side([U1], head=old), side([U1, A1], head=new)).cause is Cause.NONE


# The array


def test_a_request_that_only_adds_repeats_all_with_tools_and_system() -> None:
    head = Head(tools=b"t" * 40, system=b"s" * 80)

    found = between(side([U1, D1, A1], head=head), side([U1, D1, A1, U2], head=head))

    size = sum(each.message.size for each in (U1, D1, A1))
    assert found == Continuity(
        cause=Cause.NONE,
        reused=size,
        total=size + U2.message.size,
        tokens=estimate_size(size + 120),
    )


def test_a_system_prompt_inside_the_array_is_named_as_such() -> None:
    before = [system("Today is Monday", 1), U1]

    found = between(side(before), side([system("Today is Tuesday", 21), U1]))

    assert (found.cause, found.element, found.path) == (Cause.SYSTEM, 0, "messages.0.content")
    assert cause(before, [U1]) == (Cause.SYSTEM, "", 0)


def test_messages_in_front_of_a_later_system_message_repeat() -> None:
    found = between(side([U1, system("now", 2)]), side([U1, system("then", 22)]))

    assert (found.cause, found.element, found.reused) == (Cause.SYSTEM, 1, U1.message.size)


@pytest.mark.parametrize(
    ("reasons", "detail"),
    [
        ((), "the messages around it are gone"),
        ((Reason(code="damaged"), Reason(code="refused", detail="3")), "edits are held back"),
        ((Reason(code="delivery_lost", detail="11"),), "its text cannot be read"),
        ((Reason(code="host_lost", detail="1"),), "the message that it was in cannot be read"),
        ((Reason(code="no_boundary", detail="11"),), "it may stand nowhere"),
    ],
)
def test_a_delivery_that_is_missing_is_lost(reasons: tuple[Reason, ...], detail: str) -> None:
    assert cause([U1, D1, A1], [U1, A1, U2], *reasons) == (Cause.DELIVERY, detail, 1)


def test_a_delivery_that_is_missing_in_its_host_is_lost() -> None:
    host = item(message("one [env]"), 1, deliveries=(11,))

    assert cause([host, A1], [U1, A1])[0] is Cause.DELIVERY


def test_a_delivery_that_went_with_its_host_is_not_what_is_missing() -> None:
    host = item(message("one [env]"), 1, deliveries=(11,))

    assert cause([host, A1, U2], [U2]) == (Cause.FILTERED, "", 0)


def test_a_delivery_that_comes_back_is_named() -> None:
    assert cause([U1, A1], [U1, D1, A1]) == (Cause.DELIVERY, "it stands there again", 1)


def test_a_delivery_that_joins_a_message_sent_before_is_named() -> None:
    host = item(message("one [env]"), 1, deliveries=(NEW,))

    assert cause([U1], [host]) == (Cause.DELIVERY, "it joined a message", 0)


ROUND = (
    item(assistant("let me see", call()), 6, face=Face.ACTUAL),
    item(result("found"), 7, face=Face.ACTUAL),
)
REBUILT = (
    item(assistant("let me see ", call()), 8, face=Face.ORDINARY),
    item(result("found "), 9, face=Face.ORDINARY),
)


@pytest.mark.parametrize("detail", ["edited", "other model: claude-9"])
def test_a_fragment_that_is_not_replayed_says_why(detail: str) -> None:
    reasons = (Reason(code="damaged"), Reason(code="not_replayed", detail=detail))

    found = cause([U1, *ROUND, A1], [U1, *REBUILT, A1, U2], *reasons)

    assert found == (Cause.FRAGMENT, detail, 1)


def test_a_fragment_that_is_replayed_again_differs_too() -> None:
    assert cause([U1, *REBUILT, U2], [U1, *ROUND, U2]) == (
        Cause.FRAGMENT,
        "it is replayed again",
        1,
    )


def test_a_deleted_round_is_missing_and_not_merely_unlike() -> None:
    reason = Reason(code="not_replayed", detail="filtered")

    assert cause([U1, *ROUND, U2], [U1, U2], reason) == (Cause.FILTERED, "", 1)


@pytest.mark.parametrize(
    ("sent", "row"), [(ROUND[1], -1), (ROUND[1], 12), (item(result("found"), 7), -1)]
)
def test_a_message_of_the_loop_that_something_rewrote_is_edited(sent: Item, row: int) -> None:
    rewritten = item(result("changed"), row, face=Face.ACTUAL)

    assert cause([U1, ROUND[0], sent], [U1, ROUND[0], rewritten]) == (Cause.EDITED, "", 2)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("repaired", (Cause.FRAGMENT, "repaired", 1)),
        ("context_moved", (Cause.EDITED, "context moved", 1)),
        ("damaged", (Cause.UNKNOWN, "", 1)),
    ],
)
def test_a_row_with_another_text_has_its_reason_or_none(
    code: str, expected: tuple[Cause, str, int]
) -> None:
    altered = item(assistant("first answer "), 2)

    assert cause([U1, A1], [U1, altered], Reason(code=code)) == expected


def thought(row: int, *texts: str) -> Item:
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    return item(assistant(*blocks, *texts), row, face=Face.ACTUAL)


HOST = item(result("found [env]"), 7, deliveries=(11,), face=Face.ACTUAL)
SAID = item(assistant("so it is"), 31, face=Face.ACTUAL)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([U1, thought(31, "so it is"), U2], [U1, SAID, U2], (Cause.FRAGMENT, LEFT_OUT, 1)),
        ([U1, SAID, U2], [U1, thought(31, "so it is"), U2], (Cause.FRAGMENT, BACK, 1)),
        ([U1, thought(30), SAID, U2], [U1, SAID, U2], (Cause.FRAGMENT, LEFT_OUT, 1)),
        ([U1, SAID, U2], [U1, thought(30), SAID, U2], (Cause.FRAGMENT, BACK, 1)),
        ([U1, thought(31, "so"), U2], [U1, U2], (Cause.FILTERED, "", 1)),
        ([U1, ROUND[0], SAID, U2], [U1, SAID, U2], (Cause.FILTERED, "", 1)),
        ([U1, ROUND[0], HOST], [U1, ROUND[1]], (Cause.FILTERED, "", 1)),
    ],
)
def test_reasoning_alone_that_comes_or_goes_is_told_apart(
    before: list[Item], after: list[Item], expected: tuple[Cause, str, int]
) -> None:
    """C4, Z6: with the rest of its response as before, or as an element of its own."""
    assert cause(before, after) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([U1, A1, U2, A2, U3], [U2, A2, U3], (Cause.FILTERED, "", 0)),
        ([U1, A1, U2, A2, U3], [U1, A1, U3], (Cause.FILTERED, "", 2)),
        ([U1, A1, U2, A2, U3], [U1, A1, U2], (Cause.FILTERED, "it ends earlier", 3)),
        ([U1, A1, U2, A2, U3], [U1, A1, U2, delivery(NEW)],
         (Cause.FILTERED, "it ends earlier", 3)),
        ([U1, A1, U2, A2, U3], [U1, item(assistant("better"), -1), U2], (Cause.EDITED, "", 1)),
        ([U1, A1, U2], [U1, item(message("btw"), -1), A1, U2], (Cause.EDITED, "inserted", 1)),
        ([U1, A1, U2, A2], [U2, A2, U1, A1], (Cause.EDITED, "moved", 0)),
    ],
)  # fmt: skip
def test_messages_that_changed_are_told_apart(
    before: list[Item], after: list[Item], expected: tuple[Cause, str, int]
) -> None:
    assert cause(before, after) == expected


def test_only_what_stands_behind_the_common_elements_is_looked_at() -> None:
    class Counted(list[Item]):
        seen = 0

        def __getitem__(self, key: Any) -> Any:
            got = super().__getitem__(key)
            Counted.seen += len(got) if isinstance(key, slice) else 1
            return got

        def __iter__(self) -> Any:
            raise AssertionError("the whole array is walked")

    many = [item(message(str(n)), n) for n in range(1, 101)]
    sent = make_sent([*many, U3])
    before = Compared(identity=HERE, head=None, sent=make_sent(many))
    after = Compared(
        identity=HERE,
        head=None,
        sent=type(sent)(items=Counted(sent.items), ends=sent.ends, placed=[]),
    )

    compare(before, after, common=100, array="messages", read=read_nothing)

    assert Counted.seen <= 1


# The place


@pytest.mark.parametrize(
    ("old", "new", "path", "texts"),
    [
        (message("to be"), message("to do"), "messages.0.content", ("to be", "to do")),
        (assistant("a", "b"), assistant("a", "c"), "messages.0.content.1.text", ("b", "c")),
        (assistant("a", "b"), assistant("a"), "messages.0.content.1",
         ('{"type":"text","text":"b"}', "")),
        (assistant(call(path="x")), assistant(call(path=1)), "messages.0.content.0.input.path",
         ("x", "1")),
        (assistant(call(a={"0": 1})), assistant(call(a=[1])), "messages.0.content.0.input.a",
         ('{"0":1}', "[1]")),
        (encode(message("x")), b'{"role":"user", "content":"x"}', "messages.0",
         ('{"role":"user","content":"x"}', '{"role":"user", "content":"x"}')),
        (message("x"), assistant("y"), "messages.0",
         ('{"role":"user","content":"x"}',
          '{"role":"assistant","content":[{"type":"text","text":"y"}]}')),
    ],
)  # fmt: skip
def test_the_innermost_difference_is_shown(
    old: object, new: object, path: str, texts: tuple[str, str]
) -> None:
    found = between(side([item(old, 1)]), side([item(new, -1)]))

    assert (found.path, found.before, found.after) == (path, *texts)


@pytest.mark.parametrize("after", [[U1, U3], [U1, item(message("btw"), -1), U2], [U1, U3, U2]])
def test_two_unlike_messages_are_shown_whole(after: list[Item]) -> None:
    found = between(side([U1, U2, U3]), side(after))

    assert found.path == "messages.1"
    assert found.before == '{"role":"user","content":"two"}'


def test_a_long_path_is_cut() -> None:
    key = "k" * 300

    found = between(
        side([item(assistant(call(**{key: 1})), 1)]), side([item(assistant(call(**{key: 2})), -1)])
    )

    assert len(found.path) == PATH
    assert found.path.endswith("…")


def test_texts_are_read_where_they_are_stored_and_may_be_lost() -> None:
    stored = {U1.message.exact: U1.message.raw}
    bare = Item(message=PROVIDER.parse(encode(message("one"))), row=1)
    old = Item(message=Message(**{**_fields(bare.message), "raw": b""}), row=1)
    new = item(message("ten"), -1)

    known = compare(side([old]), side([new]), common=0, array="messages", read=stored.get)
    lost = compare(side([old]), side([new]), common=0, array="messages", read=read_nothing)

    assert (known.path, known.before, known.after) == ("messages.0.content", "one", "ten")
    assert (lost.path, lost.before) == ("messages.0", "…")
    assert lost.after == '{"role":"user","content":"ten"}'


def _fields(value: Message) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


# Words


def test_each_cause_has_a_sentence_of_its_own() -> None:
    said = {sentence(Continuity(cause=each)) for each in Cause}

    assert len(said) == len(Cause)
    assert all(text.endswith(".") and "(" not in text and "{" not in text for text in said)


def test_a_sentence_names_the_detail() -> None:
    assert sentence(Continuity(cause=Cause.TOOLS, detail="added: fetch")) == (
        "The list of tools changed (added: fetch), so the provider has to read everything again."
    )
    assert "(temperature: {} -> 1)" in sentence(
        Continuity(cause=Cause.PARAMETER, detail="temperature: {} -> 1")
    )


# What the provider reports


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-opus-4-5-20251101", 4096),
        ("claude-opus-4.6", 4096),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", 4096),
        ("claude-opus-4-7", 2048),
        ("claude-3-5-haiku-20241022", 2048),
        ("claude-mythos-preview", 2048),
        ("claude-opus-5-5", 512),
        ("claude-fable-5-1", 512),
        ("claude-mythos-5-1", 512),
        ("anthropic/claude-sonnet-5.5", 512),
        ("claude-sonnet-5", 1024),
        ("claude-sonnet-4-5-20250929", 1024),
        ("claude-opus-4-1-20250805", 1024),
        ("claude-3-7-sonnet-20250219", 1024),
        ("gemini-2.5-pro", 2048),
        ("gemini-3.1-pro-preview", 4096),
        ("gpt-5.6", 1024),
        ("o3-mini", 1024),
        ("mistral-large-latest", 64),
        ("gpt-oss:20b", 0),
        ("deepseek-chat", 0),
        ("qwen3", 0),
    ],
)
def test_the_minimum_is_that_of_the_model(model: str, tokens: int) -> None:
    assert minimum_tokens(model) == tokens


WHOLE = Continuity(cause=Cause.NONE, tokens=5000)
PART = Continuity(cause=Cause.EDITED, tokens=3000)


@pytest.mark.parametrize(
    ("continuity", "usage", "previous", "said"),
    [
        (WHOLE, None, None, "not known"),
        (WHOLE, Usage(input=5000), None, "not known"),
        (WHOLE, Usage(cached=5000), None, ""),
        (WHOLE, Usage(cached=3000), None, ""),
        (WHOLE, Usage(cached=2000), None, "read 2000 of about 5000"),
        (WHOLE, Usage(cached=0), None, "Nothing changed on our side"),
        (WHOLE, Usage(cached=0), Usage(input=5200, cached=0, written=5200), "of about 5200"),
        (WHOLE, Usage(cached=0), Usage(input=600, cached=0, written=0), "below 1024"),
        (WHOLE, Usage(cached=0), Usage(input=5200, cached=0, written=0), "caching asked for"),
        (WHOLE, Usage(cached=0), Usage(input=5200, cached=0), "Nothing changed on our side"),
        (PART, Usage(cached=2000), None, ""),
        (PART, Usage(cached=0), Usage(input=9000), "of about 3000"),
        (PART, Usage(cached=0), Usage(input=9000), "no end at this place"),
        (Continuity(cause=Cause.EDITED, tokens=500), Usage(cached=0), None, "below 1024"),
        (Continuity(cause=Cause.PARAMETER, tokens=5000), Usage(cached=0), None, "that parameter"),
        (Continuity(cause=Cause.TOOLS), Usage(cached=0), None, ""),
        (Continuity(cause=Cause.FIRST), Usage(cached=4000), None, ""),
    ],
)
def test_a_prediction_is_judged_by_what_the_provider_reports(
    continuity: Continuity, usage: Usage | None, previous: Usage | None, said: str
) -> None:
    found = judge(continuity, usage, "claude-sonnet-4-5", previous)

    assert said in found
    assert bool(said) == bool(found)
