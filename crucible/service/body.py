"""Bodies of requests: read within a time and a size, strict JSON, complaints of pydantic as one sentence."""

import asyncio
import json
import math
import re
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.routing import Match

from crucible.service.failure import Refusal
from crucible.service.state import Settings, service

MAX_DEPTH = 64
_IN_THE_LOOP = 1 << 16  # bytes; a larger body is parsed in a thread, so that running streams go on
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)

# What pydantic's kinds of errors ask for.
_WISHES = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_too_long": "a text of at most {max_length} characters",
    "string_too_short": "a text of at least {min_length} characters",
    "string_type": "a text",
    "too_long": "a list of at most {max_length} items",
    "too_short": "a list of at least {min_length} items",
}


class Body(BaseModel):
    """Base of the faces' bodies: no field is passed over and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StrictRoute(APIRoute):
    """A route whose JSON body is checked before its pydantic model; what breaks a rule is a Refusal.

    A face that answers a wrong field with another status overrides `invalid`.
    """

    invalid = 422

    def get_route_handler(self):
        """FastAPI's own, behind the checks."""
        handle, invalid = super().get_route_handler(), self.invalid

        async def strict(request: Request):
            body = None
            if self.body_field is not None:
                request = _Parsed(request.scope, request.receive)
                body = await request.take(service(request).settings)
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise refusal_of(error, body, invalid) from None

        return strict


def with_header(name: str, route: type[StrictRoute] = StrictRoute) -> type[StrictRoute]:
    """A route class that only matches requests with the header `name`: two faces may share a path."""
    key = name.lower().encode()

    class Headed(route):
        def matches(self, scope):
            match, child = super().matches(scope)
            named = any(header == key for header, _ in scope.get("headers", ()))
            return (match, child) if named else (Match.NONE, {})

    return Headed


class _Parsed(Request):
    """A request whose body was read and parsed by our rules."""

    async def take(self, settings: Settings) -> dict[str, Any]:
        kind = self.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            shown = repr(kind[:60]) if kind else "missing"
            raise Refusal(415, f"content-type is {shown}; send application/json", code="not_json")
        self._raw = await read(self, settings)
        if len(self._raw) <= _IN_THE_LOOP:
            self._value = parse(self._raw)
        else:
            self._value = await asyncio.to_thread(parse, self._raw)
        return self._value

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> Any:
        return self._value


async def read(request: Request, settings: Settings) -> bytes:
    """The whole body; Refusal 413 beyond max_body bytes, 408 if it is not there within read_timeout."""
    limit = settings.max_body
    too_large = Refusal(
        413, f"the body is larger than {limit} bytes; send a shorter request", code="too_large"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.read_timeout):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise too_large
    except TimeoutError:
        raise Refusal(
            408, f"the body did not arrive within {settings.read_timeout:g} s; send it again", code="timeout"
        ) from None
    return b"".join(parts)


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`; Refusal 400 for anything else, and for what JSON readers disagree about:
    NaN and Infinity, numbers beyond f64, keys given twice, halves of surrogate pairs, endless nesting."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8 at byte {error.start}; encode it as UTF-8") from None
    _check_depth(raw)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
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


def _check_depth(raw: bytes) -> None:
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for found in _BRACKETS.finditer(raw):
        first = found[0][:1]
        depth += (first in b"[{") - (first in b"]}")
        if depth > MAX_DEPTH:
            raise _bad(f"the body is nested deeper than {MAX_DEPTH} levels; flatten it")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in made if names.count(name) > 1)
        raise _bad(f"the body gives the key {twice[:60]!a} twice; give it once")
    return made


def _constant(name: str) -> float:
    raise _bad(f"the body holds {name}, which is not JSON; give a finite number")


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _bad(f"the body holds {text[:40]}, which is beyond a 64-bit float; give a finite number")
    return value


def refusal_of(error: RequestValidationError, body: Any, status: int = 422) -> Refusal:
    """One sentence for what pydantic found, with the path of the field as `param`.

    Of several complaints the one that got deepest into the body counts: the others are about the other
    kinds that the field could have been.
    """
    found = [(_path(e, body), e) for e in error.errors()]
    deepest = max(len(path) for path, _ in found)
    path = next(path for path, _ in found if len(path) == deepest)
    same = [e for p, e in found if p == path]
    name = ".".join(map(str, path)) or "the body"
    param = name if path else None
    unknown = next((e for e in same if e["type"] == "extra_forbidden"), None)
    if unknown is not None:
        return Refusal(status, f"{name} is not a field of this request; leave it out", param, "unknown_field")
    if any(e["type"] == "missing" for e in same):
        return Refusal(status, f"{name} is missing; give it", param, "missing_field")
    wishes = dict.fromkeys(_wish(e) for e in same)
    return Refusal(status, f"{name}{_shown(same[0])} must be {' or '.join(wishes)}", param, "invalid_value")


def _path(error: dict[str, Any], body: Any) -> tuple[str | int, ...]:
    """The part of pydantic's location that lies in the body; it puts names of types in between."""
    place, path = body, []
    for part in error["loc"]:
        if part in ("body", "query", "path", "header") and not path:
            continue
        if isinstance(place, dict) and (part in place or error["type"] == "missing"):
            path.append(part)
            place = place.get(part)
        elif isinstance(place, list) and isinstance(part, int) and part < len(place):
            path.append(part)
            place = place[part]
        elif not isinstance(body, dict):
            path.append(part)
    return tuple(path)


def _wish(error: dict[str, Any]) -> str:
    """What a field must be, in our words."""
    wish = _WISHES.get(error["type"])
    if wish is not None:
        return wish.format(**error.get("ctx", {}))
    message = error["msg"].removeprefix("Value error, ")
    for opening in ("Input should be ", "Input should "):
        message = message.removeprefix(opening)
    return message


def _shown(error: dict[str, Any]) -> str:
    """The refused value where it is a number or a short name, never a text of the client's."""
    value = error.get("input")
    if isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 200):
        return f" {json.dumps(value)}"
    return ""
