"""The HTTP oracle: what one build answers is kept, and another build is held to it token for token."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from crucible.errors import UnavailableError
from crucible.gates import service_traffic as traffic
from crucible.service.load import http
from crucible.service.load.target import Target

_TEXTS = (
    "The capital of France is",
    "Once upon a time",
    "def add(a, b):\n    ",
    "Wasser kocht bei",
    "1, 1, 2, 3, 5,",
)
_TALK = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Name three rivers."}]
# Parts of a reply that name the moment or the build and not the answer.
_OWN = {
    "id",
    "created",
    "timings",
    "system_fingerprint",
    "fingerprint",
    "model",
    "cached_rows",
    "cached_tokens",
    "cache_read_input_tokens",
}


@dataclass(frozen=True)
class Exchange:
    """A request and what it brought: path, headers, body, status, and of the reply what is its answer."""

    name: str
    path: str
    body: dict
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 0
    reply: object = None


@dataclass(frozen=True)
class Difference:
    """An exchange that is answered otherwise: the first place that differs, and both values there."""

    name: str
    where: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: {_short(self.expected)} was recorded, {_short(self.found)} came"


def requests(model: str, count: int, max_tokens: int, seed: int) -> list[Exchange]:
    """What is asked: `count` native requests of token ids with digests, texts with stops, two choices and
    log-probabilities on the OpenAI face, and a chat on both chat faces; every request names its seed."""
    made = []
    for case in traffic.cases(count, max_tokens, seed):
        body = {**case.body, "digests": True}
        if case.number % 3 == 0:
            body["logprobs"] = 2
        made.append(Exchange(f"native {case.number}", "/v1/generate", body))
    common = {"model": model, "max_tokens": max_tokens, "temperature": 0.8}
    for number, text in enumerate(_TEXTS):
        more: dict = {"n": 2} if number == 1 else {"stop": ["\n"]} if number == 2 else {"logprobs": 3}
        body = {**common, "prompt": text, "seed": seed + number, **more}
        made.append(Exchange(f"openai completion {number}", "/v1/completions", body))
    body = {**common, "messages": _TALK, "seed": seed}
    made.append(Exchange("openai chat", "/v1/chat/completions", body))
    body = {**common, "system": _TALK[0]["content"], "messages": _TALK[1:], "seed": seed}
    made.append(Exchange("anthropic messages", "/v1/messages", body, {"anthropic-version": "2023-06-01"}))
    return made


async def answer(to: Target, one: Exchange) -> Exchange:
    """The exchange as the service answers it; UnavailableError where it does not."""
    try:
        status, body = await http.post(to, one.path, json.dumps(one.body).encode(), one.headers)
        reply = json.loads(body)
    except (http.BadReply, ValueError) as error:
        raise UnavailableError(f"{to.url} gave no answer to {one.name}: {error}") from None
    return Exchange(one.name, one.path, one.body, one.headers, status, _answer_of(reply))


def compare(expected: Exchange, found: Exchange) -> Difference | None:
    """The first place where two answers to one request differ."""
    if expected.status != found.status:
        return Difference(expected.name, "status", expected.status, found.status)
    for where, a, b in _differing(expected.reply, found.reply, "reply"):
        return Difference(expected.name, where, a, b)
    return None


def tokens(exchange: Exchange) -> int:
    """Tokens that an answer says it generated."""
    usage = exchange.reply.get("usage") if isinstance(exchange.reply, dict) else None
    counts = (
        [usage.get(name) for name in ("completion_tokens", "output_tokens")]
        if isinstance(usage, dict)
        else []
    )
    return next((count for count in counts if isinstance(count, int)), 0)


def _answer_of(value: object) -> object:
    if isinstance(value, dict):
        return {key: _answer_of(part) for key, part in value.items() if key not in _OWN}
    if isinstance(value, list):
        return [_answer_of(part) for part in value]
    return value


def _differing(a: object, b: object, where: str) -> Iterator[tuple[str, object, object]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if key not in a or key not in b:
                yield f"{where}.{key}", a.get(key, "nothing"), b.get(key, "nothing")
            else:
                yield from _differing(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list) and isinstance(b, list):
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _differing(x, y, f"{where}[{i}]")
        if len(a) != len(b):
            yield f"{where}: items", len(a), len(b)
    elif type(a) is not type(b) or a != b:
        yield where, a, b


def _short(value: object) -> str:
    shown_ = json.dumps(value, ensure_ascii=False)
    return shown_ if len(shown_) <= 60 else shown_[:57] + "..."
