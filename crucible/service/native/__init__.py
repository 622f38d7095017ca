"""The service's own face: every field of a request, every fact of its result."""

from crucible.service.failure import Failure
from crucible.service.native.routes import router
from crucible.service.sse import event

__all__ = ["error_body", "router", "sse_error"]


def error_body(failure: Failure, request_id: str) -> dict:
    """A failure as this face spells it."""
    error = {
        "status": failure.status,
        "code": failure.code,
        "message": failure.message,
        "param": failure.param,
    }
    return {"error": error, "request_id": request_id}


def sse_error(failure: Failure, request_id: str) -> bytes:
    """The event that ends a stream which failed after it began."""
    return event(error_body(failure, request_id), "error")
