"""Around every request: its id, its key, its tally, and an answer whatever happened inside."""

import secrets

from starlette.datastructures import Headers, MutableHeaders

from crucible.service.answers import answer, face_of
from crucible.service.failure import failure_of
from crucible.service.state import Service
from crucible.service.tally import Tally


class Envelope:
    """ASGI middleware; an error that nobody foresaw becomes a 500 here."""

    def __init__(self, app, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope, receive, send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        tally = Tally(face_of(scope["path"], headers), "req_" + secrets.token_hex(12))
        scope.setdefault("state", {})["tally"] = tally
        status = 0

        async def named(message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["x-request-id"] = tally.request_id
                if tally.face == "anthropic":
                    out["request-id"] = tally.request_id
            await send(message)

        self.service.inflight += 1
        try:
            await self.app(scope, receive, named)
        except Exception as error:
            if status:
                raise
            tally.code = "internal_error"
            await answer(tally.face, failure_of(error), tally.request_id)(scope, receive, named)
        finally:
            self.service.inflight -= 1
