"""Log lines as JSON, one a request: who, what status, how many tokens, how long; never a text of a client."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

from crucible.service.tally import Tally

logger = logging.getLogger("crucible.service")
_SERVERS = ("uvicorn.error", "asyncio")  # whose warnings are lines of ours too
_FORESEEN = ("loading", "draining")  # codes of refusals that are no fault


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, event and the fields given as `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            line |= _told(record.exc_info[1])
        return json.dumps(line | getattr(record, "fields", {}))


def configure(stream: TextIO | None = None, level: int = logging.INFO) -> logging.Handler:
    """Send the log lines of the service, and the warnings of what it runs on, to a stream (stderr), and
    nowhere else; the handler."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for one, least in ((logger, level), *((logging.getLogger(name), logging.WARNING) for name in _SERVERS)):
        one.handlers[:] = [handler]
        one.setLevel(max(level, least))
        one.propagate = False
    return handler


def request_ended(tally: Tally, method: str, route: str | None, status: int, seconds: float) -> None:
    """The line of an answered request; `route` is the pattern, as a path may hold anything."""
    fields = {
        "id": tally.request_id,
        "face": tally.face,
        "method": method,
        "route": route,
        "status": status,
        "code": tally.code,
        "prompt_tokens": tally.prompt_tokens,
        "completion_tokens": tally.completion_tokens,
        "cached_rows": tally.cached_rows,
        "finish": tally.finish,
        "first_token_seconds": _rounded(tally.first_token),
        "seconds": _rounded(seconds),
    }
    logger.log(_level(status, tally.code, route), "request", extra={"fields": fields})


def _level(status: int, code: str | None, route: str | None) -> int:
    if status < 500 or (code in _FORESEEN and route == "/health/ready"):
        return logging.INFO
    return logging.WARNING if code in _FORESEEN else logging.ERROR


def unforeseen(tally: Tally, error: BaseException) -> None:
    """An error that nobody foresaw."""
    fields = {"id": tally.request_id, "face": tally.face, **_told(error)}
    logger.error("unforeseen error", extra={"fields": fields})


def _told(error: BaseException) -> dict[str, object]:
    """Type of an error and where it arose; its message might quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
    return {"error": type(error).__name__, "where": where}


def note(event: str, level: int = logging.INFO, **fields) -> None:
    """A line about the service itself."""
    logger.log(level, event, extra={"fields": fields})


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
