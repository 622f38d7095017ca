"""The service as an ASGI application: faces, errors, keys, request ids, health, metrics."""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI
from starlette.types import ASGIApp

from crucible import __version__
from crucible.service import answers, health
from crucible.service.backend import Backend
from crucible.service.direct import Direct
from crucible.service.envelope import Envelope
from crucible.service.metrics import Metrics
from crucible.service.sse import json_reply
from crucible.service.state import Service, Settings

Lifespan = Callable[[Service], AbstractAsyncContextManager]
# Of uvicorn.Config: it names no server, the log is ours, and nobody asks where a client is.
SERVER = {
    "server_header": False,
    "access_log": False,
    "log_config": None,
    "ws": "none",
    "proxy_headers": False,
}


def create_app(backend: Backend, settings: Settings, lifespan: Lifespan | None = None) -> FastAPI:
    """An application over a backend; it closes the backend when it ends.

    `lifespan(service)` is entered when the server starts and left when it stops, before the close.
    """
    here = Service(backend, settings)
    metrics = Metrics(here)

    @contextlib.asynccontextmanager
    async def living(app: FastAPI):
        try:
            # Kept from then on: it reads every token of the vocabulary, and maybe the model's files.
            await asyncio.to_thread(backend.card.fingerprint)
            async with lifespan(here) if lifespan else contextlib.nullcontext():
                yield
        finally:
            await backend.close()

    app = _Application(
        title="Crucible",
        version=__version__,
        summary="One engine behind several faces; equal requests with equal seeds give equal tokens",
        lifespan=living,
        openapi_url=None,  # ours is made in a thread: it takes a second, and streams go on meanwhile
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.service = here
    answers.install(app)
    app.include_router(health.router(metrics))
    routers = [face.router() for face in answers.FACES.values()]
    for router in routers:
        app.include_router(router)

    @app.get("/openapi.json", include_in_schema=False)
    async def document():
        return json_reply(await asyncio.to_thread(app.openapi))

    app.add_middleware(Envelope, service=here, metrics=metrics)
    app.front = functools.partial(
        Direct,
        routes=[route for router in routers for route in router.routes],
        around=functools.partial(Envelope, service=here, metrics=metrics),
    )
    return app


class _Application(FastAPI):
    """FastAPI with `front` before its own stack of middleware."""

    front: Callable[[ASGIApp], ASGIApp]

    def build_middleware_stack(self) -> ASGIApp:
        """What answers a request."""
        return self.front(super().build_middleware_stack())
