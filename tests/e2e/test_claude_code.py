"""Rules X1, X2 with the real Claude Code: what its model gets, over prompts and compactions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retention.model import Receipt
from retention.sections import KEPT
from tests.e2e.claude import CONTEXT, SETTINGS, Claude, find_client, told
from tests.loopback import Loopback

TWO = """
[[section]]
name = "weather"
command = "cat weather"

[[section]]
name = "rules"
kind = "guidance"
text = "be-brief"
"""


@pytest.fixture(scope="module")
def program() -> Path:
    return find_client()


@pytest.fixture(scope="module")
def provider() -> Iterator[Loopback]:
    with Loopback() as server:
        yield server


@pytest.fixture
def claude(program: Path, provider: Loopback, tmp_path: Path) -> Claude:
    provider.reset()
    client = Claude(program, tmp_path, provider)
    client.tell(TWO)
    weather(client, "sunny")
    client.hook("install")
    return client


@pytest.fixture
def session() -> str:
    return str(uuid.uuid4())


def weather(claude: Claude, text: str) -> None:
    (claude.project / "weather").write_text(f"it-is-{text}")


def standing(claude: Claude, session: str) -> list[Receipt]:
    return [offer.receipt for offer in claude.offers(session)]


def test_first_prompt_delivers_all_and_later_ones_what_changed(
    claude: Claude, session: str
) -> None:
    first = claude.ask("one", session)[-1]
    assert told(first, "it-is-sunny", "be-brief", CONTEXT) == {
        "it-is-sunny": 1, "be-brief": 1, CONTEXT: 1,
    }  # fmt: skip

    second = claude.ask("two", session)[-1]
    assert told(second, "it-is-sunny", "be-brief", CONTEXT) == {
        "it-is-sunny": 1, "be-brief": 1, CONTEXT: 1,
    }  # fmt: skip

    weather(claude, "raining")
    third = claude.ask("three", session)[-1]
    assert told(third, "it-is-sunny", "it-is-raining", "be-brief", CONTEXT) == {
        "it-is-sunny": 1, "it-is-raining": 1, "be-brief": 1, CONTEXT: 2,
    }  # fmt: skip
    assert standing(claude, session) == [Receipt.ACKNOWLEDGED] * 2


def test_the_model_gets_the_offered_text_exactly(claude: Claude, session: str) -> None:
    claude.tell('[[section]]\nname = "odd"\ntext = """a <b> & \\"c\\" é 😀\n\n  end"""\n')
    request = claude.ask("one", session)[-1]

    assert told(request, '\n\na <b> & "c" é 😀\n\n  end').popitem()[1] == 1
    assert standing(claude, session) == [Receipt.ACKNOWLEDGED]


def test_x2_compaction_delivers_all_again_once(claude: Claude, session: str) -> None:
    claude.ask("one", session)
    claude.ask("two", session)
    claude.ask("/compact", session)
    assert standing(claude, session) == [Receipt.LOST, Receipt.NONE]

    after = claude.ask("three", session)[-1]
    assert told(after, "it-is-sunny", "be-brief") == {"it-is-sunny": 1, "be-brief": 1}
    assert standing(claude, session) == [Receipt.LOST, Receipt.ACKNOWLEDGED]


def test_a_change_during_a_turn_is_told_behind_all_results(claude: Claude, session: str) -> None:
    claude.tell('[[section]]\nname = "clock"\ncommand = "date +now-%s%N"\n')
    calls = [
        {"name": "Read", "args": {"file_path": str(claude.project / name)}}
        for name in ("weather", ".claude/retention.toml")
    ]
    claude.provider.load(
        [{"match": "both", "responses": [{"text": "ok", "calls": calls}, {"text": "done"}]}]
    )
    last = claude.ask("read both", session)[-1]

    assert told(last, CONTEXT + "# clock") == {CONTEXT + "# clock": 2}
    results = [kind for message in last["messages"] for kind in kinds(message)]
    assert results[-3:] == ["tool_result", "tool_result", "delivery"]
    assert standing(claude, session) == [Receipt.ACKNOWLEDGED] * 2


def kinds(message: dict[str, Any]) -> list[str]:
    """Return the kind of each block of MESSAGE, a delivery by that name."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return ["delivery" if "# clock" in block.get("text", "") else block["type"] for block in blocks]


def test_x1_altered_echo_keeps_all_due(claude: Claude, session: str) -> None:
    """The client's record is altered before the hook has seen it: no `Stop` hook looked."""
    settings = claude.project / SETTINGS
    found = json.loads(settings.read_text())
    del found["hooks"]["Stop"]
    settings.write_text(json.dumps(found))
    claude.ask("one", session)
    assert standing(claude, session) == [Receipt.NONE]
    record = claude.transcript(session)
    record.write_text(record.read_text().replace("it-is-sunny", "it-is-funny"))

    again = claude.ask("two", session)[-1]
    assert told(again, "it-is-sunny", "be-brief") == {"it-is-sunny": 1, "be-brief": 2}
    claude.hook("install")
    claude.ask("three", session)
    assert standing(claude, session) == [Receipt.NONE, Receipt.ACKNOWLEDGED]


