"""The command line: what it prints, and with which status it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retention import cli, terminal
from retention.continuity import sentence
from retention.model import Cause, Continuity, Identity, Reason, Usage
from retention.service import Service
from retention.store import Store, Writer
from tests.helpers import Adapter, assistant, call, message, reminder, result, section

IDS = ("aaaa1111" + "0" * 24, "aaaa2222" + "0" * 24)
ENVIRONMENT = {"name": "environment", "title": "Environment", "body": "~/notes"}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two conversations; the first has one committed request with a delivery."""
    path = tmp_path / "store"
    opened = Store.open(path)
    service = Service(opened, clock=lambda: 1767225600.0, random_id=lambda: "f" * 32)

    def call(method: str, **params: object) -> Any:
        return service.call(method, msgspec.json.encode(params))

    call("initialize", protocol=1)
    call("conversation/open", id=IDS[0], title="First\x1b[31m\nchat")
    call("conversation/open", id=IDS[1], file="/home/user/second.org")
    plan = call(
        "request/prepare", conversation=IDS[0], request="r1", origin="buffer", array="messages",
        identity={"api": "anthropic"}, tail='[{"role":"user","content":"hello \\u001b[2J"}]',
        sections=[ENVIRONMENT],
    )  # fmt: skip
    call("request/commit", plan=plan.plan)
    opened.close()
    return path


@pytest.fixture
def run(store: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["--store", str(store), *arguments])
        return status, *capsys.readouterr()

    return run_command


def test_conversations_are_listed_in_aligned_columns(run: Run) -> None:
    status, out, err = run("conversations")

    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0].split() == ["CONV", "TURNS", "REQUESTS", "ROWS", "USED", "TITLE"]
    assert {line.split()[0] for line in lines[1:]} == {id[: terminal.SHORT] for id in IDS}
    assert len({line.index(word) for line, word in zip(
        sorted(lines[1:]), ("First", "/home/user/second.org"), strict=True)}) == 1  # fmt: skip


def test_stored_texts_do_not_steer_the_terminal(run: Run) -> None:
    for command in (["conversations"], ["log", IDS[0], "--bodies"]):
        out = run(*command)[1]
        assert "\x1b" not in out
    assert "\\x1b[31m chat" in run("conversations")[1]


def test_log_shows_rows_and_what_a_delivery_carried(run: Run) -> None:
    status, out, _ = run("log", IDS[0])
    assert status == 0
    assert out.splitlines()[0].split()[:4] == ["ROW", "AFTER", "FACE", "ROLE"]
    assert [line.split()[-1] for line in out.splitlines()[1:]][-1] == "environment"


def test_log_says_when_it_is_cut(run: Run) -> None:
    total = json.loads(run("log", IDS[0], "--json")[1])["total"]
    out = run("log", IDS[0], "--limit", "1")[1]
    assert out.splitlines()[-1].startswith(f"the last 1 of {total} rows")


def test_show_prints_the_exact_text_by_a_prefix_of_the_digest(run: Run) -> None:
    rows = json.loads(run("log", IDS[0], "--json")[1])["rows"]
    digest = next(row["delivery"]["text"] for row in rows if "delivery" in row)

    status, out, err = run("show", digest[:16].upper())

    assert status == 0
    assert "~/notes" in out
    assert err.startswith(f"delivery {digest}, ")


def test_requests_show_what_was_delivered(run: Run) -> None:
    status, out, _ = run("requests", IDS[0])
    assert status == 0
    assert out.splitlines()[0].split()[:3] == ["REQ", "TURN", "AT"]
    assert "environment" in out.splitlines()[1]


TOOLS_CHANGED = Continuity(
    cause=Cause.TOOLS,
    detail="added: fetch",
    path="tools.1",
    after='{"name":"fe\x1btch"}',
    total=700,
)
REPEATED = Continuity(cause=Cause.NONE, reused=198, total=408, tokens=5000)
WHO = Identity(
    api="anthropic", backend="Claude", host="api.test", model="claude-sonnet-4-5", cache="message"
)
HELD_BACK = Reason(code="not_replayed", detail="held back")


