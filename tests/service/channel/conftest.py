"""An engine in a process of its own, behind an event loop that runs in a thread."""

import asyncio
import contextlib
import threading

import pytest

from crucible.engine.scheduler import Limits
from crucible.model.card import Card
from crucible.model.model import TINY, open_checkpoint
from crucible.service.channel.protocol import Load
from crucible.service.channel.remote import RemoteBackend

MINUTE = 60.0


class Channel:
    """A RemoteBackend of the tiny model and the loop that it lives in."""

    def __init__(self, limits: Limits, **options):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        card = Card.of(open_checkpoint(TINY), "f32")

        async def make() -> RemoteBackend:
            return RemoteBackend(card, Load(options.pop("model", TINY), "cpu", "f32", limits), **options)

        self.backend: RemoteBackend = self.run(make())

    def run(self, work, seconds: float = MINUTE):
        """What a coroutine returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def submit(self, *requests) -> list:
        """Streams of requests, checked here."""
        return self.run(self.backend.submit([self.backend.check(request) for request in requests]))

    def results(self, *requests) -> list:
        """Results of requests that run together."""

        async def all_of(streams):
            return await asyncio.gather(*(stream.result() for stream in streams))

        return self.run(all_of(self.submit(*requests)))

    def collect(self, stream) -> tuple[list, BaseException | None]:
        """(events of a stream, what it raised at its end)."""

        async def events():
            found = []
            try:
                async for batch in stream:
                    found += batch
            except Exception as error:
                return found, error
            return found, None

        return self.run(events())

    def stats(self, **options):
        """The engine's counters."""
        return self.run(self.backend.stats(**options))

    def end(self) -> None:
        """Close the backend and the loop."""
        self.run(self.backend.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(MINUTE)
        self._loop.close()


@contextlib.contextmanager
def opened(limits: Limits | None = None, start: bool = True, **options):
    """A started Channel, ended afterwards."""
    made = Channel(limits or Limits(), **options)
    try:
        if start:
            made.run(made.backend.start())
        yield made
    finally:
        made.end()


@pytest.fixture
def open_channel():
    """open_channel(limits, start=True, **options of RemoteBackend) -> Channel, ended after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(opened(*args, **options))


@pytest.fixture(scope="package")
def channel():
    """One Channel for all tests that leave their engine as it was; at its end every page is back."""
    with opened(Limits(queue=24, pages=256)) as made:
        yield made
        made.run(made.backend.close())
        assert made.backend.pages_left == 0
