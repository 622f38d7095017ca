"""How an Ask is spelled on a face, and what the events of its stream say."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from crucible.errors import InputError
from crucible.service.load.asks import Ask
from crucible.service.load.target import Target


@dataclass
class Heard:
    """A stream read to its end: an arrival and an event number a token, ids or text, and the end's facts."""

    times: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    seed: int | None = None
    usage: int | None = None
    server: dict[str, float] = field(default_factory=dict)
    error: str = ""
    ended: bool = False

    def tell(self, at: float, number: int, count: int) -> None:
        """`count` tokens came with event `number`."""
        self.times += [at] * count
        self.events += [number] * count


@dataclass(frozen=True)
class Face:
    """Path and body of a request, and the reader of one event's data: read(heard, at, number, name, data)."""

    path: str
    body: Callable[[Target, Ask], dict]
    read: Callable[[Heard, float, int, str, str], None]


class Reader:
    """Reads the server-sent events of a stream as they come; `heard` is what they said so far.

    An event that came in pieces arrives with its last. A stream that is not its face's ends with an `error`.
    """

    def __init__(self, face: Face):
        self.heard = Heard()
        self._face, self._waiting, self._number = face, b"", 0

    def read(self, at: float, piece: bytes) -> None:
        """Take a piece that arrived at `at`."""
        *whole, self._waiting = (self._waiting + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for block in whole:
            name, data = "", []
            for line in block.decode(errors="replace").split("\n"):
                kind, _, value = line.partition(":")
                if kind == "event":
                    name = value.strip()
                elif kind == "data":
                    data.append(value.removeprefix(" "))
            try:
                self._face.read(self.heard, at, self._number, name, "\n".join(data))
            except (ValueError, LookupError, TypeError) as error:
                self.heard.error = f"event {self._number} is not this face's: {type(error).__name__}: {error}"
            self._number += 1

    def close(self) -> Heard:
        """All that was heard; an error is noted where the last event never came."""
        if not self.heard.ended and not self.heard.error:
            self.heard.error = "the stream broke off before its last event"
        return self.heard


def find(name: str) -> Face:
    """A face by name; InputError for one that there is not."""
    if name not in FACES:
        raise InputError(f"unknown face {name!r} for load; choose {' or '.join(FACES)}")
    return FACES[name]


def _native_body(_: Target, ask: Ask) -> dict:
    body = {
        "prompt": ask.prompt,
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "ignore_eos": True,
        "stream": True,
    }
    return body if ask.seed is None else {**body, "seed": ask.seed}


def _native_read(heard: Heard, at: float, number: int, name: str, data: str) -> None:
    body = json.loads(data)
    if name == "tokens":
        heard.tell(at, number, len(body["tokens"]))
        heard.tokens += body["tokens"]
    elif name == "end":
        heard.finish, heard.seed = body["finish_reason"], body["seed"]
        heard.server = {k: v for k, v in (body["timings"] or {}).items() if v is not None}
        heard.ended = True
        if body["tokens"] != heard.tokens:
            heard.error = "the tokens of the stream are not those of its end"
    elif name == "error":
        heard.error = str(body["error"]["message"])


def _openai_body(to: Target, ask: Ask) -> dict:
    body = {
        "model": to.model,
        "prompt": ask.prompt,
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body if ask.seed is None else {**body, "seed": ask.seed}


def _openai_read(heard: Heard, at: float, number: int, name: str, data: str) -> None:
    if data == "[DONE]":
        heard.ended = True
        return
    body = json.loads(data)
    if "error" in body:
        heard.error = str(body["error"]["message"])
        return
    for choice in body.get("choices", ()):
        if choice["text"]:
            heard.tell(at, number, 1)  # an event may hold several tokens; usage counts them
            heard.text += choice["text"]
        heard.finish = choice.get("finish_reason") or heard.finish
    if body.get("usage"):
        heard.usage = body["usage"]["completion_tokens"]


FACES = {
    "native": Face("/v1/generate", _native_body, _native_read),
    "openai": Face("/v1/completions", _openai_body, _openai_read),
}
