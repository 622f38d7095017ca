"""Deaths: of the engine's process, of the engine in it, and of the parent."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

from crucible.engine.engine import Engine
from crucible.engine.events import EngineStopped, Result
from crucible.engine.request import Request
from crucible.engine.scheduler import Limits
from crucible.errors import InputError, UnavailableError
from crucible.service.channel import process, protocol, remote, worker
from crucible.service.channel.process import Restart

LONG = Request("never ends", 900, ignore_eos=True)
SHORT = Request("hello", 12, temperature=1.0, seed=3)


def is_running(pid: int) -> bool:
    """A process that has not ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def first_tokens(channel, stream, count: int) -> list:
    """The first events of a stream, at least `count`."""

    async def some():
        found = []
        async for batch in stream:
            found += batch
            if len(found) >= count:
                return found

    return channel.run(some())


def test_a_killed_engine_fails_its_streams_and_is_replaced(open_channel, alone, until, brake):
    changes, wanted = [], alone(LONG).tokens
    channel = open_channel(
        restart=Restart(first=0.05), changed=lambda: changes.append(channel.backend.failure)
    )
    backend, first = channel.backend, channel.backend.pid
    with brake("hold"), brake("slow"):
        one, other = channel.submit(LONG, LONG)
        begun = first_tokens(channel, one, 3)
        os.kill(first, signal.SIGKILL)
        for stream, heard in ((one, begun), (other, [])):
            rest, error = channel.collect(stream)
            tokens = [token.token for token in heard + rest]
            assert isinstance(error, EngineStopped) and "was killed by SIGKILL" in str(error)
            assert tokens and tokens == wanted[: len(tokens)]
        with pytest.raises(EngineStopped, match="killed by SIGKILL; a new one starts"):
            channel.submit(SHORT)
    until(lambda: backend.failure is None and backend.restarts == 1, "another engine runs")
    assert backend.pid != first and not backend.gone.is_set()
    assert channel.results(SHORT, SHORT) == [alone(SHORT)] * 2
    assert len(changes) == 2 and changes[1] is None


def test_without_a_restart_a_killed_engine_stays_dead(open_channel, brake):
    channel = open_channel()
    with brake("slow"):
        (stream,) = channel.submit(LONG)
        stats = channel.backend.stats()
        os.kill(channel.backend.pid, signal.SIGKILL)
        assert isinstance(channel.collect(stream)[1], EngineStopped)
    with pytest.raises(EngineStopped):
        channel.run(stats)
    channel.run(channel.backend.gone.wait())
    assert channel.backend.failure == "the engine's process was killed by SIGKILL"
    assert channel.backend.pid is None and channel.backend.pages_left is None
    with pytest.raises(EngineStopped, match="was killed by SIGKILL"):
        channel.submit(SHORT)


