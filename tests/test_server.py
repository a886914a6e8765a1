"""The dispatch: every message is answered with a result, a typed error, or rightly not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from retention import handover, protocol, server
from retention.errors import (
    DamagedObject,
    InvalidParams,
    NotInitialized,
    RetentionError,
    StoreFull,
    UnknownState,
)
from retention.framing import encode
from tests.wire import EchoService, RpcPair


def raising(error: Exception):
    def answer(_: object) -> object:
        raise error

    return answer


def exchange(body: bytes, service: server.Service | None = None) -> dict | None:
    """Send BODY in one frame, then `conversation/list`; return what was answered before that."""
    with RpcPair(service or EchoService()) as pair:
        pair.peer.send_body(body)
        probe = {"jsonrpc": "2.0", "id": "probe", "method": "conversation/list"}
        pair.peer.send_body(msgspec.json.encode(probe))
        first = pair.peer.receive()
        if first is not None and first["id"] == "probe":
            return None
        last = pair.peer.receive()
        assert last is not None
        assert last["id"] == "probe", "the loop goes on after an answer"
        assert first is not None
        return first


def call(method: str, /, **members: object) -> bytes:
    message = {"jsonrpc": "2.0", "id": 1, "method": method} | members
    return msgspec.json.encode(message)


def test_call_answers_with_the_result_under_its_id():
    assert exchange(call("inspect/check", params={"a": 1})) == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {"method": "inspect/check", "params": {"a": 1}},
    }


@pytest.mark.parametrize("id", ["x", "", 0, -5, 2**70, 1.5, None])
def test_ids_come_back_as_they_were_written(id: object):
    answer = exchange(call("inspect/check", id=id))
    assert answer is not None
    assert answer["id"] == id
    assert "result" in answer


@pytest.mark.parametrize("members", [{}, {"params": None}, {"params": {}}])
def test_absent_params_are_an_empty_object(members: dict):
    """jsonrpc.el writes null where a caller gave no parameters."""
    answer = exchange(call("inspect/check", **members))
    assert answer is not None
    assert answer["result"]["params"] == {}


DEEP = b'{"jsonrpc":"2.0","id":1,"method":"inspect/check","params":'
MALFORMED = {
    "empty": (b"", -32700, "parse_error", None),
    "garbage": (b"hello", -32700, "parse_error", None),
    "cut": (b'{"jsonrpc":"2.0","id":1,"meth', -32700, "parse_error", None),
    "two values": (call("inspect/check") + b"{}", -32700, "parse_error", None),
    "invalid UTF-8": (call("inspect/check", params={"a": "Z"}).replace(b"Z", b"\xff"), -32700,
                      "parse_error", None),
    "a surrogate in UTF-8": (call("inspect/check").replace(b"check", b"\xed\xa0\x80"), -32700,
                             "parse_error", None),
    "deep arrays": (DEEP + b"[" * 60_000, -32700, "parse_error", None),
    "deep objects": (DEEP + b'{"a":' * 10_000 + b"1" + b"}" * 10_001, -32700, "parse_error", None),
    "just too deep": (DEEP + b"[" * 64 + b"]" * 64 + b"}", -32700, "parse_error", None),
    "a batch": (b"[" + call("inspect/check") + b"]", -32600, "invalid_request", None),
    "an empty batch": (b"[]", -32600, "invalid_request", None),
    "a string": (b'"inspect/check"', -32600, "invalid_request", None),
    "null": (b"null", -32600, "invalid_request", None),
    "an id that is an object": (call("inspect/check", id={}), -32600, "invalid_request", None),
    "an id that is true": (call("inspect/check", id=True), -32600, "invalid_request", None),
    "a long id": (call("inspect/check", id="x" * 129), -32600, "invalid_request", None),
    "no version": (b'{"id":1,"method":"inspect/check"}', -32600, "invalid_request", 1),
    "version 1.0": (call("inspect/check", jsonrpc="1.0"), -32600, "invalid_request", 1),
    "version as a number": (call("inspect/check", jsonrpc=2.0), -32600, "invalid_request", 1),
    "no method": (b'{"jsonrpc":"2.0","id":1}', -32600, "invalid_request", 1),
    "a method that is a number": (call("x", method=7), -32600, "invalid_request", 1),
    "an unknown method": (call("inspect/nothing"), -32601, "unknown_method", 1),
    "a method by position": (call("inspect/check", params=[1]), -32602, "invalid_params", 1),
    "params that are a string": (call("inspect/check", params="x"), -32602, "invalid_params", 1),
}  # fmt: skip


@pytest.mark.parametrize(("body", "number", "code", "id"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_messages_get_a_typed_error(
    body: bytes, number: int, code: str, id: object, capfd: pytest.CaptureFixture[str]
):
    service = EchoService()

    answer = exchange(body, service)

    assert answer is not None
    assert (answer["error"]["code"], answer["error"]["data"]) == (number, {"code": code})
    assert answer["id"] == id
    assert [method for method, _ in service.calls] == ["conversation/list"]
    assert "Traceback" not in capfd.readouterr().err


def test_nesting_inside_a_string_does_not_count():
    """A payload part is JSON text in a string: its depth is the provider's business."""
    answer = exchange(call("inspect/check", params={"text": '["' * 500}))
    assert answer is not None
    assert "result" in answer