@pytest.fixture
def chat(tmp_path: Path) -> str:
    """The id of a conversation of three requests: a prompt, a round of the loop, a second prompt.

    Beside what was sent the records hold the figures of a provider.
    """
    opened = Store.open(tmp_path / "store")
    adapter = Adapter(opened, id="c" * 32)
    turn = [assistant("let me see", call()), result("found")]
    adapter.send(message("hello"), sections=[section()])
    adapter.loop(*turn, sections=[section()])
    adapter.end(assistant("done"))
    adapter.send(
        message("hello"), *turn, assistant("done"), message("more"),
        sections=[section(body="two")], reminders=[reminder()],
    )  # fmt: skip
    figures: dict[int, dict[str, Any]] = {
        1: {"continuity": Continuity(), "usage": Usage(input=5200, cached=0, written=5100)},
        2: {
            "continuity": REPEATED,
            "usage": Usage(input=5500, cached=0, written=5400, output=20),
            "reasons": (Reason(code="repaired", detail="call ids"), HELD_BACK),
            "finish": "tool_use",
            "replayed": 2,
            "marked": (1, 3),
        },
        3: {"continuity": TOOLS_CHANGED, "reasons": (), "replayed": 0},
    }

    def fill(writer: Writer) -> None:
        identity = writer.put_object("identity", msgspec.json.encode(WHO))
        for seq, known in figures.items():
            record = writer.request(adapter.id, seq)
            assert record is not None
            known["identity"] = record.identity if seq == 3 else identity
            writer.put_request(adapter.id, msgspec.structs.replace(record, **known))

    opened.write(fill)
    opened.close()
    return adapter.id


