"""The server as such: records, controls, the process, and what it never keeps."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.loopback import Loopback, Recorded, Strictness
from tests.loopback_client import PATHS, Client, ask, prompt, read, streaming

ROOT = Path(__file__).parent.parent
ODD = b'{ "messages" : [{"content":"\\u00e9 \xc3\xa9","role":"user"}],\n"model":"m"}'


def test_requests_are_kept_byte_for_byte_in_order() -> None:
    with Loopback() as server:
        ask(server, PATHS["openai"], ODD)
        ask(server, PATHS["openai"], {"model": "m"})

        first, second = server.requests
    assert first == Recorded(
        seq=1,
        path=PATHS["openai"],
        api="openai",
        body=ODD,
        json=json.loads(ODD),
        status=200,
        refusal=None,
        issued=({"role": "assistant", "content": "Reply 1."},),
    )
    assert second.meta == {
        "seq": 2,
        "path": PATHS["openai"],
        "api": "openai",
        "status": 400,
        "refusal": "Missing required parameter: 'messages'.",
    }


def test_refusals_are_told_apart() -> None:
    with Loopback() as server:
        ask(server, PATHS["openai"], prompt("openai"))
        assert server.refusals == []

        ask(server, PATHS["openai"], {})
        assert [each.seq for each in server.refusals] == [2]


def test_files_hold_the_body_and_what_became_of_it(tmp_path: Path) -> None:
    with Loopback(record=tmp_path / "new") as server:
        ask(server, PATHS["openai"], ODD)
        ask(server, "/nowhere", b"{}")

    assert {path.name: path.read_bytes() for path in (tmp_path / "new").glob("*[0-9].json")} == {
        "0001.json": ODD,
        "0002.json": b"{}",
    }
    assert [json.loads((tmp_path / "new" / f"000{n}.meta.json").read_bytes()) for n in (1, 2)] == [
        {"path": PATHS["openai"], "api": "openai", "status": 200, "refusal": None},
        {"path": "/nowhere", "api": None, "status": 404, "refusal": "not found"},
    ]


def test_credentials_are_kept_nowhere(tmp_path: Path) -> None:
    secrets = {"Authorization": "Bearer s3cret", "x-api-key": "s3cret", "X-goog-api-key": "s3cret"}
    path = PATHS["gemini"] + "?alt=sse&key=s3cret"
    with Loopback(record=tmp_path) as server:
        ask(server, path, prompt("gemini"), headers=secrets)
        shown = ask(server, "/__requests", method="GET").body

        assert [each.path for each in server.requests] == [PATHS["gemini"] + "?alt=sse"]
        assert "s3cret" not in repr(server.requests)
    assert b"s3cret" not in shown
    assert not [path for path in tmp_path.iterdir() if b"s3cret" in path.read_bytes()]


BAD_BODIES = {"not JSON": b"{", "not UTF-8": b'{"a":"\xff"}', "no object": b"[]", "empty": b""}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
@pytest.mark.parametrize("api", PATHS)
def test_body_that_is_no_object_is_refused_in_the_envelope(api: str, body: bytes) -> None:
    with Loopback() as server:
        got = ask(server, PATHS[api], body)

        assert got.status == 400
        assert "not a JSON object" in got.body.decode()
        assert set(got.json) <= {"error", "type", "object", "message", "param", "code", "user_id"}
        assert server.requests[0].body == body


ROUTES = {
    "/v1/messages": "anthropic",
    "/anthropic/v1/messages": "anthropic",
    "/v1/chat/completions": "openai",
    "/chat/completions": "openai",
    "/api/paas/v4/chat/completions": "openai",
    "/copilot/chat/completions": "copilot",
    "/copilot/v1/chat/completions": "copilot",
    "/mistral/v1/chat/completions": "mistral",
    "/deepseek/chat/completions": "deepseek",
    "/deepseek/v1/chat/completions": "deepseek",
    "/v1/responses": "responses",
    "/copilot/v1/responses": "responses",
    "/v1beta/models/gemini-3-pro:generateContent": "gemini",
    "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse": "gemini",
    "/api/chat": "ollama",
    "/model/anthropic.claude-opus-4-6-v1/converse": "bedrock",
    "/model/us.anthropic.claude-sonnet-4-5-v1%3A0/converse-stream": "bedrock",
    "/v1/messages/batches": None,
    "/v1beta/models/gemini-3-pro:countTokens": None,
    "/": None,
}


@pytest.mark.parametrize(("path", "api"), ROUTES.items())
def test_path_chooses_the_api(path: str, api: str | None) -> None:
    with Loopback() as server:
        got = ask(server, path, {})

        assert server.requests[0].api == api
        assert got.status == (400 if api else 404)


def test_get_is_no_request_of_an_api() -> None:
    with Loopback() as server:
        assert ask(server, PATHS["openai"], method="GET").status == 404


def test_controls_show_requests() -> None:
    with Loopback() as server:
        ask(server, PATHS["openai"], ODD)
        metas = ask(server, "/__requests", method="GET").json

        assert metas == [each.meta for each in server.requests]
        assert ask(server, "/__requests/1", method="GET").body == ODD


def test_controls_replace_script_and_forget_requests(tmp_path: Path) -> None:
    with Loopback([{"text": "old"}], record=tmp_path) as server:
        ask(server, "/__script", [{"text": "new"}])
        assert read("openai", ask(server, PATHS["openai"], prompt("openai"))) == ("new", [])

        assert ask(server, "/__reset").json == {"ok": True}
        assert server.requests == []
        assert list(tmp_path.iterdir()) == []

        options: dict[str, Any] = {"chunk": 0, "strictness": {"strict_ids": True}}
        ask(server, "/__reset", {**options, "script": [{"text": "newer"}]})
        assert read("openai", ask(server, PATHS["openai"], prompt("openai"))) == ("newer", [])
        assert (server.chunk, server.strictness) == (None, Strictness(strict_ids=True))
        assert server.requests[0].seq == 1


BAD_CONTROLS = [
    ("POST", "/__script", {"text": "no list"}),
    ("POST", "/__script", [{"txt": ""}]),
    ("POST", "/__script", b"nonsense"),
    ("POST", "/__reset", {"strictness": {"no_such": True}}),
    ("POST", "/__reset", {"strictness": {"strict_ids": 1}}),
    ("POST", "/__reset", {"strictness": {"thinking": True}}),
    ("POST", "/__reset", {"strictness": {"thinking": "strange"}}),
    ("POST", "/__reset", {"colour": "red"}),
    ("POST", "/__reset", [1]),
    ("POST", "/__nothing", {}),
    ("GET", "/__nothing", None),
    ("GET", "/__requests/7", None),
]


@pytest.mark.parametrize(("method", "path", "body"), BAD_CONTROLS)
def test_control_that_is_wrong_changes_nothing(method: str, path: str, body: Any) -> None:
    with Loopback([{"text": "old"}], chunk=7) as server:
        assert ask(server, path, body, method=method).status == 400
        assert read("openai", ask(server, PATHS["openai"], prompt("openai"))) == ("old", [])
        assert (server.chunk, server.strictness) == (7, Strictness())


def test_requests_at_once_get_numbers_and_answers_of_their_own() -> None:
    count = 20
    with Loopback([{"text": f"{n}"} for n in range(count)]) as server:
        found = []

        def work() -> None:
            found.append(read("openai", ask(server, PATHS["openai"], prompt("openai")))[0])

        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(map(int, found)) == list(range(count))
        assert [each.seq for each in server.requests] == list(range(1, count + 1))


def test_connection_serves_several_requests() -> None:
    path, body = streaming("openai", prompt("openai"))
    with Loopback() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for _ in range(3):
            connection.request("POST", path, json.dumps(body))
            assert connection.getresponse().read().endswith(b"[DONE]\n\n")
        connection.close()


@pytest.mark.parametrize("streamed", [False, True])
def test_cut_closes_the_connection_in_the_middle(streamed: bool) -> None:
    target = streaming("openai", prompt("openai"))
    if not streamed:
        target = (PATHS["openai"], prompt("openai"))
    with Loopback([{"text": "never whole", "cut": 30}, {"text": "whole"}]) as server:
        with pytest.raises(http.client.IncompleteRead):
            ask(server, *target)

        assert ask(server, *target).status == 200


def test_client_that_goes_away_leaves_the_server_well(capfd: pytest.CaptureFixture[str]) -> None:
    path, body = streaming("openai", prompt("openai"))
    with Loopback([{"text": "long " * 100_000}], chunk=7) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("POST", path, json.dumps(body))
        connection.getresponse().read(50)
        connection.close()

        assert ask(server, PATHS["openai"], prompt("openai")).status == 200
    assert capfd.readouterr() == ("", "")


def start(*arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    command = [sys.executable, "-m", "tests.loopback", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["port"]


def talk(port: int, path: str, body: Any) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body))
        return connection.getresponse().read()
    finally:
        connection.close()


@pytest.mark.parametrize("way", ["SIGTERM", "end of input"])
def test_process_serves_and_ends_cleanly(way: str, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "ĝis"}]', encoding="utf-8")
    process, port = start("--script", str(script), "--record", str(tmp_path / "r"), "--chunk", "1")

    answer = talk(port, *streaming("openai", prompt("openai")))
    if way == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)

    assert "ĝis" in answer.decode()
    assert (process.returncode, out, err) == (0, b"", b"")
    assert (tmp_path / "r" / "0001.meta.json").exists()


def test_process_takes_flags_of_strictness() -> None:
    process, port = start("--strict-ids")
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        ],
    }
    answer = talk(port, PATHS["mistral"], body)
    process.communicate(timeout=10)

    assert b"Tool call id was call_1 but must be" in answer


def test_process_takes_the_mode_of_thinking() -> None:
    process, port = start("--thinking", "bound", "--exact")
    reset = talk(port, "/__reset", {"strictness": {"thinking": "required", "exact": False}})
    process.communicate(timeout=10)

    assert json.loads(reset) == {"ok": True}


def test_reset_forgets_what_was_issued() -> None:
    """A text of the time before is nobody's any more, and nothing of it is cached."""
    flags = {"strictness": {"exact": True}}
    with Loopback(strictness=Strictness(exact=True)) as server:
        client = Client(server=server, api="openai")
        client.prompt()
        client.array[-1]["content"] += " "
        assert client.prompt().status == 400

        assert ask(server, "/__reset", flags).json == {"ok": True}
        usage = client.send().json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