@pytest.mark.parametrize("unit", [b'\\"', b'"[', b'"{"', b"\\", b"[", b'"\\'])
def test_nesting_is_measured_in_linear_time(unit: bytes):
    """A frame of the full size takes milliseconds whatever is in it (quadratic took seconds)."""
    body = (b"[" * 70 + b'"' + unit * protocol.MAX_FRAME)[: protocol.MAX_FRAME]
    began = time.perf_counter()
    server._too_deep(body)
    assert time.perf_counter() - began < 0.5


SILENT = {
    "a notification": b'{"jsonrpc":"2.0","method":"inspect/check"}',
    "a notification of an unknown method": b'{"jsonrpc":"2.0","method":"$/cancelRequest"}',
    "a notification with bad params": b'{"jsonrpc":"2.0","method":"inspect/check","params":3}',
    "an answer": b'{"jsonrpc":"2.0","id":1,"result":{}}',
    "an error": b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}',
}


@pytest.mark.parametrize("body", SILENT.values(), ids=SILENT.keys())
def test_notifications_and_answers_get_no_answer(body: bytes):
    assert exchange(body) is None


def test_notification_is_carried_out():
    service = EchoService()
    exchange(b'{"jsonrpc":"2.0","method":"request/commit","params":{"plan":"p1"}}', service)
    assert service.calls[0] == ("request/commit", {"plan": "p1"})


ERRORS = [
    (InvalidParams("plan: expected str"), -32602, "invalid_params"),
    (NotInitialized("no"), -32000, "not_initialized"),
    (UnknownState("s4"), -32000, "resync"),
    (StoreFull("disk"), -32000, "store_full"),
    (DamagedObject("ab"), -32000, "damaged_object"),
    (RetentionError("no"), -32603, "internal"),
]


@pytest.mark.parametrize(("error", "number", "code"), ERRORS)
def test_errors_of_the_tree_cross_with_their_code_and_message(
    error: RetentionError, number: int, code: str
):
    answer = exchange(call("inspect/check"), EchoService(inspect_check=raising(error)))
    assert answer is not None
    assert answer["error"] == {"code": number, "message": str(error), "data": {"code": code}}


def test_recursion_in_a_service_is_an_invalid_payload():
    service = EchoService(inspect_check=raising(RecursionError("maximum recursion depth")))
    answer = exchange(call("inspect/check"), service)
    assert answer is not None
    assert answer["error"]["data"] == {"code": "invalid_payload"}


def test_error_messages_are_bounded_and_valid_utf_8():
    error = InvalidParams("file \udcff " + "x" * 5000)
    answer = exchange(call("inspect/check"), EchoService(inspect_check=raising(error)))
    assert answer is not None
    assert answer["error"]["message"] == "file ? " + "x" * (server.MAX_MESSAGE - 7)


@pytest.mark.parametrize("answer", [raising(KeyError("SECRET BODY")), lambda _: object()])
def test_z5_internal_error_is_logged_by_place_and_without_its_message(
    answer: object, capfd: pytest.CaptureFixture[str]
):
    """Z5: the message of an exception may quote a body."""
    found = exchange(
        call("inspect/check", params={"t": "SECRET"}), EchoService(inspect_check=answer)
    )

    assert found is not None
    assert found["error"]["code"] == -32603
    assert found["error"]["data"] == {"code": "internal"}
    logged = capfd.readouterr().err
    assert "server.py" in logged
    assert "SECRET" not in logged + str(found)


def test_z5_debug_flag_logs_the_message(capfd: pytest.CaptureFixture[str]):
    service = EchoService(inspect_check=raising(KeyError("SECRET")))
    with RpcPair(service, debug=True) as pair:
        pair.peer.request("inspect/check")
    assert "KeyError: 'SECRET'" in capfd.readouterr().err


# Streams


def test_shutdown_is_answered_and_ends_the_loop():
    with RpcPair(EchoService()) as pair:
        assert "result" in pair.peer.request("shutdown")
        assert pair.peer.receive() is None
        assert pair.join() == server.EXIT_DONE


def test_shutdown_ends_the_loop_even_when_the_service_fails():
    with RpcPair(EchoService(shutdown=raising(StoreFull("disk")))) as pair:
        assert pair.peer.request("shutdown")["error"]["data"] == {"code": "store_full"}
        assert pair.join() == server.EXIT_DONE


def test_nothing_is_carried_out_after_shutdown():
    service = EchoService()
    with RpcPair(service) as pair:
        pair.peer.send(encode(call("shutdown")) + encode(call("inspect/check")))
        pair.join()
    assert [method for method, _ in service.calls] == ["shutdown"]


def test_end_of_input_ends_the_loop():
    with RpcPair(EchoService()) as pair:
        pair.peer.hang_up()
        assert pair.peer.receive() is None
        assert pair.join() == server.EXIT_DONE


