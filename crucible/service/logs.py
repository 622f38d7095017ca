"""Log lines as JSON, one a request: who, what status, how many tokens, how long; never a text of a client."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

from crucible.service.tally import Tally

logger = logging.getLogger("crucible.service")


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, event and the fields given as `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(line | getattr(record, "fields", {}))


def configure(stream: TextIO | None = None, level: int = logging.INFO) -> logging.Handler:
    """Send the service's log lines to a stream (stderr), and nowhere else; the handler."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
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
    logger.log(logging.ERROR if status >= 500 else logging.INFO, "request", extra={"fields": fields})


def unforeseen(tally: Tally, error: BaseException) -> None:
    """An error that nobody foresaw: its type and where it arose; its message might quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
    fields = {"id": tally.request_id, "face": tally.face, "error": type(error).__name__, "where": where}
    logger.error("unforeseen error", extra={"fields": fields})


def note(event: str, level: int = logging.INFO, **fields) -> None:
    """A line about the service itself."""
    logger.log(level, event, extra={"fields": fields})


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
