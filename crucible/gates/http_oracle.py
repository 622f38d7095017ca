"""The HTTP oracle: what one build answers is kept, and another build is held to it token for token."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crucible.errors import InputError, UnavailableError
from crucible.files import check_writable, open_regular, shown
from crucible.gates import service_traffic as traffic
from crucible.service.load import http
from crucible.service.load.target import Target

FORMAT, VERSION = "crucible-http-oracle", 1
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


async def model_name(to: Target) -> str:
    """The name that a service's model answers to."""
    try:
        return json.loads((await http.fetch(to, "/v1/models"))[1])["data"][0]["id"]
    except (http.BadReply, ValueError, LookupError, TypeError) as error:
        raise UnavailableError(f"{to.url} names no model: {error}") from None


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


def save(path: Path | str, facts: dict[str, object], exchanges: list[Exchange]) -> Path:
    """Write a recording (gzip JSON; equal recordings give equal bytes). InputError where it cannot be."""
    path = Path(path)
    check_writable(path)
    body = {"format": FORMAT, "version": VERSION, "facts": facts, "exchanges": [asdict(e) for e in exchanges]}
    packed = gzip.compress(json.dumps(body, allow_nan=False, separators=(",", ":")).encode(), 9, mtime=0)
    path.write_bytes(packed)
    return path


def load(path: Path | str) -> tuple[dict[str, object], list[Exchange]]:
    """(facts, exchanges) of a recording; InputError for anything else."""
    try:
        with open_regular(path) as handle:
            body = json.loads(gzip.decompress(handle.read()))
        if body["format"] != FORMAT or body["version"] != VERSION:
            raise ValueError(f"it is not {FORMAT} version {VERSION}")
        return body["facts"], [Exchange(**one) for one in body["exchanges"]]
    except InputError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{shown(path)} is no recording: {error}; make one with --record") from None


def build_facts(build: Path | None) -> dict[str, object]:
    """Version, commit, kernel digest and contract version of a build, for a recording."""
    from crucible.bench.ab_sides import build_at

    return dict(build_at(build).identity())


def tokens(exchange: Exchange) -> int:
    """Tokens that an answer says it generated."""
    usage = exchange.reply.get("usage", {}) if isinstance(exchange.reply, dict) else {}
    return usage.get("completion_tokens") or usage.get("output_tokens") or 0


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