@pytest.mark.parametrize("cut", [b"Content-Le", b"Content-Length: 10\r\n\r\n{"])
def test_end_of_input_within_a_frame_ends_the_loop_and_is_logged(
    cut: bytes, capfd: pytest.CaptureFixture[str]
):
    with RpcPair(EchoService()) as pair:
        pair.peer.send(cut)
        pair.peer.hang_up()
        assert pair.peer.receive() is None
        assert pair.join() == server.EXIT_DONE
    assert "the stream ended after" in capfd.readouterr().err


@pytest.mark.parametrize(
    "stream",
    [b"hello\r\n\r\n", b"Content-Length: x\r\n\r\n", b"{}\n", b"x" * 2000, encode(b"x" * 65537)],
)
def test_bytes_that_are_no_frame_are_answered_once_and_end_the_loop(stream: bytes):
    with RpcPair(EchoService()) as pair:
        pair.peer.send(encode(call("inspect/check")) + stream[:60_000])

        assert "result" in (pair.peer.receive() or {})
        answer = pair.peer.receive()
        assert answer is not None
        assert (answer["id"], answer["error"]["code"]) == (None, -32700)
        assert answer["error"]["data"] == {"code": "framing"}
        assert pair.peer.receive() is None
        assert pair.join() == server.EXIT_BAD_INPUT


def test_bytes_may_arrive_one_by_one():
    with RpcPair(EchoService()) as pair:
        for byte in encode(call("inspect/check")):
            pair.peer.send(bytes([byte]))
        assert "result" in (pair.peer.receive() or {})


def test_a_frame_of_the_full_size_is_answered():
    padding = "x" * (protocol.MAX_FRAME - len(call("inspect/check", params={"p": ""})))
    body = call("inspect/check", params={"p": padding})
    assert len(body) == protocol.MAX_FRAME

    answer = exchange(body, EchoService(inspect_check=lambda params: len(params["p"])))

    assert answer is not None
    assert answer["result"] == len(padding)


def test_loop_ends_when_the_client_reads_no_more_and_closes():
    with RpcPair(EchoService(inspect_check=lambda _: "x" * 60_000)) as pair:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, pair.peer.reads)
        os.close(null)
        pair.peer.send_body(call("inspect/check"))
        assert pair.join() == server.EXIT_DONE


def test_loop_wakes_up_while_it_waits_for_input():
    with RpcPair(EchoService()) as pair:
        pair.wake()
        assert pair.join() == server.EXIT_DONE


def test_loop_wakes_up_while_the_client_does_not_read():
    """A signal ends the backend even if its client stopped reading with a full pipe."""
    began = []

    def answer(_: object) -> str:
        began.append(1)
        return "x" * 60_000

    with RpcPair(EchoService(inspect_check=answer)) as pair:
        for _ in range(5):
            pair.peer.send_body(call("inspect/check"))
        deadline = time.monotonic() + 20
        while len(began) < 2 and time.monotonic() < deadline:
            os.sched_yield()
        pair.wake()
        assert pair.join() == server.EXIT_DONE


# Hand-over of large answers


def initialize(directory: Path) -> dict[str, object]:
    return {"protocol": 1, "client": "test", "handover": str(directory)}


def test_a_large_result_is_handed_over(tmp_path: Path):
    with RpcPair(EchoService(inspect_log=lambda _: {"t": "é" * 100_000})) as pair:
        pair.peer.request("initialize", initialize(tmp_path))
        result = pair.peer.result("inspect/log")

    data = handover.read_text(msgspec.convert(result, protocol.File))
    assert msgspec.json.decode(data) == {"t": "é" * 100_000}


def test_a_large_result_without_a_directory_is_an_error():
    with RpcPair(EchoService(inspect_log=lambda _: "x" * 100_000)) as pair:
        pair.peer.request("initialize", {"protocol": 1})
        answer = pair.peer.request("inspect/log")
    assert answer["error"]["data"] == {"code": "hand_over"}


def test_every_answer_fits_a_frame(tmp_path: Path):
    """The largest result that stays inline, under the longest id."""
    text = "x" * (server.MAX_RESULT - 2)
    with RpcPair(EchoService(inspect_log=lambda _: text)) as pair:
        pair.peer.request("initialize", initialize(tmp_path))
        pair.peer.send_body(call("inspect/log", id="i" * protocol.MAX_ID))
        body = pair.peer.receive_body()
    assert body is not None
    assert len(body) <= protocol.MAX_FRAME
    assert msgspec.json.decode(body)["result"] == text


def test_initialize_sweeps_the_hand_over_directory(tmp_path: Path):
    stale = Path(handover.write_file(str(tmp_path), b"x").file)
    os.utime(stale, (-handover.STALE - 1, -handover.STALE - 1))  # the pair's clock stands at 0
    with RpcPair(EchoService()) as pair:
        assert "result" in pair.peer.request("initialize", initialize(tmp_path))
    assert not stale.exists()


def test_initialize_with_a_missing_directory_is_logged(capfd: pytest.CaptureFixture[str]):
    with RpcPair(EchoService()) as pair:
        assert "result" in pair.peer.request("initialize", initialize(Path("/no/such")))
    assert "/no/such" in capfd.readouterr().err