def test_x1_prompt_that_another_hook_blocks_leaves_all_due(claude: Claude, session: str) -> None:
    claude.ask("one", session)
    weather(claude, "raining")
    settings = claude.project / SETTINGS
    kept = settings.read_bytes()
    found = json.loads(kept)
    found["hooks"]["UserPromptSubmit"].append(
        {"hooks": [{"type": "command", "command": "echo no >&2; exit 2"}]}
    )
    settings.write_text(json.dumps(found))
    assert claude.ask("blocked", session) == []
    settings.write_bytes(kept)

    again = claude.ask("two", session)[-1]
    assert told(again, "it-is-raining", "be-brief") == {"it-is-raining": 1, "be-brief": 1}


def test_a4_what_was_rewound_is_told_again(claude: Claude, session: str) -> None:
    claude.ask("one", session)
    answers = [e["uuid"] for e in claude.entries(session) if e["type"] == "assistant"]
    weather(claude, "raining")
    claude.ask("two", session)
    claude.ask("three", session, "--resume-session-at", answers[-1])
    assert standing(claude, session) == [Receipt.ACKNOWLEDGED, Receipt.LOST]

    again = claude.ask("four", session)[-1]
    assert told(again, "it-is-raining", "be-brief") == {"it-is-raining": 1, "be-brief": 1}


def test_two_sessions_do_not_mix(claude: Claude, session: str) -> None:
    other = str(uuid.uuid4())
    claude.ask("one", session)
    assert told(claude.ask("one", other)[-1], "it-is-sunny") == {"it-is-sunny": 1}
    weather(claude, "raining")
    assert told(claude.ask("two", other)[-1], "it-is-raining") == {"it-is-raining": 1}
    assert told(claude.ask("two", session)[-1], "it-is-raining") == {"it-is-raining": 1}

    assert told(claude.ask("three", session)[-1], CONTEXT) == {CONTEXT: 2}
    assert len({offer.id for each in (session, other) for offer in claude.offers(each)}) == 4


def test_fork_of_a_session_is_told_all(claude: Claude, session: str) -> None:
    claude.ask("one", session)
    forked = claude.ask("two", session, "--fork-session")[-1]

    assert told(forked, "it-is-sunny", "be-brief") == {"it-is-sunny": 2, "be-brief": 2}


def test_x2_oversized_section_waits_and_says_so(claude: Claude, session: str) -> None:
    claude.tell(TWO + '[[section]]\nname = "large"\ncommand = "yes large-text | head -c 20000"\n')
    first = claude.ask("one", session)[-1]
    assert told(first, "it-is-sunny", "be-brief", "large-text", "persisted-output") == {
        "it-is-sunny": 1, "be-brief": 1, "large-text": 0, "persisted-output": 0,
    }  # fmt: skip
    notices = [
        entry["attachment"]["content"]
        for entry in claude.entries(session)
        if entry.get("attachment", {}).get("type") == "hook_system_message"
    ]
    assert len(notices) == 1
    assert "large has 20" in notices[0]

    claude.tell(TWO + '[[section]]\nname = "large"\ntext = "small-text"\n')
    second = claude.ask("two", session)[-1]
    assert told(second, "small-text", CONTEXT) == {"small-text": 1, CONTEXT: 2}


def test_text_at_the_limit_is_taken_whole(claude: Claude, session: str) -> None:
    """The limit counts as the client does: one that it would shorten is never offered."""
    head = len(f"# large\nThis updates only large. {KEPT}\n\n")
    for number, size in enumerate((10_000 - head, 10_001 - head)):
        text = "😀" * ((size - 1) // 2) + "x" * (2 - size % 2)
        claude.tell(f'[[section]]\nname = "large"\ntext = "{text}"\n')
        request = claude.ask("one", str(uuid.uuid4()))[-1]
        assert told(request, text) == {text: 1 - number}


def test_uninstalled_hooks_are_called_no_more(claude: Claude, session: str) -> None:
    claude.ask("one", session)
    claude.hook("uninstall")
    weather(claude, "raining")

    assert told(claude.ask("two", session)[-1], "it-is-raining") == {"it-is-raining": 0}


def test_broken_file_of_sections_holds_nothing_up(claude: Claude, session: str) -> None:
    claude.tell("[[section")

    assert told(claude.ask("one", session)[-1], CONTEXT) == {CONTEXT: 0}
    claude.tell(TWO)
    assert told(claude.ask("two", session)[-1], "it-is-sunny") == {"it-is-sunny": 1}
