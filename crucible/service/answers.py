"""Errors as responses: in the shape of the face that a path belongs to."""

from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from crucible.errors import CrucibleError
from crucible.service import anthropic, native, openai
from crucible.service.complaints import refusal_of
from crucible.service.failure import Failure, Refusal, failure_of
from crucible.service.sse import ClientGone, json_reply

# anthropic before openai: of a path that both have, its route takes only requests with its header.
FACES = {"native": native, "anthropic": anthropic, "openai": openai}
_NATIVE = ("/v1/generate", "/v1/tokenize", "/v1/detokenize")
_OPENAI = ("/v1/completions", "/v1/chat/completions")
FORESEEN = (Refusal, CrucibleError, HTTPException, RequestValidationError, ClientDisconnect, ClientGone)
CLIENT_GONE = 499  # nobody reads it; it tells the log and the metrics why there was no reply


def face_of(path: str, headers) -> str:
    """native, anthropic or openai: by the path, and by the anthropic-version header where they share it (or
    neither has it)."""
    if not (path == "/v1" or path.startswith("/v1/")) or path in _NATIVE:
        return "native"
    if path in _OPENAI:
        return "openai"
    if path == "/v1/messages" or path.startswith("/v1/messages/") or "anthropic-version" in headers:
        return "anthropic"
    return "openai"


def answer(face: str, failure: Failure, request_id: str, headers: dict[str, str] | None = None) -> Response:
    """A failure as a face spells it."""
    body = FACES[face].error_body(failure, request_id)
    out = dict(headers or {})
    if failure.retry_after is not None:
        out["retry-after"] = str(failure.retry_after)
    if failure.status == 401:
        out["www-authenticate"] = "Bearer"
    return json_reply(body, failure.status, out)


def install(app: FastAPI) -> None:
    """Give an app the handlers of every error that a request can end with."""
    for kind in FORESEEN:
        app.add_exception_handler(kind, handle)


async def handle(request: Request, error: Exception) -> Response:
    """The response to a request that ended with one of FORESEEN."""
    tally = request.state.tally
    if isinstance(error, ClientDisconnect | ClientGone):
        tally.code = "client_gone"
        return Response(status_code=CLIENT_GONE)
    failure, headers = foreseen(request, error)
    tally.code = failure.code
    return answer(tally.face, failure, tally.request_id, headers)


def foreseen(request: Request, error: Exception) -> tuple[Failure, dict[str, str]]:
    """The failure of an error that a handler raised, and the headers that belong to it."""
    if isinstance(error, RequestValidationError):
        error = refusal_of(error.errors(), None)
    if isinstance(error, HTTPException):
        return _of_status(request, error), dict(error.headers or {})
    return failure_of(error, request.app.state.service.settings.retry_after), {}


def _of_status(request: Request, error: HTTPException) -> Failure:
    match error.status_code:
        case 404:
            return Failure(
                404, f"there is no {request.url.path[:200]} here; see /openapi.json", None, "no_path"
            )
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message = f"{request.method} is not for {request.url.path[:200]}; use {allowed}"
            return Failure(405, message, None, "wrong_method")
    return Failure(error.status_code, HTTPStatus(error.status_code).phrase.lower(), None, "refused")
