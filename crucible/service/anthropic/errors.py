"""Failures in the shape that Anthropic's clients read: 400 for every wrong field, with its path in front."""

import contextlib

from pydantic import BaseModel

from crucible.errors import CrucibleError
from crucible.service.failure import Failure, Refusal, failure_of
from crucible.service.route import StrictRoute
from crucible.service.sse import event

# 503 is overloaded_error beside Anthropic's own 529: the SDK has a class for both and retries both.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_WHEN = {
    400: "a field is unknown, missing, wrong or not supported, or the body is not JSON",
    401: "the key is missing or wrong",
    404: "there is no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not application/json, or compressed",
    429: "as many requests wait as may; come again after Retry-After seconds",
    500: "the request failed",
    503: "the engine is loading, stopping or dead",
}


class ErrorDetail(BaseModel):
    """What went wrong: its kind and a sentence, behind the path of the field if one is wrong."""

    type: str
    message: str


class ErrorReply(BaseModel):
    """The body of every reply that is not a success, and of an `error` event."""

    type: str
    error: ErrorDetail
    request_id: str


RESPONSES = {status: {"model": ErrorReply, "description": text} for status, text in _WHEN.items()}
RESPONSES["default"] = {"model": ErrorReply, "description": "any other failure"}


class AnthropicRoute(StrictRoute):
    """A wrong field is a 400 here, as in Anthropic's API."""

    invalid = 400


def error_body(failure: Failure, request_id: str) -> dict:
    """A failure as this face spells it: `max_tokens: 0 must be …`."""
    kind = _TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    message = failure.message
    if failure.param is not None:
        message = f"{failure.param}: {message.removeprefix(failure.param).lstrip()}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def sse_error(failure: Failure, request_id: str) -> bytes:
    """The event that ends a stream which failed after it began."""
    return event(error_body(failure, request_id), "error")


@contextlib.contextmanager
def naming(param: str):
    """An error of the input inside is a Refusal 400 that names the field."""
    try:
        yield
    except CrucibleError as error:
        failure = failure_of(error)
        if failure.status != 400:
            raise
        raise Refusal(400, failure.message, param, failure.code) from None
