"""Clients that leave: the request ends at the next step, its pages come back, the others go on."""

import json
import socket

import pytest

from crucible.engine.request import Request
from crucible.engine.scheduler import Limits


def connect(server, **fields) -> socket.socket:
    """Post to /v1/generate over a bare socket and leave the reply unread."""
    body = json.dumps(fields).encode()
    head = "POST /v1/generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    line = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return line


def read_until(line: socket.socket, mark: bytes) -> bytes:
    found = bytearray()
    while found.find(mark, max(0, len(found) - 70000)) < 0:
        part = line.recv(1 << 16)
        assert part, f"the reply ended before {mark!r}: {found[-500:]!r}"
        found += part
    return bytes(found)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("moment", ["queued", "prefilling", "decoding"])
def test_a_client_that_leaves_ends_its_request_and_no_other(serve, tiny, gate, until, alone, stream, moment):
    server = serve(tiny, Limits(prefill_budget=32, decode_batch=2, pages=64), gate=gate)
    engine = server.engine
    stayed = connect(server, prompt="stay", max_tokens=12)
    until(lambda: engine.stats().totals.submitted == 1, "the first is in")
    if moment == "queued":
        other = connect(server, prompt="also", max_tokens=12)
        until(lambda: engine.stats().totals.submitted == 2 or _pending(engine) == 2, "the second is in")
    leaving = connect(server, prompt="leave" * 20, max_tokens=500, stream=stream)
    until(lambda: _pending(engine) == (3 if moment == "queued" else 2), "the last is in")
    gate.let({"queued": 2, "prefilling": 2, "decoding": 8}[moment])
    if moment == "decoding":
        until(lambda: engine.stats().totals.decode_rows >= 6, "both decode")
    leaving.close()
    until(lambda: engine._cancelled or engine.stats().totals.cancelled, "the server has seen it leave")
    gate.open()
    until(lambda: engine.stats().totals.cancelled == 1, "the one that left is cancelled")
    for line, prompt in [(stayed, "stay")] + ([(other, "also")] if moment == "queued" else []):
        reply = read_until(line, b'"timings"').split(b"\r\n\r\n", 1)[1]
        tokens = alone(Request(prompt, 12)).tokens
        assert b'"tokens":%s,' % json.dumps(tokens, separators=(",", ":")).encode() in reply
        line.close()
    server.idle()
    assert engine.stats().totals.cancelled == 1


def _pending(engine) -> int:
    return len(engine._live)


def test_a_stream_cut_after_its_first_event_gives_its_pages_back(serve, tiny, gate, until):
    server = serve(tiny, Limits(pages=80), gate=gate)
    gate.let(8)
    line = connect(server, prompt="cut", max_tokens=1000, stream=True, ignore_eos=True)
    read_until(line, b"event: tokens")
    line.close()
    until(lambda: server.service.inflight == 0, "the server has seen it leave")
    gate.open()
    until(lambda: server.engine.stats().totals.cancelled == 1, "it is cancelled")
    server.idle()
    assert server.engine.stats().totals.tokens < 1000


def test_many_that_leave_at_once_leave_nothing_behind(serve, tiny, gate, until, alone):
    server = serve(tiny, Limits(decode_batch=8, pages=256), gate=gate)
    asked = {"max_tokens": 900, "ignore_eos": True}
    lines = [connect(server, prompt=f"n{n}", stream=bool(n % 2), **asked) for n in range(16)]
    until(lambda: _pending(server.engine) == 16, "all are in")
    gate.let(12)
    until(lambda: server.engine.stats().totals.tokens > 20, "some decode")
    for line in lines:
        line.close()
    until(lambda: server.service.inflight == 0, "the server has seen them leave")
    gate.open()
    server.idle()
    reply = server.post("/v1/generate", json={"prompt": "after", "max_tokens": 9}).json()
    assert reply["tokens"] == alone(Request("after", 9)).tokens
    assert server.engine.stats().totals.cancelled == 16 and server.service.inflight == 0


def test_a_client_that_reads_slowly_slows_nobody(serve, tiny, alone):
    server = serve(tiny)
    slow = connect(server, prompt="slow", max_tokens=600, stream=True, logprobs=64, ignore_eos=True)
    reply = server.post("/v1/generate", json={"prompt": "quick", "max_tokens": 9}).json()
    assert reply["tokens"] == alone(Request("quick", 9)).tokens
    server.idle()  # the engine is done with the slow one, which has read nothing yet
    text = read_until(slow, b"\r\n0\r\n\r\n").decode()
    slow.close()
    assert text.count("event: end") == 1


def test_tokens_arrive_while_the_rest_is_still_to_come(serve, tiny, gate):
    server = serve(tiny, gate=gate)
    line = connect(server, prompt="now", max_tokens=5, stream=True)
    got = []
    for n in range(1, 6):
        gate.let(1)
        got.append(read_until(line, b"\n\n\r\n" if n < 5 else b"event: end"))
    assert all(part.count(b"event: tokens") == 1 for part in got), got
    gate.open()
    line.close()
