"""The short way to an endpoint answers as FastAPI's own way does."""

import asyncio
import json

import pytest

from crucible.engine.engine import Engine
from crucible.engine.scheduler import Limits
from crucible.service import answers
from crucible.service.app import create_app
from crucible.service.backend import LocalBackend
from crucible.service.direct import Direct
from crucible.service.route import StrictRoute
from crucible.service.state import Settings

HI = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
HEADED = ((b"anthropic-version", b"2023-06-01"),)
# (path, body, more headers): a good request of every face, and one for every kind of refusal.
ASKED = {
    "generate": ("/v1/generate", {"prompt": "hi", "max_tokens": 2}, ()),
    # One token: how many share an event depends on when they are read.
    "streamed": ("/v1/generate", {"prompt": "hi", "max_tokens": 1, "stream": True}, ()),
    "tokenize": ("/v1/tokenize", {"text": "hi"}, ()),
    "chat": ("/v1/chat/completions", {"model": "tiny", **HI, "max_tokens": 2, "seed": 3}, ()),
    "messages": ("/v1/messages", {"model": "tiny", **HI, "max_tokens": 2}, HEADED),
    "headless": ("/v1/messages", {"model": "tiny", **HI, "max_tokens": 2}, ()),
    "not_json": ("/v1/generate", b"{", ()),
    "array": ("/v1/messages", b"[]", HEADED),
    "unknown_field": ("/v1/generate", {"prompt": "hi", "colour": 1}, ()),
    "deep_field": ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user"}]}, ()),
    "wrong_value": ("/v1/messages", {"model": "tiny", **HI, "max_tokens": 0}, HEADED),
    "other_model": ("/v1/completions", {"model": "large", "prompt": "hi"}, ()),
    "engine_rule": ("/v1/generate", {"prompt": [999999]}, ()),
}


@pytest.fixture(scope="module")
def app(engine_of_tiny):
    return create_app(LocalBackend(engine_of_tiny), Settings("tiny"))


@pytest.fixture(scope="module")
def engine_of_tiny(tiny):
    with Engine(tiny, Limits(pages=64)) as engine:
        yield engine


def ask(app, path: str, body, headers=(), root: str = "") -> tuple[int, dict, bytes]:
    """(status, headers, body) of a POST; `root` is a prefix that FastAPI alone takes away."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    waiting = [{"type": "http.request", "body": raw, "more_body": False}]
    sent = []

    async def go():
        over = asyncio.Event()

        async def receive():
            if waiting:
                return waiting.pop()
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "http_version": "1.1", "scheme": "http", "server": ("t", 1), "client": ("t", 2),
            "method": "POST", "root_path": root, "path": root + path, "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), *headers],
        }  # fmt: skip
        await app(scope, receive, send)

    asyncio.run(go())
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:])


def told(answer: tuple[int, dict, bytes]):
    """An answer without what differs between two equal requests: ids, times, rows that were cached."""
    status, headers, body = answer
    own = headers[b"x-request-id"].removeprefix(b"req_")
    lines = []
    for line in body.replace(own, b"ID").decode().split("\n"):
        head, brace, rest = line.partition("{")
        if not brace:
            lines.append(line)
            continue
        value = json.loads(brace + rest)
        for name in ("timings", "created"):
            value.pop(name, None)
        if isinstance(value.get("usage"), dict):
            value["usage"] = {k: v for k, v in value["usage"].items() if k.endswith("_tokens")}
        lines.append((head, value))
    names = sorted(name for name in headers if name != b"content-length")
    return status, names, headers.get(b"content-type"), lines


@pytest.mark.parametrize("kind", ASKED)
def test_a_request_is_answered_as_by_fastapis_own_way(app, kind, monkeypatch):
    path, body, headers = ASKED[kind]
    short = ask(app, path, body, headers)
    monkeypatch.setattr(Direct, "_find", lambda self, scope: None)
    long = ask(app, path, body, headers)
    assert told(short) == told(long)


def test_every_post_with_a_body_takes_the_short_way(app, monkeypatch):
    taken = []
    find = Direct._find

    def noting(self, scope):
        found = find(self, scope)
        taken.append(found.path if found else None)
        return found

    monkeypatch.setattr(Direct, "_find", noting)
    routes = [route for face in answers.FACES.values() for route in face.router().routes]
    paths = {route.path for route in routes if isinstance(route, StrictRoute) and "POST" in route.methods}
    for path in paths:
        ask(app, path, b"{}", HEADED)
    assert len(paths) >= 6 and set(taken) == paths


def test_a_prefix_that_a_proxy_adds_is_fastapis_to_take_away(app):
    path, body, headers = ASKED["generate"]
    assert ask(app, path, body, headers, root="/behind")[0] == 200
