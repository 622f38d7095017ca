"""A service from its socket to its last line: the engine's process, uvicorn, signals, and the way out."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass

import uvicorn

from crucible.errors import InputError
from crucible.model.card import Card
from crucible.service import logs
from crucible.service.app import SERVER, create_app
from crucible.service.channel.garbage import settle
from crucible.service.channel.process import Restart
from crucible.service.channel.protocol import Load
from crucible.service.channel.remote import RemoteBackend
from crucible.service.state import Service, Settings

STOPPED, DIED = 0, 1  # exit codes; a signal that would not wait gives 128 and its number
_FAREWELL = 3.0  # seconds in which replies to clients must end once nothing more will come
_LAST_WORD = 0.5  # seconds in which they must once the person would not wait


@dataclass(frozen=True)
class Plan:
    """What to serve and how; `drain` seconds that running streams have after a signal to stop."""

    load: Load
    settings: Settings
    restart: Restart | None = None
    drain: float = 30.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. InputError with one sentence where it cannot be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
    except OSError as error:
        raise InputError(f"no address for --host {host!r}: {error.strerror}") from None
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(2048)  # now, not after the model is loaded: a second server must hear that it is late
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} of {host} is in use; choose another --port, or 0 for a free one"
        else:
            why = f"cannot listen on port {port} of {host}: {error.strerror}; choose another --port or --host"
        raise InputError(why) from None
    return made


def url_of(host: str, port: int) -> str:
    """The base URL of a listening service."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, but signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield


class Run:
    """One service while it runs; use `run`. `progress` gets the (done, total) tensors of the load."""

    def __init__(
        self,
        card: Card,
        plan: Plan,
        listening: socket.socket,
        say: Callable[[str], None],
        progress: Callable[[int, int], None],
    ):
        self.plan, self._socket, self._say = plan, listening, say
        self.backend = RemoteBackend(card, plan.load, plan.restart, self._engine_changed, progress)
        app = create_app(self.backend, plan.settings, self._lifespan)
        self.service: Service = app.state.service
        self.service.loading = True
        self._server = _Server(uvicorn.Config(app, lifespan="on", timeout_graceful_shutdown=1, **SERVER))
        self._answers, self._stop, self._hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self, ready: Callable[[str], None]) -> int:
        """Serve until a signal, or until the engine ended for good: the exit code.

        `ready` gets the device's name once requests are taken. CrucibleError where the engine cannot load.
        """
        loop, heard = asyncio.get_running_loop(), []
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda number=number: (heard.append(number), self._heard()))
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        living = asyncio.ensure_future(self._live(ready))
        hurrying = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((living, hurrying, serving), return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                return await living
            self._server.force_exit = self._hurry.is_set()
            self.backend.kill()
            await self.backend.close()
            await self.service.drain(_LAST_WORD)
            self._say("stopped at once; what ran was cut off")
            return 128 + heard[-1] if heard else DIED
        finally:
            self._server.should_exit = True
            hurrying.cancel()
            living.cancel()
            await asyncio.gather(living, serving, return_exceptions=True)
            if self._server.force_exit:  # uvicorn leaves its application as it is then
                await self._server.lifespan.shutdown()

    async def _live(self, ready: Callable[[str], None]) -> int:
        if await self._unless_told(self._begin()):
            settle()
            self.service.loading = False
            ready(self.backend.ready.device)
            await self._unless_told(self.backend.gone.wait())
        return await self._farewell()

    async def _begin(self) -> None:
        await self.backend.start()
        await self._answers.wait()

    async def _unless_told(self, work: Coroutine) -> bool:
        """Wait for `work`, raising what it raises, or for the signal to stop: False."""
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                return False
            await tasks[0]
            return True
        finally:
            for task in tasks:
                task.cancel()

    async def _farewell(self) -> int:
        """Let replies end, cancel those that do not, end the engine and count its pages.

        An engine that loads or is being replaced has no pages to count, and is ended first.
        """
        told, pages = not self.backend.gone.is_set(), self.backend.limits.pages
        loading = told and self.backend.ready is None
        if loading:
            self.service.draining = True
        elif not await self.service.drain(self.plan.drain if told else _FAREWELL) and told:
            seconds, left = self.plan.drain, self.service.inflight
            self._say(f"{seconds:g} s were not enough; requests that still run are cancelled: {left}")
        await self.backend.close()
        await self.service.drain(_FAREWELL)
        left = self.backend.pages_left
        if not told:
            self._say(f"error: the engine stopped: {self.backend.failure}")
        elif loading:
            what = "the model was loaded" if self.service.loading else "another engine took requests"
            self._say(f"stopped before {what}")
            return STOPPED
        elif left is None:
            self._say("stopped; the engine did not end by itself and was killed")
        else:
            self._say(f"stopped; {left} of {pages} pages in use")
        return STOPPED if told and left == 0 else DIED

    def _heard(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        else:
            self._stop.set()
            self._say("stopping; once more stops at once")

    @contextlib.asynccontextmanager
    async def _lifespan(self, service: Service) -> AsyncIterator[None]:
        self._answers.set()
        yield

    def _engine_changed(self) -> None:
        self.service.restarts = self.backend.restarts
        if self.backend.failure is None:
            logs.note("engine restarted", restarts=self.backend.restarts)
        else:
            logs.note("engine stopped", logging.ERROR, why=self.backend.failure)


def run(
    card: Card,
    plan: Plan,
    listening: socket.socket,
    ready: Callable[[str], None],
    say: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Serve a model until it is told to stop; the exit code. `say` gets lines for people; else as Run.run."""

    async def main() -> int:
        return await Run(card, plan, listening, say, progress).run(ready)

    faster = uvicorn.Config(None, **SERVER).get_loop_factory()  # uvloop where it is installed
    with asyncio.Runner(loop_factory=faster) as runner:
        return runner.run(main())
