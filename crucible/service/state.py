"""What every face of a running service shares: `request.app.state.service`."""

import asyncio
import time
from collections import Counter
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
    """The engine behind the faces and how it is offered.

    `loading` until the engine can run, `draining` once no new request is taken; `restarts` counts engines
    that replaced a dead one; `inflight` requests are being answered; `surfaces` counts admitted requests by
    face.
    """

    backend: Backend
    settings: Settings
    created: int = field(default_factory=lambda: int(time.time()))
    loading: bool = False
    draining: bool = False
    restarts: int = 0
    inflight: int = 0
    surfaces: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)

    @property
    def others(self) -> int:
        """Requests that are being answered beside the one that asks."""
        return max(self.inflight - 1, 0)

    @property
    def condition(self) -> str:
        """ready, loading, draining or dead."""
        if self.draining:
            return "draining"
        if self.backend.failure is not None:
            return "dead"
        return "loading" if self.loading else "ready"

    @property
    def why(self) -> str:
        """The condition as a sentence for a client."""
        match self.condition:
            case "draining":
                return "the service is shutting down; send the request to another one"
            case "dead":
                return f"the engine stopped: {self.backend.failure}"
            case "loading":
                return "the model is still loading; try again later"
        return "the service takes requests"

    async def drain(self, seconds: float) -> bool:
        """Take no new request and wait until every reply has ended; False if `seconds` were not enough."""
        self.draining = True
        end = time.monotonic() + seconds
        while self.inflight:
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(0.02)
        return True


def service(request: Request) -> Service:
    """The service that a request came to."""
    return request.app.state.service
