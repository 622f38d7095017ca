"""The engine's process: loads a model, then answers one parent until it is told to stop or the parent ends.

`python -m crucible.service.channel.worker FOLDER`, by process.py: FOLDER holds the two sockets, and stdin is
a pipe whose other end the parent keeps open for as long as it lives.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import zmq

from crucible.engine.engine import Engine
from crucible.engine.events import EngineStopped
from crucible.engine.handle import Handle
from crucible.errors import CrucibleError
from crucible.service.channel import protocol
from crucible.service.channel.garbage import settle
from crucible.service.channel.protocol import Load, encode

COMMANDS, NEWS = "commands", "news"  # sockets in the folder
FAILED = 3  # exit code of an engine that could not load or failed
_FLUSH = 2000  # milliseconds that last words may take
_TURN = 0.0005  # seconds that a command waits at most for the Python of a step
_YIELD = 1e-5  # seconds; the system makes about 60 us of them
_WAIT = 20  # milliseconds between two looks at what still runs, while draining


def unbounded(context: zmq.Context, kind: int) -> zmq.Socket:
    """A socket on which no send ever waits, however much is in it."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 10)  # milliseconds
    socket.setsockopt(zmq.LINGER, _FLUSH)
    return socket


def speaker(context: zmq.Context, folder: str) -> zmq.Socket:
    """A socket to the parent's ear, for one thread."""
    socket = unbounded(context, zmq.PUSH)
    socket.connect(f"ipc://{folder}/{NEWS}")
    return socket


class Service:
    """Answers commands in a thread of its own; the engine's thread sends what a step brought by itself.

    The engine's thread never waits: a send moves a message to zmq's own thread. `fault` says what went wrong
    with a command, which ends the engine as a failed step does.
    """

    def __init__(self, engine: Engine, context: zmq.Context, folder: str, commands, news):
        self.engine, self.fault = engine, ""
        self.pages_used = 0
        self._commands, self._news = commands, news
        self._answers = speaker(context, folder)
        self._handles: dict[int, Handle] = {}
        self._ended: list[int] = []  # keys that the engine's thread heard the end of
        self._replies: list[protocol.Message] = []
        self._drain_for: float | None = None  # seconds, once told to end

    def hear(self, news: list) -> None:
        """The engine's listener: one message a step."""
        message = protocol.events(news)
        self._news.send(encode([message]), zmq.DONTWAIT)
        self._ended += [ended.key for ended in message.ended]

    def serve(self) -> None:
        """Answer until Shutdown, then close the engine."""
        try:
            while self._drain_for is None:
                self._take()
            self._drain(self._drain_for)
        except zmq.ContextTerminated:
            pass  # the engine failed, and the process ends
        except Exception as error:
            traceback.print_exc()
            self.fault = protocol.spelled(error)[1]
        finally:
            self._commands.close()
            self._answers.close()
            self.engine.close()

    def _take(self) -> None:
        """Answer all commands that are there before any reply is sent: a send lets the engine's thread run,
        which would start its step without the rest."""
        came = protocol.decode_to_engine(self._commands.recv())
        with contextlib.suppress(zmq.Again):
            while True:
                came += protocol.decode_to_engine(self._commands.recv(zmq.DONTWAIT))
        for kind, commands in groupby(came, type):
            if kind is protocol.Submit:
                self._submit(list(commands))
            else:
                for command in commands:
                    self._answer(command)
        self._forget()
        if self._replies:
            self._answers.send(encode(self._replies), zmq.DONTWAIT)
            self._replies = []

    def _say(self, message: protocol.Message) -> None:
        self._replies.append(message)

    def _answer(self, command: protocol.ToEngine) -> None:
        match command:
            case protocol.Cancel():
                for key in command.keys:
                    if key in self._handles:
                        self._handles[key].cancel()
            case protocol.StatsRequest():
                stats = self.engine.stats()
                stats = stats if command.timeline else replace(stats, timeline=())
                self._say(protocol.StatsReply(command.id, stats))
            case protocol.Shutdown():
                self._drain_for = command.drain

    def _submit(self, commands: Sequence[protocol.Submit]) -> None:
        """Queue what came together between the same two steps; each command is taken or refused by itself."""
        lots = {}
        for command in commands:
            try:
                if self._drain_for is not None:
                    raise EngineStopped("the engine is shutting down")
                lots[command.id] = [(asked.key, asked.checked()) for asked in command.requests]
            except CrucibleError as error:
                self._refuse(command.id, error)
        outcomes = self.engine.submit_lots(lots.values(), self.hear)
        time.sleep(_YIELD)  # the first tokens wait for the engine's thread, nobody for the replies yet
        for (id, lot), made in zip(lots.items(), outcomes, strict=True):
            if isinstance(made, CrucibleError):
                self._refuse(id, made)
            else:
                self._handles |= {key: handle for (key, _), handle in zip(lot, made, strict=True)}
                self._say(protocol.Accepted(id))

    def _refuse(self, id: int, error: CrucibleError) -> None:
        self._say(protocol.Refused(id, *protocol.spelled(error)))

    def _forget(self) -> None:
        while self._ended:
            self._handles.pop(self._ended.pop(), None)

    def _drain(self, seconds: float) -> None:
        """Let what runs end, cancel the rest, and count the pages once nothing runs."""
        until = time.monotonic() + seconds
        while self._handles and self.engine.stats().failure is None:
            if self._commands.poll(_WAIT):
                self._take()
            self._forget()
            if time.monotonic() >= until:
                for handle in self._handles.values():
                    handle.cancel()
        self.pages_used = self.engine.stats().pages_used


