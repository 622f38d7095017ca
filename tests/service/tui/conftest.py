"""A chat on a stage: the app under Textual's pilot, over an engine of the tests or over a service."""

import asyncio
import contextlib

import pytest

from crucible.engine.engine import Engine
from crucible.engine.runner import ModelRunner
from crucible.engine.scheduler import Limits
from crucible.service.backend import LocalBackend
from crucible.service.tui.app import ChatApp
from crucible.service.tui.local import LocalSource
from crucible.service.tui.remote import RemoteSource
from crucible.service.tui.source import Sampling


class Stage:
    """The app and what a person does with it."""

    def __init__(self, app: ChatApp, pilot):
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        await self.pilot.press(*keys)
        await self.shown()

    async def settle(self) -> None:
        """Wait until nothing runs and everything is shown."""
        await self.app.talk.rest()
        await self.shown()

    async def shown(self) -> None:
        """Wait until every message of the app was handled."""
        await self.pilot.pause(0)

    async def send(self, text: str) -> None:
        """Write a message and press Enter."""
        self.app.box.focus()
        self.app.box.insert(text)
        await self.press("enter")

    async def say(self, text: str):
        """Send a message; its Exchange after the answer."""
        await self.send(text)
        await self.settle()
        return self.last

    async def until(self, ready) -> None:
        """Give the app its turn until `ready` is true."""
        async with asyncio.timeout(60):
            while not ready():
                await asyncio.sleep(0.005)

    @property
    def note(self) -> str:
        """The sentence above the message."""
        return self.app.note.text

    @property
    def exchanges(self) -> list:
        """All of them."""
        return self.app.talk.exchanges

    @property
    def last(self):
        """The last Exchange, or None."""
        return self.exchanges[-1] if self.exchanges else None

    @property
    def turns(self) -> list:
        """All turns of the conversation."""
        return self.app.talk.conversation.turns


@pytest.fixture
def play():
    """play(source, scene, size=…, **options of ChatApp): run `scene(stage)`; the app afterwards."""

    def run(source, scene, size=(100, 30), sampling=None, opened=True, **options) -> ChatApp:
        async def main() -> ChatApp:
            app = ChatApp(source, sampling or Sampling(temperature=1.0, max_tokens=12), **options)
            try:
                async with app.run_test(size=size) as pilot:
                    stage = Stage(app, pilot)
                    if opened:
                        await stage.settle()
                    await scene(stage)
            finally:
                await source.close()
            return app

        return asyncio.run(main())

    return run


def source_over(server, kind: str):
    """A Source over the engine of a Server, or over its HTTP."""
    if kind == "service":
        return RemoteSource(server.url)
    return LocalSource("tiny", backend=LocalBackend(server.engine))


@pytest.fixture(params=["engine", "service"])
def kind(request) -> str:
    """Where answers come from."""
    return request.param


@pytest.fixture
def source(kind, tiny_server):
    """A Source of each kind over the tiny model."""
    yield source_over(tiny_server, kind)
    tiny_server.idle()


@pytest.fixture
def engine_source(tiny_server):
    """A Source over the engine itself, for what does not depend on the kind."""
    yield source_over(tiny_server, "engine")
    tiny_server.idle()


class Alone:
    """An engine without a server: `engine`, and `idle` as a Server has it."""

    def __init__(self, engine: Engine, until):
        self.engine, self._until = engine, until

    def idle(self) -> None:
        """Wait until nothing runs and no page is held."""

        def rest() -> bool:
            stats = self.engine.stats()
            free = stats.pages_free + stats.pages_cached == stats.pages
            return free and not (stats.waiting or stats.running or stats.pages_used)

        self._until(rest, "all pages are back")


class Held(ModelRunner):
    """Waits at a gate before each step."""

    def __init__(self, model, limits: Limits, gate):
        super().__init__(model, limits.pages, limits.decode_batch)
        self._gate = gate

    def run(self, parts):
        self._gate.wait()
        return super().run(parts)


@pytest.fixture
def held_engine(tiny, gate, until):
    """(source over an engine, gate before each of its steps, the engine as an Alone)."""
    limits = Limits(pages=128)
    with Engine(tiny, limits, runner=Held(tiny, limits, gate)) as engine:
        alone = Alone(engine, until)
        yield source_over(alone, "engine"), gate, alone
        gate.open()
        alone.idle()


@pytest.fixture
def held(kind, request):
    """As `held_engine`, for sources of each kind; behind a service the last one is its Server."""
    if kind == "engine":
        return request.getfixturevalue("held_engine")
    gate = request.getfixturevalue("gate")
    server = request.getfixturevalue("serve")(request.getfixturevalue("tiny"), gate=gate)
    return source_over(server, kind), gate, server


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """An empty working directory."""
    with contextlib.chdir(tmp_path):
        yield tmp_path
