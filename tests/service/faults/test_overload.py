"""More than a service takes, and sockets that go nowhere: the admitted lose nothing, all others are told."""

import socket
import struct
import threading

import httpx
import pytest

from crucible.engine.request import Request
from crucible.engine.scheduler import Limits

PATHS = ("/v1/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages")


def body(path: str, number: int) -> dict:
    """A request of some pages on the face that `path` belongs to."""
    text = f"burst {number} " * 6
    asked: dict = {"max_tokens": 24, "temperature": 0.0}
    if path != "/v1/generate":
        asked["model"] = "tiny"
    if path in PATHS[2:]:
        return asked | {"messages": [{"role": "user", "content": text}]}
    return asked | {"prompt": text}


@pytest.fixture
def burst(serve, tiny, gate, until):
    """24 requests over all faces at once, 32 pages, a queue of 4, one that runs: (server, replies)."""
    server = serve(tiny, Limits(queue=4, pages=32, decode_batch=8), gate=gate)
    replies: dict[int, httpx.Response] = {}

    def ask(number: int) -> None:
        path = PATHS[number % len(PATHS)]
        headers = {"anthropic-version": "2023-06-01"} if path == "/v1/messages" else {}
        replies[number] = httpx.post(server.url + path, json=body(path, number), headers=headers, timeout=60)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    asking[0].start()
    until(lambda: gate.holding, "the first one runs")
    for thread in asking[1:]:
        thread.start()
    until(lambda: len(replies) == 19, "all that do not fit are told")
    gate.open()
    for thread in asking:
        thread.join(60)
    return server, replies


def test_a_burst_of_24_against_a_queue_of_4_is_answered_or_refused_and_nothing_is_lost(burst, alone):
    server, replies = burst
    admitted = {n: r for n, r in replies.items() if r.status_code == 200}
    refused = [r for r in replies.values() if r.status_code == 429]
    assert len(admitted) == 5 and len(refused) == 19
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert 0 in admitted
    assert admitted[0].json()["tokens"] == alone(Request(body(PATHS[0], 0)["prompt"], 24)).tokens
    server.idle()
    assert httpx.get(server.url + "/health/ready").status_code == 200
    again = server.post("/v1/generate", json=body(PATHS[0], 99)).json()
    assert again["tokens"] == alone(Request(body(PATHS[0], 99)["prompt"], 24)).tokens


def test_an_admitted_request_of_a_burst_has_the_text_of_its_run_later(burst):
    server, replies = burst
    for number, reply in replies.items():
        path = PATHS[number % len(PATHS)]
        if reply.status_code != 200:
            continue
        headers = {"anthropic-version": "2023-06-01"} if path == "/v1/messages" else {}
        later = server.post(path, json=body(path, number), headers=headers).json()
        assert said(later) == said(reply.json())


def said(reply: dict) -> object:
    if "choices" in reply:
        return [choice.get("text", choice.get("message")) for choice in reply["choices"]]
    return reply.get("content", reply.get("text"))


HALVES = {
    "nothing": b"",
    "a part of the head": b"POST /v1/generate HTTP/1.1\r\nhost: x\r\ncont",
    "a head without its body": b"POST /v1/generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: 500\r\n\r\n",
    "a part of a body": b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b'content-length: 500\r\n\r\n{"model": ',
    "a part of a chunk": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\nff\r\n{",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("half", HALVES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("end", ["close", "reset"])
def test_half_open_sockets_keep_nobody_from_an_answer(tiny_server, alone, half, end):
    lines = [socket.create_connection(("127.0.0.1", tiny_server.port), timeout=20) for _ in range(32)]
    for line in lines:
        line.sendall(HALVES[half])
    reply = tiny_server.post("/v1/generate", json={"prompt": "beside", "max_tokens": 6}).json()
    assert reply["tokens"] == alone(Request("beside", 6)).tokens
    for line in lines:
        if end == "reset":
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()
    tiny_server.quiet()
    tiny_server.idle()
    assert httpx.get(tiny_server.url + "/health/ready").status_code == 200
