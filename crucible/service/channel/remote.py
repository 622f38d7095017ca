"""A Backend over an engine in another process, with the model's card here and its weights there."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

from crucible.engine.events import EngineStopped
from crucible.engine.request import Checked, Request, check
from crucible.engine.stats import Stats
from crucible.errors import CrucibleError
from crucible.model.card import Card
from crucible.service.backend import Stream
from crucible.service.channel import protocol
from crucible.service.channel.process import EngineProcess, Restart

_PATIENCE = 10.0  # seconds in which an engine must answer, or end by itself beyond its time


class RemoteBackend:
    """As Backend. `start` begins; `gone` is set when the engine has ended and no other will come.

    `restart` replaces an engine that dies; `changed` is called after each change of `failure`; `progress`
    gets the (done, total) tensors of a load. `pages_left` pages were in use when the engine was closed,
    None before that and where it did not end by itself. Everything happens in one event loop.
    """

    def __init__(
        self,
        card: Card,
        load: protocol.Load,
        restart: Restart | None = None,
        changed: Callable[[], None] = lambda: None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ):
        self.card, self.limits = card, load.limits
        self.failure: str | None = None
        self.ready: protocol.Ready | None = None
        self.restarts = 0
        self.pages_left: int | None = None
        self.gone = asyncio.Event()
        self._load, self._restart, self._changed, self._progress = load, restart, changed, progress
        self._engine: EngineProcess | None = None
        self._starting: asyncio.Future[protocol.Ready] | None = None
        self._replacing: asyncio.Task | None = None
        self._closing = False
        self._deaths, self._since = 0, 0.0
        self._keys, self._ids = itertools.count(), itertools.count()
        self._streams: dict[int, Stream] = {}
        self._waiting: dict[int, tuple[asyncio.Future, Sequence[int]]] = {}  # by id of what was asked

    @property
    def pid(self) -> int | None:
        """The engine's process, None where there is none."""
        return self._engine.pid if self._engine is not None and self._engine.alive else None

    def check(self, request: Request) -> Checked:
        """As Backend.check."""
        return check(self.card, request, self.limits)

    async def start(self) -> protocol.Ready:
        """Start an engine and wait until it takes requests; CrucibleError with its own words if it cannot."""
        self._starting = asyncio.get_running_loop().create_future()
        self._engine = EngineProcess(self._load, self._hear, self._died)
        self.ready = await self._starting
        self._since = time.monotonic()
        return self.ready

    async def submit(self, requests: Sequence[Checked]) -> list[Stream]:
        """As Backend.submit."""
        keys = list(itertools.islice(self._keys, len(requests)))
        streams = {key: Stream(lambda key=key: self._cancel([key])) for key in keys}
        asked = [protocol.Asked.of(key, request) for key, request in zip(keys, requests, strict=True)]
        self._streams |= streams
        try:
            await self._ask(lambda id: protocol.Submit(id, asked), keys)
        except asyncio.CancelledError:
            self._cancel(keys)  # where it was taken, its events come and go unread
            raise
        return list(streams.values())

    async def stats(self, timeline: bool = False) -> Stats:
        """As Backend.stats; with the last steps one by one only if `timeline`."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._ask(lambda id: protocol.StatsRequest(id, timeline))
        except TimeoutError:
            raise EngineStopped(f"the engine did not answer within {_PATIENCE:g} s") from None

    async def close(self, drain: float = 0.0) -> None:
        """End the engine: what runs has `drain` seconds, then it is cancelled; may be called twice."""
        self._closing = True
        if self._replacing is not None:
            self._replacing.cancel()
        if self._engine is not None and self._engine.alive:
            self._engine.send(protocol.Shutdown(drain))
            try:
                if self.ready is None:
                    raise TimeoutError  # it loads, and does not listen meanwhile
                async with asyncio.timeout(drain + _PATIENCE):
                    await self._engine.ended()
            except TimeoutError:
                self._engine.kill()
                await self._engine.ended()
        self.gone.set()

    def kill(self) -> None:
        """End the engine at once, without another."""
        self._closing = True
        if self._engine is not None and self._engine.alive:
            self._engine.kill()

    def _refuse_if_stopped(self) -> EngineProcess:
        if self.failure is not None:
            raise EngineStopped(f"the engine stopped: {self.failure}")
        if self._closing:
            raise EngineStopped("the engine is closed; make a new one")
        if self._engine is None or self.ready is None:
            raise EngineStopped("the engine is not ready; try again later")
        return self._engine

    async def _ask(self, message: Callable[[int], protocol.Message], keys: Sequence[int] = ()):
        """Send what has an id and wait for the reply; the streams of `keys` are forgotten if it is a no."""
        id, reply = next(self._ids), asyncio.get_running_loop().create_future()
        self._waiting[id] = reply, keys
        try:
            self._refuse_if_stopped().send(message(id))
        except BaseException:
            self._answered(id, None)
            raise
        return await reply

    def _cancel(self, keys: Sequence[int]) -> None:
        if self._engine is not None and self._engine.alive:
            self._engine.send(protocol.Cancel(list(keys)))

    def _answered(self, id: int, outcome: object) -> None:
        """Hand a reply to who waits for it; after an error (or None) the streams of the request are gone."""
        reply, keys = self._waiting.pop(id)
        if outcome is None or isinstance(outcome, Exception):
            for key in keys:
                self._streams.pop(key, None)
        if outcome is not None and not reply.done():
            (reply.set_exception if isinstance(outcome, Exception) else reply.set_result)(outcome)

    def _hear(self, message: protocol.FromEngine) -> None:
        match message:
            case protocol.Events():
                for key, token in zip(message.keys, message.tokens, strict=True):
                    self._streams[key].feed(token)
                for end in message.ended:
                    self._streams.pop(end.key).feed(end.result or protocol.error(end.kind, end.why))
            case protocol.Accepted():
                self._answered(message.id, message)
            case protocol.Refused():
                self._answered(message.id, protocol.error(message.kind, message.why))
            case protocol.StatsReply():
                self._answered(message.id, message.stats)
            case protocol.Loading():
                self._progress(message.done, message.total)
            case protocol.Ready():
                if not self._starting.done():
                    self._starting.set_result(message)
            case protocol.Stopped():
                self.pages_left = message.pages_used

    def _died(self, fatal: protocol.Fatal | None) -> None:
        """The process has ended: fail what lives, then replace it or give up."""
        why = fatal.why if fatal is not None else "the engine is closed"
        if self._closing:
            error = EngineStopped("the service stopped; what ran was cut off")
        else:
            error = EngineStopped(f"the engine stopped: {why}; no token of that step is given")
        for stream in self._streams.values():
            stream.feed(error)
        self._streams.clear()
        for id in list(self._waiting):
            self._answered(id, error)
        if not self._starting.done():
            kind = fatal.kind if fatal is not None else "EngineStopped"
            self._starting.set_exception(protocol.error(kind, why))
            return  # whoever starts it decides
        if fatal is not None and not self._closing:
            self._lost(why)

    def _lost(self, why: str) -> None:
        if time.monotonic() - self._since >= (self._restart or Restart()).settled:
            self._deaths = 0
        self._deaths += 1
        delay = self._restart.delay(self._deaths) if self._restart is not None else None
        self.ready = None
        if delay is None:
            self.failure = why
            self.gone.set()
        else:
            self.failure = f"{why}; a new one starts"
            self._replacing = asyncio.get_running_loop().create_task(self._replace(delay))
        self._changed()

    async def _replace(self, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            await self.start()
        except CrucibleError as error:
            self._lost(str(error))
            return
        self.restarts += 1
        self.failure = None
        self._changed()
