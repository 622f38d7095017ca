"""What every face of a running service shares: `request.app.state.service`."""

import time
from dataclasses import dataclass, field

from fastapi import Request

from crucible.service.backend import Backend


@dataclass(frozen=True)
class Settings:
    """How a service is offered; `api_key` None lets everybody in, `model` is the name it answers to.

    max_body bytes a request may have; read_timeout seconds in which it must arrive; retry_after seconds
    that a refused client is told to wait.
    """

    model: str
    api_key: str | None = None
    max_body: int = 4 << 20
    read_timeout: float = 30.0
    retry_after: int = 1


@dataclass
class Service:
    """The engine behind the faces and how it is offered; `draining` once no new request is taken."""

    backend: Backend
    settings: Settings
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False


def service(request: Request) -> Service:
    """The service that a request came to."""
    return request.app.state.service
