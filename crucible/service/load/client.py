"""Send the requests of a burst at their times over streaming HTTP, and keep what is done whatever happens."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from crucible.service.load import faces, samples
from crucible.service.load.asks import Ask
from crucible.service.load.http import BadReply, Connection, Reply
from crucible.service.load.samples import Sample
from crucible.service.load.target import Target

Result = TypeVar("Result")
LONGEST = 600.0  # seconds that one request may take
_SETTLED = 0.02  # seconds after which a server has accepted what the kernel had connected for it


@dataclass(eq=False)
class Log:
    """Samples in the order in which their requests ended; `began` is the zero of their clock."""

    began: float = field(default_factory=time.perf_counter)
    samples: list[Sample] = field(default_factory=list)
    heard: Callable[[Sample], None] = lambda sample: None

    def add(self, sample: Sample) -> None:
        """Keep a sample and tell whoever listens."""
        self.samples.append(sample)
        self.heard(sample)


async def run(
    to: Target, asks: Sequence[Ask], log: Log, burst: int = 0, warmup: bool = False
) -> list[Sample]:
    """Samples of all requests of a burst, in the order of `asks`; each goes into `log` when it ends.

    A connection is opened a moment before its request is due, those of requests that are due at once before
    the first of them is sent: no handshake, and no accept of the server's, lies between two. A request that
    fails is a sample with its error; the others go on.
    """
    watched = {ask.after[0] for ask in asks if ask.after}
    calls = [_Call(to, ask, burst, warmup, i in watched) for i, ask in enumerate(asks)]
    first = [call for call in calls if call.at_once]
    try:
        await asyncio.gather(*(call.open() for call in first))
        await asyncio.sleep(_SETTLED if first else 0)
        start = time.perf_counter()
        for call in first:
            call.send(start)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call.follow(start, calls, log)) for call in calls]
        return [task.result() for task in tasks]
    finally:
        for call in calls:
            call.line.close()


def wait(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end from plain code; in a thread where this one's event loop runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "crucible-load") as thread:  # a notebook's cell is inside its kernel's loop
        return thread.submit(asyncio.run, work).result()


class _Call:
    """One request on its way. What comes is read after its end; at once where others wait for tokens."""

    def __init__(self, to: Target, ask: Ask, burst: int, warmup: bool, watched: bool):
        self.ask, self.burst, self.warmup = ask, burst, warmup
        self.face = faces.find(to.face)
        self.body = json.dumps(self.face.body(to, ask)).encode()
        self.at_once = ask.after is None and ask.at == 0
        self.line = Connection(to, self._read if watched else None)
        self.planned: float | None = None
        self.sent: float | None = None
        self.error = ""
        self._reader, self._pieces, self._over = faces.Reader(self.face), 0, False
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Connect; a failure is kept for the sample."""
        try:
            await self.line.open()
        except BadReply as error:
            self.error = str(error)

    def send(self, planned: float | None) -> None:
        """Write the request if the connection stands; `planned` is when it should have been written."""
        self.planned = planned
        if not self.error:
            self.sent = self.line.send(self.face.path, self.body)

    async def follow(self, start: float, calls: "Sequence[_Call]", log: Log) -> Sample:
        """Send it when it is due, if that is yet to come, and read it to its end."""
        try:
            if not self.at_once:
                self.send(await self._due(start, calls))
            end = time.perf_counter()
            if not self.error:
                try:
                    async with asyncio.timeout(LONGEST):
                        end = await self.line.finished()
                except BadReply as error:
                    self.error, end = str(error), time.perf_counter()
                except TimeoutError:
                    self.error, end = f"it had not ended after {LONGEST:g} s", time.perf_counter()
            sample = self._sample(end, log.began)
            log.add(sample)
            return sample
        finally:
            self.line.close()
            self._over = True
            self._changed.set()

    async def _due(self, start: float, calls: "Sequence[_Call]") -> float | None:
        """Wait until it is due, with a connection; the planned time."""
        if self.ask.after is not None:
            other, count = self.ask.after
            await calls[other]._reach(count)
            await self.open()
            return None
        planned = start + self.ask.at
        await asyncio.sleep(planned - _SETTLED - time.perf_counter())
        await self.open()
        await asyncio.sleep(planned - time.perf_counter())
        return planned

    async def _reach(self, count: int) -> None:
        """Wait until `count` tokens came, or the request ended without them."""
        while len(self._reader.heard.times) < count and not self._over:
            self._changed.clear()
            await self._changed.wait()

    def _read(self) -> None:
        """Read the pieces that came since the last time."""
        pieces = self.line.reply.pieces
        for at, piece in pieces[self._pieces :]:
            self._reader.read(at, piece)
        self._pieces = len(pieces)
        self._changed.set()

    def _sample(self, end: float, zero: float) -> Sample:
        reply = self.line.reply
        if reply.status == 200:
            self._read()
            self._reader.close()
        heard = self._reader.heard
        sent = end if self.sent is None else self.sent
        return Sample(
            label=self.ask.label,
            burst=self.burst,
            warmup=self.warmup,
            prompt_tokens=len(self.ask.prompt),
            planned=None if self.planned is None else self.planned - zero,
            sent=sent - zero,
            end=end - zero,
            status=reply.status,
            times=tuple(at - zero for at in heard.times),
            events=tuple(heard.events),
            tokens=tuple(heard.tokens),
            digest=samples.digest(heard.tokens, heard.text),
            seed=heard.seed,
            finish=heard.finish,
            error=self.error or heard.error or _refusal(reply),
            server=heard.server,
            usage=heard.usage,
        )


def _refusal(reply: Reply) -> str:
    """What a reply that is no stream says."""
    if reply.status == 200:
        return ""
    try:
        return str(json.loads(reply.body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {reply.status}"
