"""Bodies of requests: read within a time and a size, and JSON without what its readers disagree about."""

import asyncio
import contextlib
import functools
import json
import math
import types
from collections.abc import Coroutine
from typing import Any

import msgspec
from fastapi import Request
from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect

from crucible.service.failure import Refusal
from crucible.service.state import Settings

MAX_DEPTH = 64
# What follows keeps pydantic, which checks a body in the event loop, from stopping the streams for seconds.
MAX_KEYS = 1024  # of one object: each that no field has is a complaint
MAX_PARTS = 1 << 14  # objects and lists: 4096 messages, each with a list of one part, are three times 4096
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _fail_fast(schema: Any) -> None:
    """Make every list in a core schema of pydantic's end at its first error."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for part in schema:
            _fail_fast(part)


class Body(BaseModel):
    """Base of the faces' bodies: no field is passed over and no value is converted.

    A list is checked up to its first wrong item: a body has room for a million.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        schema = handler(source)
        _fail_fast(schema)
        return schema


async def read(request: Request, settings: Settings) -> bytes:
    """The whole body; Refusal 413 beyond max_body bytes, 408 if it is not there within read_timeout."""
    limit = settings.max_body
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    reading = _whole(request, limit)
    try:
        waits_for = reading.send(None)
    except StopIteration as done:  # most bodies are there when their request is: nothing needs a clock
        return done.value
    try:
        async with asyncio.timeout(settings.read_timeout):
            return await _rest(reading, waits_for)
    except TimeoutError:
        raise Refusal(
            408, f"the body did not arrive within {settings.read_timeout:g} s; send it again", code="timeout"
        ) from None


async def _whole(request: Request, limit: int) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _too_large(limit)
    return b"".join(parts)


@types.coroutine
def _rest(work: Coroutine, waits_for):
    """Wait for what is left of a coroutine that was begun by hand and waits for a future."""
    while True:
        try:
            got = yield waits_for
        except BaseException as error:  # cancelled: that is the coroutine's to hear
            step = functools.partial(work.throw, error)
        else:
            step = functools.partial(work.send, got)
        try:
            waits_for = step()
        except StopIteration as done:
            return done.value


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`; Refusal 400 for anything else, and for what JSON readers disagree about:
    NaN and Infinity, numbers beyond f64, keys given twice, halves of surrogate pairs, endless nesting; and
    for more than MAX_KEYS keys of an object, or MAX_PARTS objects and lists."""
    value = _flat(raw)
    return _careful(raw) if value is None else value


def _flat(raw: bytes) -> dict[str, Any] | None:
    """The JSON object in `raw` if it holds no other object, by the quicker reader, which finds what is wrong
    but for keys given twice and nesting; None where there is anything to look at."""
    if not _may_be_deep(raw):
        with contextlib.suppress(msgspec.DecodeError):
            value = msgspec.json.decode(raw)
            # Every key has a colon: with one for each key that is left, none came twice or lies deeper.
            if isinstance(value, dict) and raw.count(b":") == len(value) <= MAX_KEYS:
                return value
    return None


def _careful(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8 at byte {error.start}; encode it as UTF-8") from None
    _check_brackets(raw)
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError:
        raise _bad("the body holds an integer of more digits than can be read; give a shorter one") from None
    if not isinstance(value, dict):
        raise _bad(f"the body is a JSON {_kind(value)}; send an object")
    if b"\\ud" in raw or b"\\uD" in raw:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _bad("the body holds half of a surrogate pair (\\ud800 to \\udfff); send both") from None
    return value


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the body is larger than {limit} bytes; send a shorter request", code="too_large")


def _bad(message: str) -> Refusal:
    return Refusal(400, message, code="invalid_json")


def _kind(value: Any) -> str:
    match value:
        case list():
            return "array"
        case str():
            return "string"
        case None:
            return "null"
        case bool():
            return "boolean"
    return "number"


def _may_be_deep(raw: bytes) -> bool:
    return raw.count(b"[") + raw.count(b"{") > MAX_DEPTH


def _check_brackets(raw: bytes) -> None:
    """Refuse what is nested too deep or has too many parts, before the parser gets there; brackets in texts
    do not count.

    Taking out every pair that holds nothing more removes one level.
    """
    if not _may_be_deep(raw):
        return
    # Escapes go first, so that every quotation mark left begins or ends a text. Steps that are quick on any
    # body: a regular expression would keep the interpreter from running streams for a second.
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(bare.split(b'"')[::2]).translate(_TO_SQUARE, _NO_BRACKETS)
    parts = brackets.count(b"[")
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    # Without a pair left there are only brackets that have no partner: the parser's business unless endless.
    if b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH:
        raise _bad(f"the body is nested deeper than {MAX_DEPTH} levels; flatten it")
    if parts > MAX_PARTS:
        raise _bad(f"the body holds {parts} objects and lists; give at most {MAX_PARTS}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise _bad(f"the body gives the key {twice[:60]!a} twice; give it once")
    if len(made) > MAX_KEYS:
        raise _bad(f"the body holds an object of {len(made)} keys; give at most {MAX_KEYS}")
    return made


def _constant(name: str) -> float:
    raise _bad(f"the body holds {name}, which is not JSON; give a finite number")


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _bad(f"the body holds {text[:40]}, which is beyond a 64-bit float; give a finite number")
    return value


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_number).decode
