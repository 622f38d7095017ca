"""Failures in the shape that OpenAI's clients read, and what of them the OpenAPI document tells."""

import contextlib

from pydantic import BaseModel

from crucible.errors import ContextError, InputError
from crucible.service.failure import Failure, Refusal
from crucible.service.sse import event

TOO_LONG = "context_length_exceeded"
_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


class ErrorDetail(BaseModel):
    """What went wrong: a sentence, its kind, the field, and a short name for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The body of every reply that is not a success."""

    error: ErrorDetail


_STATUSES = {
    400: "a value breaks a rule, or the body is not JSON",
    401: "the key is missing or wrong",
    404: "there is no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not application/json, or compressed",
    422: "a field is unknown, missing or of the wrong type",
    429: "as many requests wait as may; come again after Retry-After seconds",
    500: "the request failed",
    503: "the engine is loading, stopping or dead",
}
RESPONSES = {status: {"model": ErrorReply, "description": text} for status, text in _STATUSES.items()}


def error_body(failure: Failure, request_id: str) -> dict:
    """A failure as this face spells it; the request's id travels in the header x-request-id."""
    kind = _TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "server_error")
    return {
        "error": {
            "message": failure.message,
            "type": kind,
            "param": failure.param,
            "code": failure.code,
        }
    }


def sse_error(failure: Failure, request_id: str) -> bytes:
    """The event that ends a stream which failed after it began; no [DONE] follows it."""
    return event(error_body(failure, request_id))


@contextlib.contextmanager
def naming(param: str, code: str = "invalid_value"):
    """An InputError inside is a Refusal 400 that names the field."""
    try:
        yield
    except ContextError as error:
        raise Refusal(400, str(error), param, TOO_LONG) from None
    except InputError as error:
        raise Refusal(400, str(error), param, code) from None
