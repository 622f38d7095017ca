"""Failures as the native face spells them."""

from typing import Any

from crucible.service.failure import Failure
from crucible.service.native.bodies import Refused
from crucible.service.sse import event

_WHEN = {
    400: "not JSON, or a value that the model cannot take",
    401: "no API key, or another",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not application/json, or compressed",
    422: "a field is unknown, missing or out of its limits",
    429: "the queue is full",
    500: "the request failed",
    503: "loading, shutting down, or the engine has stopped",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Refused, "description": text} for status, text in _WHEN.items()
}


def error_body(failure: Failure, request_id: str) -> dict:
    """A failure as this face spells it."""
    names = ("status", "code", "message", "param")
    return {"error": {name: getattr(failure, name) for name in names}, "request_id": request_id}


def sse_error(failure: Failure, request_id: str) -> bytes:
    """The event that ends a stream which failed after it began."""
    return event(error_body(failure, request_id), "error")
