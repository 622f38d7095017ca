"""The service as an ASGI application: faces, errors, keys, request ids, health, metrics."""

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI

from crucible.service import answers
from crucible.service.backend import Backend
from crucible.service.envelope import Envelope
from crucible.service.state import Service, Settings

Lifespan = Callable[[Service], AbstractAsyncContextManager]


def create_app(
    backend: Backend,
    settings: Settings,
    lifespan: Lifespan | None = None,
    faces: Sequence[str] = answers.FACES,
) -> FastAPI:
    """An application over a backend; it closes the backend when it ends.

    `lifespan(service)` is entered when the server starts and left when it stops, before the close.
    """
    here = Service(backend, settings)

    @contextlib.asynccontextmanager
    async def living(app: FastAPI):
        try:
            async with lifespan(here) if lifespan else contextlib.nullcontext():
                yield
        finally:
            await backend.close()

    app = FastAPI(title="Crucible", lifespan=living, docs_url=None, redoc_url=None)
    app.state.service = here
    answers.install(app)
    for face in faces:
        name = f"crucible.service.{face}"
        if importlib.util.find_spec(name) is not None:
            app.include_router(importlib.import_module(name).router())
    app.add_middleware(Envelope, service=here)
    return app
