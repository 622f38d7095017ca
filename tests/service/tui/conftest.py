"""A chat on a stage: the app under Textual's pilot, over an engine of the tests or over a service."""

import asyncio
import contextlib

import pytest

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
        await self.pilot.pause()

    async def settle(self) -> None:
        """Wait until nothing runs and everything is shown."""
        await self.app.talk.rest()
        await self.pilot.pause()

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
        for _ in range(2000):
            if ready():
                return
            await asyncio.sleep(0.002)
            await self.pilot.pause()
        raise AssertionError("it did not come about")

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


@pytest.fixture
def held(kind, serve, tiny, gate):
    """(source of each kind, gate before each step of its engine, its server)."""
    server = serve(tiny, gate=gate)
    return source_over(server, kind), gate, server


@pytest.fixture
def held_engine(serve, tiny, gate):
    """As `held`, over the engine itself."""
    server = serve(tiny, gate=gate)
    return source_over(server, "engine"), gate, server


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """An empty working directory."""
    with contextlib.chdir(tmp_path):
        yield tmp_path
