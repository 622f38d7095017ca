"""A submitted request as its caller holds it, and how the events of a step reach many callers at once."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from typing import TYPE_CHECKING

from crucible.engine.events import Result, Token

if TYPE_CHECKING:
    from crucible.engine.engine import Engine

# Gets all that a step brought its requests, once a step, in the engine's thread: [(key, event)], where an
# event is a Token, a Result, or the RequestError or EngineStopped that ended the request. It must not block;
# one that raises stops the engine, after the others have heard.
Listener = Callable[[list[tuple[Hashable, Token | Result | Exception]]], None]


class Handle:
    """A submitted request: iterate it (or `async for`) for its Tokens and, last, its Result.

    Iteration and `result` raise RequestError if the request failed and EngineStopped if the engine did;
    both may be used from any thread, by one consumer. Leaving an `async for` early does not cancel.
    """

    def __init__(self, engine: "Engine", id: int, listener: Listener | None = None, key: Hashable = None):
        self.id = id
        self._engine = engine
        self._listener, self._key = listener, key
        self._events: deque[Token] = deque()
        self._end: Result | Exception | None = None
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def done(self) -> bool:
        """The request has ended; tokens may still be unread."""
        return self._end is not None

    def cancel(self) -> None:
        """End the request at the next step boundary; it returns what it has, as `cancelled`. Never blocks."""
        self._engine.cancel(self)

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end; TimeoutError after `timeout` seconds without it."""
        if not self._engine._wait(lambda: self._end is not None, timeout):
            raise TimeoutError(f"request {self.id} has not ended within {timeout} s; it goes on")
        return self._finished()

    def __iter__(self) -> Iterator[Token | Result]:
        while True:
            self._engine._wait(lambda: self._events or self._end is not None, None)
            while self._events:
                yield self._events.popleft()
            if self._end is not None and not self._events:
                yield self._finished()
                return

    async def __aiter__(self) -> AsyncIterator[Token | Result]:
        flag = asyncio.Event()
        self._waiter = (asyncio.get_running_loop(), flag)
        try:
            while True:
                flag.clear()
                while self._events:
                    yield self._events.popleft()
                if self._end is not None:
                    if self._events:
                        continue
                    yield self._finished()
                    return
                await flag.wait()
        finally:
            self._waiter = None

    def collect(self, loops: dict[asyncio.AbstractEventLoop, list[asyncio.Event]]) -> None:
        """Add what wakes this handle's reader to what `wake` gets, if somebody waits."""
        if self._waiter is not None:
            loop, flag = self._waiter
            flags = loops.setdefault(loop, [])
            if flag not in flags:
                flags.append(flag)

    def _finished(self) -> Result:
        assert self._end is not None
        if isinstance(self._end, Exception):
            raise self._end
        return self._end


def wake(loops: dict[asyncio.AbstractEventLoop, list[asyncio.Event]]) -> None:
    """Set the events of every event loop, in one call each."""
    for loop, flags in loops.items():
        try:
            loop.call_soon_threadsafe(lambda flags=flags: [flag.set() for flag in flags])
        except RuntimeError:  # that event loop has ended, and its readers with it
            continue


def tell(heard: dict[Listener, list]) -> None:
    """Give every listener its news; the first error of one is raised when all have theirs."""
    fault: Exception | None = None
    for listener, news in heard.items():
        try:
            listener(news)
        except Exception as error:
            fault = fault or error
    if fault is not None:
        raise fault
