"""The engine's process as its parent sees it: start it, hear it, send to it, and notice its end."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from crucible.errors import InputError, UnavailableError
from crucible.files import brief
from crucible.service.channel import protocol
from crucible.service.channel.outbox import Outbox
from crucible.service.channel.worker import COMMANDS, FAILED, NEWS, unbounded

_LONGEST_PATH = 100  # bytes; a socket's name in the file system has 107
_LAST_WORDS = 2000  # milliseconds in which what a dead process had sent must arrive


@dataclass(frozen=True)
class Restart:
    """When a dead engine is replaced: after `first` seconds, twice as many after each further death up to
    `longest`, at most `limit` times in a row; one that ran for `settled` seconds starts the count again."""

    limit: int = 5
    first: float = 0.5
    longest: float = 30.0
    settled: float = 60.0

    def delay(self, deaths: int) -> float | None:
        """Seconds to wait after so many deaths in a row; None to give up."""
        return None if deaths > self.limit else min(self.first * 2 ** (deaths - 1), self.longest)


class EngineProcess:
    """One engine process, to be used in one event loop.

    `hear` gets every message, in that loop; `died` gets the reason once the process has ended and all it
    said is heard, None where it ended because it was told to. Messages are read as soon as the loop is free.
    InputError where `load` holds a name that cannot be sent.
    """

    def __init__(
        self,
        load: protocol.Load,
        hear: Callable[[protocol.FromEngine], None],
        died: Callable[[protocol.Fatal | None], None],
    ):
        try:
            protocol.encode([load])  # here, not in a callback of the loop, where nobody would hear of it
        except UnicodeEncodeError:
            raise InputError(
                f"the engine's process can only be told names in UTF-8, and {brief(load.model)} or that of a "
                "kernel's file is not; rename it"
            ) from None
        self._hear, self._died = hear, died
        self._loop = asyncio.get_running_loop()
        self._last: protocol.Fatal | protocol.Stopped | None = None
        self._folder = tempfile.mkdtemp(prefix="crucible-")  # nobody else may enter it
        self._context = zmq.Context()
        self._outbox = Outbox(self._loop, self._post)
        try:
            self._commands = unbounded(self._context, zmq.PUSH)
            self._commands.connect(self._address(COMMANDS))  # what is sent waits until the child listens
            self._news = unbounded(self._context, zmq.PULL)
            self._news.bind(self._address(NEWS))
            self._links = self._news.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "crucible.service.channel.worker", self._folder],
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=2,  # our own stdout is for our own lines
                process_group=0,  # a terminal's Ctrl-C is for us
            )
        except BaseException:
            self._release()
            raise
        self.pid = self._process.pid
        self._loop.add_reader(self._news.fileno(), self._read)
        self._ended = self._loop.create_future()
        threading.Thread(target=self._watch, name="crucible-watch", daemon=True).start()
        self.send(load)

    def _address(self, name: str) -> str:
        path = os.path.join(self._folder, name)
        if len(os.fsencode(path)) > _LONGEST_PATH:
            folder = os.path.dirname(self._folder)
            raise UnavailableError(
                f"the temporary folder {folder} has too long a name for a socket of at most {_LONGEST_PATH} "
                "bytes; set TMPDIR to a shorter one"
            )
        return f"ipc://{path}"

    @property
    def alive(self) -> bool:
        """The process has not ended, as far as is known."""
        return not self._ended.done()

    def send(self, message: protocol.Message) -> None:
        """Send a message; to a process that has just ended it is lost, and `died` will tell.

        Messages that come together go out together, so that their requests reach the engine between the same
        two steps; but none waits long for the others.
        """
        self._outbox.add(message)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    async def ended(self) -> None:
        """Wait for the end of the process; `died` was called by then."""
        await asyncio.shield(self._ended)

    def _post(self, messages: list[protocol.Message]) -> None:
        if self.alive:
            self._commands.send(protocol.encode(messages), zmq.DONTWAIT)

    def _read(self) -> None:
        # zmq's descriptor tells of changes only: all that is there must be read.
        with contextlib.suppress(zmq.Again):
            while True:
                for message in protocol.decode_from_engine(self._news.recv(zmq.DONTWAIT)):
                    if isinstance(message, protocol.Fatal | protocol.Stopped):
                        self._last = message
                    self._hear(message)

    def _watch(self) -> None:
        """A thread that waits for the process, whatever its end is."""
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # our own loop has ended before
            self._loop.call_soon_threadsafe(self._gone, code)

    def _gone(self, code: int) -> None:
        self._wait_for_last_words(code == FAILED)
        self._read()
        self._loop.remove_reader(self._news.fileno())
        self._release()
        self._ended.set_result(None)
        match self._last:
            case protocol.Stopped():
                self._died(None)
            case protocol.Fatal():
                self._died(self._last)
            case None:
                self._died(protocol.Fatal("EngineStopped", f"the engine's process {_end(code)}"))

    def _wait_for_last_words(self, some: bool) -> None:
        """Until every connection of the dead process is closed here too: all that came by it is in."""
        links = 0
        while self._links.poll(_LAST_WORDS if some or links else 0):
            some = False
            links += 1 if recv_monitor_message(self._links)["event"] == zmq.EVENT_ACCEPTED else -1

    def _release(self) -> None:
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)
        process = getattr(self, "_process", None)
        if process is not None:
            process.stdin.close()


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
