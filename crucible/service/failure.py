"""Errors on their way out: one status and one kind for each, which every face spells in its own shape."""

import re
from dataclasses import dataclass

from crucible.engine.events import EngineStopped, QueueFull, RequestError, TemperatureTooLow
from crucible.errors import InputError, UnsupportedError


class Refusal(Exception):
    """A request that is answered with `status` and a sentence.

    `param` names the field that is wrong, where one is; `code` is a short name for programs.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


@dataclass(frozen=True)
class Failure:
    """What a client is told: an HTTP status, a sentence, the field and a code, and when to come again."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None


def failure_of(error: Exception, retry_after: int = 1) -> Failure:
    """The Failure of an error; one that nobody foresaw is a 500 that tells nothing of the inside."""
    message = str(error)
    match error:
        case Refusal():
            again = retry_after if error.status in (429, 503) else None
            return Failure(error.status, error.message, error.param, error.code, again)
        case QueueFull():
            return Failure(429, message, None, "queue_full", retry_after)
        case EngineStopped():
            return Failure(503, message, None, "engine_stopped", retry_after)
        case InputError():
            return Failure(400, message, None, "invalid_value")
        case UnsupportedError():
            return Failure(400, message, None, "unsupported")
        case TemperatureTooLow():
            return Failure(400, _unnumbered(message), "temperature", "invalid_value")
        case RequestError():
            return Failure(500, _unnumbered(message), None, "request_failed")
    return Failure(500, "the service failed on this request; its log says how", None, "internal_error")


def _unnumbered(message: str) -> str:
    """An engine's sentence without its own number of the request, which tells a client nothing."""
    return re.sub(r"^request \d+ ", "the request ", message)
