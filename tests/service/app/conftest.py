"""Requests that every face takes, and where a face says what was wrong."""

from dataclasses import dataclass

import httpx
import pytest

HI = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Face:
    """A path that generates, a small body for it, and how an error of the face is read.

    The seed is of an answer of two tokens: one that is drawn may end the answer before.
    """

    name: str
    path: str
    body: dict
    message: tuple[str, ...] = ("error", "message")
    headers: tuple[tuple[str, str], ...] = ()

    def said(self, reply: httpx.Response) -> str:
        """The sentence of an error; fails if the reply has not the face's shape."""
        found = reply.json()
        assert set(found) == KEYS[self.name], found
        for key in self.message:
            found = found[key]
        return found


KEYS = {"native": {"error", "request_id"}, "openai": {"error"}, "anthropic": {"type", "error", "request_id"}}
FACES = [
    Face("native", "/v1/generate", {"prompt": "hi", "max_tokens": 2}),
    Face("openai", "/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 2, "seed": 1}),
    Face("openai", "/v1/chat/completions", {"model": "tiny", "messages": HI, "max_tokens": 2, "seed": 1}),
    Face(
        "anthropic",
        "/v1/messages",
        {"model": "tiny", "messages": HI, "max_tokens": 2, "seed": 1},
        headers=(("anthropic-version", "2023-06-01"),),
    ),
]


@pytest.fixture(params=FACES, ids=lambda face: face.path.removeprefix("/v1/").replace("/", "_"))
def face(request) -> Face:
    """Each generating path in turn."""
    return request.param


@pytest.fixture
def post():
    """post(server, face, **options) -> its reply; the face's own body, or `json` or `content`."""

    def post(server, face: Face, headers=None, **options) -> httpx.Response:
        options = options if {"json", "content"} & options.keys() else {"json": face.body, **options}
        return server.post(face.path, headers={**dict(face.headers), **(headers or {})}, **options)

    return post
