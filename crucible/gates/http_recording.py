"""The file that keeps a build's answers: facts of the service that gave them, and every exchange."""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from crucible.errors import InputError, UnavailableError
from crucible.files import brief, check_writable, open_regular, shown
from crucible.gates.http_oracle import Exchange, tokens

FORMAT, VERSION = "crucible-http-oracle", 1
_LARGEST = 256 << 20  # bytes that a recording may unpack to
_FIELDS = {"name": str, "path": str, "body": dict, "headers": dict, "status": int, "reply": object}
_OF_THE_REQUEST = (200, 400, 422)  # a chat without a template is refused by every build alike


def save(path: Path | str, facts: dict[str, object], exchanges: list[Exchange]) -> Path:
    """Write a recording (gzip JSON; equal recordings give equal bytes). InputError where it cannot be."""
    path = Path(path)
    check_writable(path)
    body = {"format": FORMAT, "version": VERSION, "facts": facts, "exchanges": [asdict(e) for e in exchanges]}
    packed = gzip.compress(json.dumps(body, allow_nan=False, separators=(",", ":")).encode(), 9, mtime=0)
    path.write_bytes(packed)
    return path


def load(path: Path | str) -> tuple[dict[str, object], list[Exchange]]:
    """(facts, exchanges) of a recording; InputError for anything else, and for one without answers."""
    try:
        return _parsed(_unpacked(path))
    except _NotOne as error:
        raise InputError(f"{shown(path)} is no recording: {error}; make one with --record") from None


def check_answers(url: str, exchanges: Sequence[Exchange]) -> None:
    """UnavailableError where what came is worth no recording: statuses of the moment, or no token at all."""
    for one in exchanges:
        if one.status not in _OF_THE_REQUEST:
            why = f"status {one.status}, {_why(one.reply)}"
            raise UnavailableError(f"{url} does not answer {one.name}, so nothing is recorded: {why}")
    if not any(map(tokens, exchanges)):
        refused = next((f": {_why(one.reply)}" for one in exchanges if one.status >= 400), "")
        raise UnavailableError(
            f"{url} answered none of {len(exchanges)} requests with tokens, so nothing is recorded{refused}"
        )


class _NotOne(Exception):
    """Why a file is no recording."""


def _unpacked(path: Path | str) -> object:
    try:
        with open_regular(path) as handle, gzip.open(handle) as packed:
            raw = packed.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _NotOne(getattr(error, "strerror", None) or "it is not whole gzip") from None
    if len(raw) > _LARGEST:
        raise _NotOne(f"it unpacks to more than {_LARGEST >> 20} MiB")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise _NotOne("it is not JSON") from None


def _parsed(body: object) -> tuple[dict[str, object], list[Exchange]]:
    if not isinstance(body, dict) or (body.get("format"), body.get("version")) != (FORMAT, VERSION):
        raise _NotOne(f"it is not {FORMAT} version {VERSION}")
    facts, exchanges = body.get("facts"), body.get("exchanges")
    if not isinstance(facts, dict):
        raise _NotOne(f"its facts are {brief(facts)} and not an object")
    if not isinstance(exchanges, list):
        raise _NotOne(f"its exchanges are {brief(exchanges)} and not a list")
    if not exchanges:
        raise _NotOne("it has no answers")
    found = [_exchange(i, one) for i, one in enumerate(exchanges)]
    if not any(map(tokens, found)):
        raise _NotOne("it has no answer with tokens")
    return facts, found


def _exchange(number: int, body: object) -> Exchange:
    if not isinstance(body, dict) or body.keys() != _FIELDS.keys():
        raise _NotOne(f"exchange {number} does not have the fields {', '.join(_FIELDS)}")
    for name, kind in _FIELDS.items():
        if not isinstance(body[name], kind) or (kind is int and isinstance(body[name], bool)):
            raise _NotOne(f"{name} of exchange {number} is {brief(body[name])}")
    sent = [body["path"], *body["headers"], *body["headers"].values()]
    if not body["path"].startswith("/") or not all(
        isinstance(s, str) and s.isascii() and s.isprintable() for s in sent
    ):
        raise _NotOne(f"path or headers of exchange {number} cannot be sent")
    return Exchange(**body)


def _why(reply: object) -> str:
    error = reply.get("error") if isinstance(reply, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else brief(reply)
