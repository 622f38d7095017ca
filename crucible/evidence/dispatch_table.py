"""Tables of choice kept as data: measured points, each with its fastest kernels, and where they come from."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crucible.errors import InputError
from crucible.files import brief, shown


@dataclass(frozen=True)
class Table:
    """Measured points and where they come from (device, time, commit, kernel digest).

    A point is a dataclass with a field `us`: kernels by microseconds.
    """

    provenance: dict[str, str]
    points: tuple[Any, ...]


def load(path: Path, table_format: str, point: Callable[..., Any], command: str) -> Table:
    """The table at `path`, whose points are `point(**fields)`; `point` may refuse fields with InputError.

    InputError, which names the `command` that measures anew, when the file is not of `table_format`.
    """
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(body, dict) or {"format", "provenance", "points"} - set(body):
            raise ValueError("it must be an object with format, provenance and points")
        if body["format"] != table_format:
            raise ValueError(f"format {brief(body['format'])} must be {table_format}")
        if not isinstance(body["points"], list) or not body["points"]:
            raise ValueError("points must be a list with at least one")
        points = tuple(_made(point, i, fields) for i, fields in enumerate(body["points"]))
        return Table(dict(body["provenance"]), points)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{shown(path)} is not a dispatch table ({error}); run `{command}`") from None


def _made(point: Callable[..., Any], i: int, fields: Any) -> Any:
    if not isinstance(fields, dict):
        raise ValueError(f"point {i} is {brief(fields)}; it must be an object")
    try:
        return point(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"point {i}: {error}") from None


def save(table: Table, path: Path, table_format: str, kept: int) -> Path:
    """Write a table: a line a point, its `kept` fastest kernels only."""
    lines = []
    for point in table.points:
        us = dict(sorted(point.us.items(), key=lambda item: item[1])[:kept])
        lines.append(json.dumps({**asdict(point), "us": {k: round(v, 2) for k, v in us.items()}}))
    head = json.dumps({"format": table_format, "provenance": table.provenance}, indent=1)[:-2]
    Path(path).write_text(head + ',\n "points": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n", encoding="utf-8")
    return Path(path)
