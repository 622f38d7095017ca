"""Tables of choice kept as data: measured points, each with its fastest kernels, and where they come from."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crucible.errors import InputError


@dataclass(frozen=True)
class Table:
    """Measured points and where they come from (device, time, commit, kernel digest).

    A point is a dataclass with a field `us`: kernels by microseconds.
    """

    provenance: dict[str, str]
    points: tuple[Any, ...]


def load(path: Path, table_format: str, point: Callable[..., Any], command: str) -> Table:
    """The table at `path`, whose points are `point(**fields)`.

    InputError, which names the `command` that measures anew, when the file is not of `table_format`.
    """
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
        if body["format"] != table_format:
            raise ValueError(f"format {body['format']!r}")
        return Table(dict(body["provenance"]), tuple(point(**p) for p in body["points"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a dispatch table ({error}); run `{command}`") from None


def save(table: Table, path: Path, table_format: str, kept: int) -> Path:
    """Write a table: a line a point, its `kept` fastest kernels only."""
    lines = []
    for point in table.points:
        us = dict(sorted(point.us.items(), key=lambda item: item[1])[:kept])
        lines.append(json.dumps({**asdict(point), "us": {k: round(v, 2) for k, v in us.items()}}))
    head = json.dumps({"format": table_format, "provenance": table.provenance}, indent=1)[:-2]
    Path(path).write_text(head + ',\n "points": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n", encoding="utf-8")
    return Path(path)