@pytest.fixture
def explain(tmp_path: Path, chat: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_explain(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["--store", str(tmp_path / "store"), "explain", chat[:8], *arguments])
        return status, *capsys.readouterr()

    return run_explain


def sections_of(out: str) -> dict[str, str]:
    """Return the texts of an explanation by label, each on one line."""
    found: dict[str, str] = {}
    for line in out.splitlines()[1:]:
        label = line[: terminal.LABEL].strip() or label  # noqa: F821 - the first line has one
        found[label] = f"{found.get(label, '')} {line[terminal.LABEL :]}".strip()
    return found


def test_explain_tells_the_newest_request(explain: Run) -> None:
    status, out, err = explain()

    said = sections_of(out)
    assert (status, err) == (0, "")
    assert out.startswith("Request 3 (buffer), turn 2, ")
    assert said["Messages"].startswith("7, the first 4 as in the request before; ")
    assert said["Delivered"] == "env; reminders: tip"
    assert said["Put back"] == "1 earlier delivery"
    assert said["Compared"] == sentence(TOOLS_CHANGED)
    assert (said["Changed"], said["before"]) == ("tools.1", "nothing")
    assert said["now"] == r"""'{"name":"fe\x1btch"}'"""
    assert said["Predicted"] == "0 bytes of 700 bytes of the messages repeat, about 0 tokens in all"
    assert said["Judged"] == "It is not known what the provider read from its cache."
    assert not {"Replayed", "Repaired", "Marked", "Reported", "Ended", "Reason"} & set(said)


def test_explain_sets_the_figures_of_the_provider_beside_the_prediction(explain: Run) -> None:
    """C2, N18: a miss with full continuity is not ours."""
    said = sections_of(explain("--request", "2")[1])

    assert said["Provider"] == "claude-sonnet-4-5 at Claude (api.test), cache setting message"
    assert said["Delivered"] == "-"
    assert said["Replayed"] == "2 responses as received"
    assert said["Repaired"] == "call ids"
    assert said["Marked"] == "for the provider's cache, messages 1, 3"
    assert said["Predicted"] == (
        "198 bytes of 408 bytes of the messages repeat, about 5000 tokens in all"
    )
    assert said["Reported"] == (
        "5500 tokens in, 0 of them from the cache, 5400 written to it, 20 tokens out"
    )
    assert "read 0 of about 5200 tokens" in said["Judged"]
    assert "Nothing changed on our side" in said["Judged"]
    assert said["Ended"] == "tool_use"
    assert said["Reason"].endswith("the provider refused an edited request.")


def test_explain_of_a_first_request_predicts_nothing(explain: Run) -> None:
    said = sections_of(explain("--request", "1")[1])

    assert said["Messages"].startswith("2; ")
    assert said["Compared"] == sentence(Continuity())
    assert not {"Put back", "Changed", "Predicted", "Judged"} & set(said)


def test_explain_without_the_identity_shows_its_digest(
    explain: Run, tmp_path: Path, chat: str
) -> None:
    def forget_identity(writer: Writer) -> None:
        record = writer.request(chat, 3)
        assert record is not None
        strange = msgspec.structs.replace(record, identity=bytes(32))
        writer.put_request(chat, strange)

    opened = Store.open(tmp_path / "store")
    opened.write(forget_identity)
    opened.close()

    assert sections_of(explain()[1])["Provider"] == "0" * terminal.SHORT


def test_explain_keeps_to_80_columns_and_does_not_steer_the_terminal(explain: Run) -> None:
    for number in "123":
        out = explain("--request", number)[1]
        assert max(map(len, out.splitlines())) <= terminal.WIDTH
        assert "\x1b" not in out


def test_explain_all_has_a_line_for_each_request(explain: Run) -> None:
    status, out, _ = explain("--all")

    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert lines[0] == ["REQ", "TURN", "AT", "PREDICTED", "CACHED", "INPUT", "CAUSE"]
    assert [line[0] for line in lines[1:]] == ["3", "2", "1"]
    assert [line[4:] for line in lines[1:]] == [
        ["0", "-", "-", "tools_changed", "added:", "fetch"],
        ["5000", "0", "5500", "none"],
        ["0", "0", "5200", "first_request"],
    ]
    assert len(explain("--all", "--request", "2")[1].splitlines()) == 3


def test_explain_as_json_has_it_all(explain: Run) -> None:
    found = json.loads(explain("--all", "--json")[1])

    assert (found["total"], [item["request"] for item in found["requests"]]) == (3, [3, 2, 1])
    second = found["requests"][1]
    assert second["continuity"]["cause"] == "none"
    assert second["usage"]["written"] == 5400
    assert second["reasons"][1] == {"code": "not_replayed", "detail": "held back"}
    assert {"label": "Repaired", "text": "call ids"} in second["lines"]


def test_explain_of_a_request_that_never_was_is_bad_input(explain: Run) -> None:
    status, out, err = explain("--request", "4")

    assert (status, out) == (2, "")
    assert err == "retention: no request 4: 3 were sent\n"


def test_explain_before_the_first_request(run: Run) -> None:
    assert run("explain", IDS[1]) == (0, "no request so far\n", "")


def test_check_of_a_sound_store(run: Run) -> None:
    assert run("check") == (0, "no problems\n", "")


def test_z3_check_finds_damage_with_status_1(run: Run, store: Path) -> None:
    """Z3: a flipped byte in a stored text is found and reported."""
    damage(store, b"hello")

    status, out, _ = run("check")

    assert status == 1
    assert out.splitlines()[-1].endswith("problems")
    assert run("check", "--json")[0] == 1


def test_show_of_a_damaged_object_is_a_store_error(run: Run, store: Path) -> None:
    rows = json.loads(run("log", IDS[0], "--json")[1])["rows"]
    damage(store, b"hello")
    status, out, err = run("show", rows[0]["digest"])
    assert (status, out) == (3, "")
    assert err.startswith("retention: ")


def damage(store: Path, text: bytes) -> None:
    for path in store.rglob("data.mdb"):
        data = path.read_bytes()
        assert text in data
        path.write_bytes(data.replace(text, text.swapcase()))


def test_forget_removes_the_conversation(run: Run) -> None:
    assert run("forget", IDS[0][:6])[0] == 0
    assert IDS[0][: terminal.SHORT] not in run("conversations")[1]
    assert run("log", IDS[0])[0] == 2


def test_compact_says_what_it_saved(run: Run) -> None:
    found = json.loads(run("compact", "--json")[1])
    assert sorted(found) == ["after", "before", "purged"]
    assert run("check")[0] == 0
    assert "bytes before" in run("compact")[1]


@pytest.mark.parametrize("command", ["conversations", "log", "requests", "check", "forget"])
def test_json_is_what_the_method_answers_and_nothing_else(run: Run, command: str) -> None:
    arguments = [IDS[0]] if command in {"log", "requests", "forget"} else []
    status, out, err = run(command, *arguments, "--json")
    assert (status, err) == (0, "")
    assert isinstance(json.loads(out), dict)


def test_json_holds_members_at_their_default_too(run: Run) -> None:
    found = json.loads(run("conversations", "--json")[1])["conversations"]
    second = next(item for item in found if item["id"] == IDS[1])
    assert (second["title"], second["requests"], second["files"]) == (
        "", 0, ["/home/user/second.org"],
    )  # fmt: skip


BAD_INPUT = {
    "an ambiguous prefix": (["log", "aaaa"], "begins 2"),
    "an unknown conversation": (["log", "bbbb"], "no conversation begins with 'bbbb'"),
    "a short prefix": (["forget", "aaa"], "at least 4 characters"),
    "an empty prefix": (["forget", ""], "at least 4 characters"),
    "an unknown digest": (["show", "0" * 64], "no object"),
    "not a digest": (["show", "xyz"], "not hexadecimal"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_one_line_and_status_2(run: Run, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("retention: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["paint"], ["log"], ["log", "x", "--limit", "0"]])
def test_bad_usage_is_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize("command", [["conversations"], ["check"], ["compact"], ["forget", "aaaa"]])
def test_commands_that_look_make_no_store(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped directory must not look like an empty store."""
    missing = tmp_path / "missing"
    assert cli.main([*command, "--store", str(missing)]) == 3
    assert capsys.readouterr().err == f"retention: {missing}: no store there\n"
    assert not missing.exists()


def test_an_empty_directory_is_no_store(tmp_path: Path) -> None:
    assert cli.main(["conversations", "--store", str(tmp_path)]) == 3
    assert list(tmp_path.iterdir()) == []


def test_default_store_follows_the_data_directory() -> None:
    def default(**environment: str) -> str:
        return str(terminal.default_store(environment))

    assert default(XDG_DATA_HOME="/data", HOME="/home/u") == "/data/gptel-retention"
    for unset in ({}, {"XDG_DATA_HOME": ""}, {"XDG_DATA_HOME": "relative"}):
        assert default(HOME="/home/u", **unset) == "/home/u/.local/share/gptel-retention"


def test_a_closed_pipe_is_no_error(store: Path) -> None:
    """As in `retention log ab12 | head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "retention", "--store", str(store), "conversations"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=20)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


# Tool outputs


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, str, str]:
    """Return a store, the id of its conversation and that of an output of 900 lines in it."""
    path = tmp_path / "outputs"
    store = Store.open(path)
    service = Service(store, clock=lambda: 1.0, random_id=lambda: "ab" * 16)
    service.call("initialize", b'{"protocol":1}')
    id = service.call("conversation/open", b"{}").id
    text = "".join(f"line {n} of the log, nothing wrong here\n" for n in range(1, 901))
    params = {"conversation": id, "tool": "run", "body": text}
    saved = service.call("output/save", json.dumps(params).encode())
    store.close()
    return path, id, saved.id


def test_outputs_lists_them_and_tells_what_they_saved(
    kept: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, id, output = kept

    assert cli.main(["--store", str(path), "outputs", id[:6]]) == 0
    assert output in capsys.readouterr().out
    assert cli.main(["--store", str(path), "outputs", id[:6], "--stats"]) == 0
    assert "large           1\n" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "lines"), [("3-4", (3, 4)), ("900", (900,))])
def test_recall_prints_a_part_exactly(
    kept: tuple[Path, str, str],
    arguments: str,
    lines: tuple[int, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, _, output = kept

    assert cli.main(["--store", str(path), "recall", output, "--lines", arguments]) == 0
    expected = [f"line {n} of the log, nothing wrong here\n" for n in lines]
    assert capsys.readouterr().out == "".join(expected)


def test_recall_prints_all_and_what_matches(
    kept: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _, output = kept

    assert cli.main(["--store", str(path), "recall", output]) == 0
    assert capsys.readouterr().out.count("\n") == 900
    assert cli.main(["--store", str(path), "recall", output, "--grep", "line 77 "]) == 0
    assert "line 77 of" in capsys.readouterr().out
    assert cli.main(["--store", str(path), "recall", "o000000000000"]) == 2


def test_excerpt_shows_what_a_model_would_get_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log"
    lines = [f"step {n} went fine\n" for n in range(2000)]
    lines[1000] = "fatal error: disk full\n"
    file.write_text("".join(lines))

    assert cli.main(["excerpt", str(file)]) == 0
    shown = capsys.readouterr()

    assert "fatal error: disk full" in shown.out
    assert len(shown.out) < 16_100
    assert "characters" in shown.err
    assert cli.main(["excerpt", str(tmp_path / "absent")]) == 2
