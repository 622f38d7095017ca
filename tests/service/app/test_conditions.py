"""Keys, health, and the conditions in which nothing new is taken."""

import threading

import pytest

from crucible.engine.request import Request
from crucible.engine.scheduler import Limits
from crucible.service.state import Settings

KEY = "correct horse"


@pytest.fixture(scope="module")
def locked(serve_once, tiny):
    """A server with an API key."""
    return serve_once(tiny, settings=Settings("tiny", api_key=KEY))


@pytest.mark.parametrize(
    "headers",
    [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"x-api-key": KEY}],
    ids=["bearer", "bearer_in_small_letters", "x-api-key"],
)
def test_the_key_lets_in(locked, post, face, headers):
    assert post(locked, face, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"authorization": "Bearer"},
        {"x-api-key": ""},
        {"x-api-key": KEY + "x"},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": "caf\u00e9".encode()},
    ],
    ids=["none", "wrong", "bare", "basic", "empty", "empty_x", "longer", "shorter", "not_ascii"],
)
def test_without_the_key_it_is_a_401_in_the_face_s_shape(locked, post, face, headers):
    reply = post(locked, face, headers=headers)
    assert reply.status_code == 401 and "API key" in face.said(reply)
    assert reply.headers["www-authenticate"] == "Bearer" and KEY not in reply.text


@pytest.mark.parametrize("path", ["/metrics", "/stats", "/openapi.json", "/v1/models", "/nowhere"])
def test_nothing_else_is_told_without_the_key(locked, path):
    assert locked.get(path).status_code == 401


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_is_open(locked, path, method):
    assert locked.client.request(method, path).status_code == 200


def test_without_a_key_set_any_key_is_taken(tiny_server, post, face):
    assert post(tiny_server, face, headers={"x-api-key": "whatever"}).status_code == 200


@pytest.fixture(scope="module")
def open_server(serve_once, tiny):
    """A server whose condition the tests change and change back."""
    return serve_once(tiny)


@pytest.mark.parametrize("condition", ["loading", "draining"])
def test_nothing_new_is_taken_while(open_server, post, face, condition):
    server = open_server
    setattr(server.service, condition, True)
    reply = post(server, face)
    assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
    assert {"loading": "loading", "draining": "shutting down"}[condition] in face.said(reply)
    health = server.get("/health/ready")
    assert health.status_code == 503 and health.json()["status"] == condition
    assert health.headers["retry-after"] == "1"
    assert server.get("/health/live").status_code == 200
    assert server.get("/stats").json()["status"] == condition
    setattr(server.service, condition, False)
    assert post(server, face).status_code == 200


def test_a_dead_engine_is_a_503_that_says_why(serve, tiny, gate, post, face, until):
    server = serve(tiny, gate=gate)
    gate.fail(RuntimeError("the device fell off"))
    first = post(server, face)
    assert first.status_code == 503 and "the device fell off" in face.said(first)
    until(lambda: server.engine.failure, "the engine has stopped")
    again = post(server, face)
    assert again.status_code == 503 and "the device fell off" in face.said(again)
    health = server.get("/health/ready")
    assert health.status_code == 503 and health.json()["status"] == "dead"
    assert [reply.headers["retry-after"] for reply in (first, again, health)] == ["1"] * 3
    assert "the device fell off" in health.json()["why"]
    assert "the device fell off" in server.get("/stats").json()["failure"]


def test_draining_lets_what_runs_end_with_its_own_tokens(serve, tiny, gate, until, alone, parse_events):
    server = serve(tiny, gate=gate)
    replies = {}

    def ask(stream: bool) -> None:
        body = {"prompt": "last words", "max_tokens": 8, "stream": stream}
        replies[stream] = server.post("/v1/generate", json=body)

    asking = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
    for thread in asking:
        thread.start()
    until(lambda: len(server.engine._live) == 2, "both are in")
    gate.let(2)
    server.service.draining = True
    refused = server.post("/v1/generate", json={"prompt": "late", "max_tokens": 1})
    gate.open()
    for thread in asking:
        thread.join(30)
    tokens = alone(Request("last words", 8)).tokens
    assert refused.status_code == 503
    assert replies[False].json()["tokens"] == tokens
    assert parse_events(replies[True].text)[-1][1]["tokens"] == tokens


def test_drain_waits_for_replies_and_says_if_they_did_not_end(serve, tiny, gate, until):
    import asyncio

    server = serve(tiny, gate=gate)
    body = {"prompt": "x", "max_tokens": 2}
    asking = threading.Thread(target=lambda: server.post("/v1/generate", json=body))
    asking.start()
    until(lambda: gate.holding, "it runs")
    assert asyncio.run(server.service.drain(0.05)) is False
    gate.open()
    assert asyncio.run(server.service.drain(20)) is True
    assert server.service.draining and server.service.inflight == 0
    asking.join(30)


def test_a_full_queue_is_a_429_and_the_admitted_lose_nothing(serve, tiny, gate, until, post, face, alone):
    server = serve(tiny, Limits(queue=2, decode_batch=1, pages=64), gate=gate)
    body, admitted = {"prompt": "early", "max_tokens": 5}, []
    ask = lambda: admitted.append(server.post("/v1/generate", json=body))  # noqa: E731
    asking = [threading.Thread(target=ask) for _ in range(3)]
    asking[0].start()
    until(lambda: gate.holding, "the first runs")
    for thread in asking[1:]:
        thread.start()
    until(lambda: len(server.engine._live) == 3, "the others wait")
    reply = post(server, face)
    assert reply.status_code == 429 and reply.headers["retry-after"] == "1"
    assert "2 requests wait" in face.said(reply)
    gate.open()
    for thread in asking:
        thread.join(30)
    tokens = alone(Request("early", 5)).tokens
    assert [one.json()["tokens"] for one in admitted] == [tokens] * 3
    assert post(server, face).status_code == 200


def test_retry_after_is_the_setting(serve, tiny):
    server = serve(tiny, settings=Settings("tiny", retry_after=7))
    server.service.draining = True
    reply = server.post("/v1/generate", json={"prompt": "x", "max_tokens": 1})
    assert reply.headers["retry-after"] == "7"