def test_signals_meant_for_the_parent_do_not_end_the_engine_and_closing_drains_it(open_channel, alone):
    channel = open_channel()
    folder = Path(channel.backend._engine._folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(channel.backend.pid, number)
    wanted = Request("some more", 200, ignore_eos=True)
    (stream,) = channel.submit(wanted)
    channel.run(channel.backend.close(drain=30))
    assert channel.collect(stream)[0][-1] == alone(wanted)
    assert channel.backend.pages_left == 0 and not folder.exists()
    with pytest.raises(EngineStopped, match="is closed"):
        channel.submit(SHORT)


def test_closing_without_time_cancels_what_runs_and_every_page_comes_back(open_channel, brake):
    channel = open_channel(Limits(decode_batch=1, pages=128))
    with brake("slow"):
        streams = channel.submit(LONG, LONG)
        begun = first_tokens(channel, streams[0], 1)
        channel.run(channel.backend.close())
    (*rest, ended), (waited,) = (channel.collect(stream)[0] for stream in streams)
    assert isinstance(ended, Result) and ended.finish_reason == waited.finish_reason == "cancelled"
    assert len(ended.tokens) == len(begun) + len(rest) and waited.tokens == []
    assert channel.backend.pages_left == 0


@pytest.mark.parametrize("names", [{"model": "caf\udce9"}, {"model": "tiny", "attention": "caf\udce9.cu:x"}])
def test_a_name_that_no_message_can_hold_is_refused_and_nobody_waits_for_it(names):
    """A message that cannot be sent is found in a callback of the loop: its service would load for ever."""
    load = protocol.Load(device="cpu", mode="f32", limits=Limits(), **names)

    async def start():
        process.EngineProcess(load, hear=print, died=print)

    with pytest.raises(InputError, match=r"can only be told names in UTF-8, and '(caf|tiny).* rename it"):
        asyncio.run(start())


def test_a_model_that_cannot_be_loaded_is_refused_in_the_engines_own_words(open_channel):
    channel = open_channel(start=False, model="no-such-model")
    with pytest.raises(InputError, match="no model at no-such-model; give a"):
        channel.run(channel.backend.start())


def test_the_engine_ends_with_a_parent_that_was_killed(until, tmp_path):
    code = (
        "import asyncio, time\n"
        "from crucible.engine.scheduler import Limits\n"
        "from crucible.service.channel.process import EngineProcess\n"
        "from crucible.service.channel.protocol import Load\n"
        "async def main():\n"
        "    load = Load('synthetic-2x64', 'cpu', 'f32', Limits())\n"
        "    say = lambda m: print(type(m).__name__, one.pid, one._folder, flush=True)\n"
        "    one = EngineProcess(load, say, print)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        name = ""
        while name != "Ready":
            name, pid, folder = parent.stdout.readline().split()
        assert is_running(int(pid))
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not is_running(int(pid)), "the engine's process ends")
    assert not Path(folder).exists()


def test_an_engine_that_does_not_answer_is_told_from_one_that_does(open_channel, monkeypatch):
    channel = open_channel()
    monkeypatch.setattr(remote, "_PATIENCE", 0.05)
    os.kill(channel.backend.pid, signal.SIGSTOP)
    with pytest.raises(EngineStopped, match=r"did not answer within 0\.05 s"):
        channel.stats()
    os.kill(channel.backend.pid, signal.SIGCONT)
    monkeypatch.undo()
    assert channel.stats().pages_used == 0


@pytest.fixture
def parent(tmp_path):
    """(send, hear) of a parent whose engine's process runs in a thread of this one, and its exit code."""
    folder, codes = str(tmp_path), []
    with zmq.Context() as context:
        commands, news = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        news.bind(f"ipc://{folder}/{worker.NEWS}")
        commands.connect(f"ipc://{folder}/{worker.COMMANDS}")
        thread = threading.Thread(target=lambda: codes.append(worker.run(folder)))
        thread.start()

        waiting = []

        def hear():
            if not waiting:
                assert news.poll(20_000), "the engine says nothing"
                waiting.extend(protocol.decode_from_engine(news.recv()))
            return waiting.pop(0)

        yield lambda message: commands.send(protocol.encode([message])), hear, codes
        thread.join(20)
        commands.close(0)
        news.close(0)


class Failing:
    """A runner that raises at its third pass."""

    namespace, page_order = "failing", range(64)

    def __init__(self):
        self.passes = 0

    def run(self, parts):
        from crucible.engine.runner import Outcome

        self.passes += 1
        if self.passes == 3:
            raise RuntimeError("a device fell off")
        return [Outcome(65) for _ in parts]

    def _nothing(self, *_):
        pass

    set_pages = share_pages = add_page = clear = copy_page = settle = prepare = _nothing


def test_an_engine_that_fails_tells_every_stream_then_why_and_ends(parent, tiny, monkeypatch, until):
    send, hear, codes = parent

    def load(command, progress):
        engine = Engine(tiny, command.limits, runner=Failing())
        return engine, protocol.Ready("cpu", engine.limits, {}, 0.0)

    monkeypatch.setattr(worker, "load", load)
    send(protocol.Load("any", "cpu", "f32", Limits(pages=64)))
    assert isinstance(hear(), protocol.Ready)
    with Engine(tiny, Limits(pages=64), runner=Failing()) as engine:
        asked = [protocol.Asked.of(key, engine.check("abc", max_tokens=9)) for key in (4, 5)]
    send(protocol.Submit(1, asked))
    said = []
    while not said or not isinstance(said[-1], protocol.Fatal):
        said.append(hear())
    events = [message for message in said if isinstance(message, protocol.Events)]
    assert [sorted(message.keys) for message in events] == [[4, 5], [4, 5], []]
    assert sorted((end.key, end.kind) for end in events[-1].ended) == [
        (4, "EngineStopped"),
        (5, "EngineStopped"),
    ]
    assert said[-1] == protocol.Fatal("EngineStopped", "RuntimeError: a device fell off")
    until(lambda: codes, "the process ends")
    assert codes == [worker.FAILED]


def test_a_command_that_cannot_be_read_ends_the_engine_too(parent):
    send, hear, _ = parent
    send(protocol.Load("synthetic-2x64", "cpu", "f32", Limits()))
    while not isinstance(hear(), protocol.Ready):
        pass
    send(protocol.Accepted(1))  # not for the engine to hear
    said = hear()
    assert isinstance(said, protocol.Fatal) and "ValidationError" in said.why


def test_deaths_in_a_row_wait_longer_each_time_and_end():
    policy = Restart(limit=4, first=0.5, longest=3.0)
    assert [policy.delay(deaths) for deaths in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, None]


def test_a_folder_whose_name_no_socket_can_have_is_refused(open_channel, monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(process.tempfile, "tempdir", str(deep))
    channel = open_channel(start=False)
    with pytest.raises(UnavailableError, match="set TMPDIR to a shorter one"):
        channel.run(channel.backend.start())
    assert list(deep.iterdir()) == []
