"""A tiny model and servers on loopback: uvicorn in a thread over an engine of this process."""

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
import threading
import time

import httpx
import pytest

from crucible.engine.engine import Engine
from crucible.engine.runner import ModelRunner
from crucible.engine.scheduler import Limits
from crucible.gates.engine_record import tiny_model
from crucible.model.fetch import fetch
from crucible.model.model import Model
from crucible.service.app import SERVER, create_app
from crucible.service.backend import LocalBackend
from crucible.service.state import Settings

MODEL = "tiny"


@pytest.fixture(scope="session")
def tiny() -> Model:
    """Two random layers, byte tokens, a chat template."""
    return tiny_model()


class Server:
    """A running server: `url`, its `engine`, `service` and `app`."""

    def __init__(self, app, engine: Engine):
        import uvicorn

        self.app, self.engine, self.service = app, engine, app.state.service
        config = uvicorn.Config(app, host="127.0.0.1", port=0, **SERVER)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="server", daemon=True)

    def start(self) -> "Server":
        """Listen; `url` is known from then on."""
        self._thread.start()
        wait_until(lambda: self._server.started or not self._thread.is_alive(), "the server starts")
        assert self._server.started, "the server did not start"
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # One for all, and without certificates: to read those takes longer than most tests.
        self.client = httpx.Client(base_url=self.url, timeout=30, verify=False)
        return self

    def stop(self) -> None:
        """End the server as Ctrl-C does."""
        self.client.close()
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server did not stop"

    def get(self, path: str, **options) -> httpx.Response:
        """GET with a patience that a busy machine needs."""
        return self.client.get(path, **options)

    def post(self, path: str, **options) -> httpx.Response:
        """POST, as patient."""
        return self.client.post(path, **options)

    def quiet(self) -> None:
        """Wait until no reply is on its way; their lines and counts come before the next request's."""
        wait_until(lambda: not self.service.inflight, "every reply has ended")

    def idle(self) -> None:
        """Wait until nothing waits or runs, then hold every page to be back."""
        wait_until(lambda: _at_rest(self.engine.stats()), "all pages are back")


def _at_rest(stats) -> bool:
    # Cached pages belong to nobody: a newcomer takes them as it takes free ones.
    back = stats.pages_free + stats.pages_cached == stats.pages and stats.pages_used == 0
    return not stats.waiting and not stats.running and back


def wait_until(ready, what: str, seconds: float = 20.0) -> None:
    """Poll `ready` until it is true; fail with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.002)


class Gate:
    """Holds an engine before each of its steps: `let(n)` runs n of them, `open()` all from then on.

    `holding` while a step waits: what it runs is planned, so what comes now waits in the queue.
    """

    def __init__(self):
        self.holding = False
        self._steps = threading.Semaphore(0)
        self._opened = threading.Event()
        self._fault: Exception | None = None

    def let(self, steps: int) -> None:
        """Let some steps run."""
        self._steps.release(steps)

    def open(self) -> None:
        """Hold nothing any more."""
        self._opened.set()
        self._steps.release()

    def fail(self, error: Exception) -> None:
        """The next step raises: the engine stops."""
        self._fault = error
        self.open()

    def wait(self) -> None:
        """In the engine's thread, before a step."""
        if not self._opened.is_set():
            self.holding = True
            assert self._steps.acquire(timeout=30), "the gate of the test was never opened"
            self.holding = False
        if self._fault is not None:
            raise self._fault


class _Gated(ModelRunner):
    def __init__(self, model: Model, limits: Limits, gate: Gate):
        super().__init__(model, limits.pages, limits.decode_batch)
        self._gate = gate

    def run(self, parts):
        self._gate.wait()
        return super().run(parts)


@contextlib.contextmanager
def serving(
    model: Model,
    limits: Limits | None = None,
    settings: Settings | None = None,
    gate: Gate | None = None,
    **options,
):
    """A Server over an Engine of `model`; afterwards all pages are back and both are closed."""
    limits = limits or Limits()
    engine = Engine(model, limits, runner=gate and _Gated(model, limits, gate))
    server = Server(create_app(LocalBackend(engine), settings or Settings(MODEL), **options), engine).start()
    try:
        yield server
        if gate:
            gate.open()
        if engine.stats().failure is None:
            server.idle()
    finally:
        if gate:
            gate.open()
        server.stop()
        engine.close()


@pytest.fixture(scope="module")
def serve_once():
    """As `serve`, for the tests of one file together."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(serving(*args, **options))


@pytest.fixture
def serve():
    """serve(model, limits=…, settings=…, gate=…) -> Server, ended after the test with all its pages back."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(serving(*args, **options))


@pytest.fixture(scope="session")
def tiny_server(tiny):
    """One Server of the tiny model for all tests that need nothing special."""
    with serving(tiny) as server:
        yield server


@pytest.fixture(scope="session")
def alone(tiny):
    """alone(request) -> its Result from an engine that runs nothing else: what every face must return."""
    with Engine(tiny) as engine:
        yield functools.cache(lambda request: engine.generate([request])[0])


@pytest.fixture(scope="session")
def smollm2_url(tmp_path_factory):
    """Address of SmolLM2 in int8 behind `crucible serve`, which ends as it is told to."""
    fetch("smollm2")
    port_file = tmp_path_factory.mktemp("serve") / "port"
    options = ["--model", "smollm2", "--mode", "int8", "--device", "cpu", "--port", "0", "--pages", "64"]
    code = "from crucible.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", *options, "--port-file", str(port_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        assert port_file.exists(), process.communicate()
        yield f"http://127.0.0.1:{int(port_file.read_text())}"
        process.terminate()
        errors = process.communicate(timeout=30)[1]
        assert process.returncode == 0 and "0 of 64 pages in use" in errors
    finally:
        process.kill()


@pytest.fixture(scope="session")
def make_gate():
    """The Gate class."""
    return Gate


@pytest.fixture
def gate():
    """A closed Gate for a server's engine."""
    return Gate()


@pytest.fixture(scope="session")
def leave():
    """leave(server, client, ask): an async client that goes once the engine has what `ask()` asked for.

    It returns when the service has seen that; the test's gate keeps the engine from being done before.
    """

    async def come_and_go(server, client, ask) -> None:
        async with client:
            asked = asyncio.ensure_future(ask())
            while not server.engine.stats().waiting + server.engine.stats().running:
                assert not asked.done(), asked
                await asyncio.sleep(0.002)
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked

    def run(server, client, ask) -> None:
        asyncio.run(asyncio.wait_for(come_and_go(server, client, ask), 30))
        wait_until(lambda: not server.service.inflight, "the service sees that the client left")

    return run


@pytest.fixture
def parse_events():
    """parse_events(text) -> [(name or None, data)] of server-sent events; data read as JSON where it is."""

    def parse(text: str) -> list[tuple[str | None, object]]:
        assert text.endswith("\n\n"), "the stream ends inside an event"
        found = []
        for block in text.split("\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            assert set(fields) <= {"event", "data"}, block
            data = fields["data"]
            found.append((fields.get("event"), json.loads(data) if data.startswith("{") else data))
        return found

    return parse


@pytest.fixture(scope="session")
def until():
    """until(ready, what): poll with an end."""
    return wait_until
