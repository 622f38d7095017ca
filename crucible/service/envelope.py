"""Around every request: its id, its key, its line in the log, and an answer whatever happened inside."""

import secrets
import time

from starlette.datastructures import Headers

from crucible.service import logs
from crucible.service.answers import CLIENT_GONE, answer, face_of
from crucible.service.auth import lets_in
from crucible.service.failure import Failure, failure_of
from crucible.service.metrics import Metrics
from crucible.service.state import Service
from crucible.service.tally import Tally

_NO_KEY = Failure(
    401,
    "no right API key; send Authorization: Bearer KEY or x-api-key: KEY",
    None,
    "wrong_key",
)


class Envelope:
    """ASGI middleware; an error that nobody foresaw becomes a 500, or the end of a reply that had begun."""

    def __init__(self, app, service: Service, metrics: Metrics):
        self.app, self.service, self.metrics = app, service, metrics

    async def __call__(self, scope, receive, send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        tally = Tally(face_of(scope["path"], headers), "req_" + secrets.token_hex(12))
        scope.setdefault("state", {})["tally"] = tally
        status = 0
        # A body that waits for our leave: where none is given it never comes, and what follows on the
        # connection is not to be taken for it.
        kept_back = headers.get("expect", "").lower() == "100-continue"

        async def received():
            nonlocal kept_back
            kept_back = False
            return await receive()

        async def named(message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", tally.request_id.encode())]
                if tally.face == "anthropic":
                    own.append((b"request-id", tally.request_id.encode()))
                if kept_back or status == 408:  # what a slow client still sends is nobody's
                    own.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        self.service.inflight += 1
        try:
            if lets_in(scope["path"], headers, self.service.settings.api_key):
                await self.app(scope, received if kept_back else receive, named)
            else:
                tally.code = _NO_KEY.code
                await answer(tally.face, _NO_KEY, tally.request_id)(scope, receive, named)
        except Exception as error:
            logs.unforeseen(tally, error)
            failure = failure_of(error, self.service.settings.retry_after)
            tally.code = failure.code
            if not status:  # else the reply stays unfinished, which tells the client
                await answer(tally.face, failure, tally.request_id)(scope, receive, named)
        finally:
            self.service.inflight -= 1
            seconds = time.perf_counter() - tally.began
            route = getattr(scope.get("route"), "path", None)
            self.metrics.request_ended(tally, status or CLIENT_GONE, seconds)
            logs.request_ended(tally, scope["method"], route, status or CLIENT_GONE, seconds)