def load(command: Load, progress) -> tuple[Engine, protocol.Ready]:
    """The engine that a Load asks for, and what there is to say about it."""
    from crucible import __version__
    from crucible import device as devices
    from crucible.attention import user
    from crucible.attention.variants import ENVIRONMENT
    from crucible.evidence.environment import library_versions
    from crucible.model.model import Model

    if command.attention is not None:
        if user.is_file(command.attention):
            user.install(command.attention, devices.get(command.device))
        os.environ[ENVIRONMENT] = command.attention  # the engine's runner reads it
    model = Model.load(command.model, command.device, command.mode, progress)
    engine = Engine(model, command.limits, command.share_prefixes)
    versions = {"crucible": __version__, **library_versions()}
    return engine, protocol.Ready(model.device.name, engine.limits, versions, model.load_seconds)


def run(folder: str) -> int:
    """Serve the parent whose sockets are in `folder`; the process's exit code."""
    context = zmq.Context()
    commands = unbounded(context, zmq.PULL)
    commands.bind(f"ipc://{folder}/{COMMANDS}")
    news = speaker(context, folder)

    def say(message: protocol.Message) -> None:
        news.send(encode([message]), zmq.DONTWAIT)

    def fail(kind: str, why: str) -> int:
        say(protocol.Fatal(kind, why))
        return FAILED

    try:
        try:
            (command,) = protocol.decode_to_engine(commands.recv())
            engine, ready = load(command, lambda done, total: say(protocol.Loading(done, total)))
        except Exception as error:
            if not isinstance(error, CrucibleError):
                traceback.print_exc()
            commands.close()
            return fail(*protocol.spelled(error))
        settle()
        service = Service(engine, context, folder, commands, news)
        say(ready)
        thread = threading.Thread(target=service.serve, name="crucible-channel")
        thread.start()
        # From here on to its end the engine's thread owns `news`, so that no token comes after the last word.
        failure = engine.join()
        if failure is not None:
            return fail("EngineStopped", failure)
        thread.join()
        if service.fault:
            return fail("EngineStopped", service.fault)
        say(protocol.Stopped(service.pages_used))
        return 0
    finally:
        news.close()
        context.term()  # what was said goes out first


def _end_with_parent(folder: str) -> None:
    """End at once when stdin does: the parent is gone, and nobody is left to tell or to clean up."""
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main(folder: str) -> None:
    """Entry point of the process. Signals are the parent's to hear: it decides when the engine ends."""
    sys.setswitchinterval(_TURN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(folder,), name="crucible-parent", daemon=True).start()
    code = run(folder)
    sys.stderr.flush()
    os._exit(code)  # no waiting for pools or devices in whatever state a failure left them


if __name__ == "__main__":
    main(sys.argv[1])
