"""Connections that carry more than one request: whatever an answer was, the next one is its own."""

import http.client
import json
import socket

import pytest

from crucible.engine.request import Request


@pytest.fixture
def line(tiny_server):
    """A bare connection to the shared server."""
    with socket.create_connection(("127.0.0.1", tiny_server.port), timeout=20) as made:
        yield made


def head(path: str, length: int, *more: str, kind: str = "application/json") -> bytes:
    lines = (f"POST {path} HTTP/1.1", "host: x", f"content-type: {kind}", f"content-length: {length}", *more)
    return "\r\n".join((*lines, "", "")).encode()


def asked(path: str, body: dict, *more: str) -> bytes:
    raw = json.dumps(body).encode()
    return head(path, len(raw), *more) + raw


class Replies:
    """Replies one after the other, from one buffer: http.client would take the next one's bytes with it."""

    def __init__(self, line: socket.socket):
        self._read = line.makefile("rb")

    def next(self) -> tuple[int, http.client.HTTPMessage, bytes]:
        """(status, headers, body); the body is joined where it came in chunks."""
        status = int(self._read.readline().split()[1])
        headers = http.client.parse_headers(self._read)
        if headers["transfer-encoding"] != "chunked":
            return status, headers, self._read.read(int(headers["content-length"] or 0))
        body = b""
        while size := int(self._read.readline(), 16):
            body += self._read.read(size)
            self._read.readline()
        self._read.readline()
        return status, headers, body

    @property
    def over(self) -> bool:
        """Nothing more comes: the server has closed its end."""
        return not self._read.read(1)


WRONG = {
    "not JSON": head("/v1/generate", 1) + b"{",
    "too large": head("/v1/generate", 5 << 20) + b" " * (5 << 20),
    "another kind": head("/v1/generate", 2, kind="text/plain") + b"{}",
    "another path": asked("/v1/generate/", {"prompt": "x"}),
    "another method": b"GET /v1/generate HTTP/1.1\r\nhost: x\r\n\r\n",
    "an unknown field": asked("/v1/generate?stream=true", {"colour": 1}),
    "a rule of the engine": asked("/v1/chat/completions", {"model": "tiny", "messages": []}),
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda name: name.replace(" ", "-"))
def test_after_a_refusal_the_connection_gives_the_answers_that_were_asked_for(line, alone, wrong):
    replies = Replies(line)
    for prompt in ("one", "two"):
        line.sendall(WRONG[wrong])
        assert 400 <= replies.next()[0] < 500
        line.sendall(asked("/v1/generate", {"prompt": prompt, "max_tokens": 4}))
        status, _, body = replies.next()
        assert status == 200 and json.loads(body)["tokens"] == alone(Request(prompt, 4)).tokens


def test_requests_that_do_not_wait_for_replies_get_them_in_their_order(line, alone):
    prompts = ["a", "bc", "d" * 40, "e"]
    line.sendall(
        b"".join(
            asked("/v1/generate", {"prompt": prompt, "max_tokens": 6, "stream": at % 2 == 1})
            for at, prompt in enumerate(prompts)
        )
    )
    replies = Replies(line)
    for at, prompt in enumerate(prompts):
        status, _, body = replies.next()
        whole = json.loads(body.split(b"event: end\ndata: ")[1] if at % 2 else body)
        assert status == 200 and whole["tokens"] == alone(Request(prompt, 6)).tokens


EXPECT = "expect: 100-continue"


@pytest.mark.parametrize("kind, length", [("application/json", 99_999_999), ("text/plain", 50)])
def test_a_body_that_waits_for_leave_and_gets_none_ends_the_connection(line, face, kind, length):
    """Its client does not send it: what came next on the connection would pass for it."""
    line.sendall(head(face.path, length, EXPECT, kind=kind))
    replies = Replies(line)
    status, headers, _ = replies.next()
    assert status in (413, 415) and headers["connection"] == "close" and replies.over


def test_a_body_that_gets_leave_is_read_and_the_connection_goes_on(line, face):
    raw, replies = json.dumps(face.body).encode(), Replies(line)
    for _ in range(2):
        line.sendall(head(face.path, len(raw), EXPECT))
        assert replies.next()[0] == 100
        line.sendall(raw)
        status, headers, body = replies.next()
        assert status == 200 and headers["connection"] is None and json.loads(body)


def test_a_header_of_anthropics_changes_nothing_of_a_path_that_is_anothers(tiny_server, post, face):
    headers, wrong = {"anthropic-version": "2023-06-01"}, {**face.body, "max_tokens": "many"}
    plain = post(tiny_server, face, json=wrong)
    headed = post(tiny_server, face, json=wrong, headers=headers)
    assert (headed.status_code, face.said(headed)) == (plain.status_code, face.said(plain))
    before = tiny_server.service.surfaces[face.name]
    assert post(tiny_server, face, headers=headers).status_code == 200
    assert tiny_server.service.surfaces[face.name] == before + 1
