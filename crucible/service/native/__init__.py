"""The service's own face: every field of a request, every fact of its result."""

from crucible.service.native.errors import error_body, sse_error
from crucible.service.native.routes import router

__all__ = ["error_body", "router", "sse_error"]
