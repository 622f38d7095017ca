"""An engine in a process of its own, behind an event loop that runs in a thread."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path

import pytest

from crucible.engine.scheduler import Limits
from crucible.model.card import Card
from crucible.model.model import TINY, open_checkpoint
from crucible.service.channel.protocol import Load
from crucible.service.channel.remote import RemoteBackend

MINUTE = 60.0
# Python runs it first in every process: one that is an engine's looks at the folder for what `brake` left.
_BRAKE = """
import sys, time
from pathlib import Path

folder = Path(__file__).parent
if "crucible.service.channel.worker" in sys.orig_argv:
    until = time.monotonic() + 60
    while (folder / "hold").exists() and time.monotonic() < until:
        time.sleep(0.01)
    from crucible.engine.runner import ModelRunner

    run = ModelRunner.run

    def slowly(self, parts):
        if (folder / "slow").exists():
            time.sleep(0.05)
        return run(self, parts)

    ModelRunner.run = slowly
"""


@pytest.fixture(scope="package")
def _brakes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("brakes")
    (folder / "sitecustomize.py").write_text(_BRAKE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield folder


@pytest.fixture
def brake(_brakes: Path):
    """`with brake("slow")`: a step of any engine's process takes 50 ms more, so that a long request still
    runs whenever a test gets to what it does to it. `with brake("hold")`: no engine begins to load."""

    @contextlib.contextmanager
    def on(name: str):
        (_brakes / name).touch()
        try:
            yield
        finally:
            (_brakes / name).unlink()

    return on


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
def open_channel(_brakes):
    """open_channel(limits, start=True, **options of RemoteBackend) -> Channel, ended after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(opened(*args, **options))


@pytest.fixture(scope="package")
def channel(_brakes):
    """One Channel for all tests that leave their engine as it was; at its end every page is back."""
    with opened(Limits(queue=24, pages=256)) as made:
        yield made
        made.run(made.backend.close())
        assert made.backend.pages_left == 0
