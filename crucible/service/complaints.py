"""What pydantic finds wrong with a body, as one sentence and the path of the field."""

import json
from collections.abc import Sequence
from typing import Any

from crucible.service.failure import Refusal

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


def refusal_of(errors: Sequence[dict[str, Any]], body: Any, status: int = 422) -> Refusal:
    """One sentence for what pydantic found, with the path of the field as `param`.

    Of several complaints the one that got deepest into the body counts: the others are about the other
    kinds that the field could have been.
    """
    found = [(_path(e, body), e) for e in errors]
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
