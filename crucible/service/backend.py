"""What the faces know of an engine, wherever it runs; and the one that runs in this process."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from crucible.engine.engine import Engine
from crucible.engine.events import Result, Token
from crucible.engine.handle import Handle
from crucible.engine.request import Checked, Request, check
from crucible.engine.scheduler import Limits
from crucible.engine.stats import Stats
from crucible.model.card import Card


class Stream:
    """The events of one submitted request, for one consumer of the same event loop.

    `async for batch in stream`: lists of Tokens, those that were ready together in one list and never one
    held back for another; the last list ends with the Result. Raises RequestError or EngineStopped where
    the request ended so. Whoever stops early must call `cancel`.
    """

    def __init__(self, cancel):
        self._cancel = cancel
        self._events: deque[Token | Result | Exception] = deque()
        self._news = asyncio.Event()
        self.ended = False

    def feed(self, event: Token | Result | Exception) -> None:
        """Add an event (in the event loop's thread); a backend's own."""
        self._events.append(event)
        self.ended = self.ended or not isinstance(event, Token)
        self._news.set()

    def cancel(self) -> None:
        """End the request at the next step boundary; nothing happens to one that has ended."""
        if not self.ended:
            self._cancel()

    async def __aiter__(self) -> AsyncIterator[list[Token | Result]]:
        while True:
            if not self._events:
                self._news.clear()
                await self._news.wait()
            batch = list(self._events)
            self._events.clear()
            if isinstance(batch[-1], Exception):
                if batch[:-1]:
                    yield batch[:-1]
                raise batch[-1]
            yield batch
            if isinstance(batch[-1], Result):
                return

    async def result(self) -> Result:
        """Wait for the end; a caller that is cancelled meanwhile cancels the request."""
        return await last_of(self)


async def last_of(stream) -> Result:
    """The Result that ends a stream, or one like it; whoever is cancelled meanwhile cancels the request."""
    try:
        async for batch in stream:
            if isinstance(batch[-1], Result):
                return batch[-1]
    finally:
        stream.cancel()
    raise AssertionError("a stream ended without its result")


class Backend(Protocol):
    """An engine as the faces see it. `failure` says why it takes nothing any more, None while it does."""

    card: Card
    limits: Limits
    failure: str | None

    def check(self, request: Request) -> Checked:
        """The request as it would run, or InputError; nothing is submitted."""

    async def submit(self, requests: Sequence[Checked]) -> list[Stream]:
        """Queue all requests, or none: QueueFull where the queue has no room for them, else EngineStopped."""

    async def stats(self) -> Stats:
        """The engine's counters; EngineStopped where it no longer answers."""

    async def close(self) -> None:
        """End what runs and give everything back."""


class LocalBackend:
    """A Backend over an Engine in this process: for the terminal's own engine, and for tests."""

    def __init__(self, engine: Engine):
        self.engine, self.card, self.limits = engine, engine.model, engine.limits
        self._keys = itertools.count()
        self._streams: dict[int, Stream] = {}

    @property
    def failure(self) -> str | None:
        """As Backend.failure."""
        return self.engine.failure

    def check(self, request: Request) -> Checked:
        """As Backend.check."""
        return check(self.card, request, self.limits)

    async def submit(self, requests: Sequence[Checked]) -> list[Stream]:
        """As Backend.submit."""
        loop = asyncio.get_running_loop()
        handles: dict[int, Handle] = {}
        streams = {
            key: Stream(lambda key=key: handles[key].cancel())
            for key in itertools.islice(self._keys, len(requests))
        }
        self._streams |= streams
        try:

            def listener(news: list) -> None:
                # A loop that was closed under its streams has no reader left; the engine has other clients.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._hear, news)

            made = self.engine.submit_all(list(zip(streams, requests, strict=True)), listener)
        except BaseException:
            for key in streams:
                del self._streams[key]
            raise
        handles |= zip(streams, made, strict=True)
        return list(streams.values())

    async def stats(self) -> Stats:
        """As Backend.stats."""
        return self.engine.stats()

    async def close(self) -> None:
        """As Backend.close."""
        await asyncio.to_thread(self.engine.close)

    def _hear(self, news: list[tuple[int, Token | Result | Exception]]) -> None:
        for key, event in news:
            stream = self._streams[key]
            stream.feed(event)
            if stream.ended:
                del self._streams[key]
