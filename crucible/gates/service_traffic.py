"""Requests of the service gate over HTTP: what each brought, while queue, pages and memory are watched."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crucible.service.load import asks, faces, http
from crucible.service.load.target import Target

_LONGEST = 120.0  # seconds that one request may take
_LOOK = 0.2  # seconds between two looks at /stats
_LENGTHS = (16, 17, 33, 48, 64, 96, 127, 160)


@dataclass(frozen=True)
class Case:
    """A request that the gate sends again and again: its native body, without `stream`."""

    number: int
    body: dict


@dataclass(frozen=True)
class Answer:
    """What a request brought: `left` if the gate closed the connection, `error` where a reply broke off."""

    case: int
    status: int
    tokens: tuple[int, ...] = ()
    random_state: object = None
    retry_after: str = ""
    left: bool = False
    error: str = ""
    first_token: float | None = None  # seconds after sending


@dataclass
class Watched:
    """What was seen of a service while it worked; memory in bytes, of the server and its engine."""

    queue: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    unanswered: int = 0


def cases(count: int, max_tokens: int, seed: int) -> list[Case]:
    """`count` requests about page borders, every other one sampled with a seed of its own."""
    made = []
    for number in range(count):
        body: dict = {
            "prompt": list(asks.prompt(_LENGTHS[number % len(_LENGTHS)], seed, number)),
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        if number % 2:
            body |= {"temperature": 0.9, "top_k": 40, "seed": seed + number}
        made.append(Case(number, body))
    return made


async def send(to: Target, case: Case, leave: int | None = None) -> Answer:
    """Send a case and read its stream to the end; with `leave` close the connection after that many tokens
    (0: as soon as the request is out)."""
    reader = faces.Reader(faces.find("native"))
    enough = asyncio.Event()
    seen = 0

    def hear() -> None:
        nonlocal seen
        pieces = line.reply.pieces
        if line.reply.status == 200:
            for at, piece in pieces[seen:]:
                reader.read(at, piece)
            seen = len(pieces)
            if leave is not None and len(reader.heard.times) >= leave:
                enough.set()

    line = http.Connection(to, hear)
    try:
        await line.open()
        sent = line.send("/v1/generate", json.dumps({**case.body, "stream": True}).encode())
        if leave == 0:
            await asyncio.sleep(0)
            return Answer(case.number, 0, left=True)
        async with asyncio.timeout(_LONGEST):
            ended = await _ended_before(line, enough)
        if not ended:
            return Answer(case.number, 200, tuple(reader.heard.tokens), left=True)
        await line.finished()
    except (http.BadReply, TimeoutError) as error:
        return Answer(case.number, line.reply.status, error=str(error) or "it took too long")
    finally:
        line.close()
    reply = line.reply
    if reply.status != 200:
        return Answer(case.number, reply.status, retry_after=reply.headers.get("retry-after", ""))
    heard = reader.close()
    first = heard.times[0] - sent if heard.times else None
    state = _random_state(reply.body)
    return Answer(case.number, 200, tuple(heard.tokens), state, error=heard.error, first_token=first)


async def _ended_before(line: http.Connection, enough: asyncio.Event) -> bool:
    """Whether the reply ended before `enough` was set; no task outlives this, and none ends unheard."""
    ending, leaving = asyncio.ensure_future(line.finished()), asyncio.ensure_future(enough.wait())
    try:
        await asyncio.wait((ending, leaving), return_when=asyncio.FIRST_COMPLETED)
        return ending.done()
    finally:
        ending.cancel()
        leaving.cancel()
        await asyncio.gather(ending, leaving, return_exceptions=True)


def _random_state(body: bytes) -> object:
    """The random state that the last event of a stream names."""
    last = body.replace(b"\r\n", b"\n").strip().rpartition(b"\n\n")[2]
    for row in last.split(b"\n"):
        if row.startswith(b"data:"):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return json.loads(row[5:])["random_state"]
    return None


async def stats(to: Target) -> dict | None:
    """The body of /stats, None where nobody answers it."""
    with contextlib.suppress(http.BadReply, ValueError, TimeoutError):
        async with asyncio.timeout(10):
            status, body = await http.fetch(to, "/stats")
        return json.loads(body) if status == 200 else None
    return None


async def ready(to: Target) -> bool:
    """Whether the service takes requests."""
    with contextlib.suppress(http.BadReply):
        return (await http.fetch(to, "/health/ready"))[0] == 200
    return False


async def watch(to: Target, pid: int, seen: Watched) -> None:
    """Note queue, running requests, pages and memory until cancelled."""
    while True:
        found = await stats(to)
        if found is None or found["engine"] is None:
            seen.unanswered += 1
        else:
            seen.queue.append(found["engine"]["queue"]["waiting"])
            seen.running.append(found["engine"]["queue"]["running"])
            seen.pages.append(found["engine"]["pages"]["used"])
        seen.memory.append(resident(pid))
        await asyncio.sleep(_LOOK)


async def phase(
    to: Target,
    some: Sequence[Case],
    times: Sequence[float],
    pid: int,
    leave_every: int,
    done: Callable[[], None] = lambda: None,
) -> tuple[list[Answer], Watched]:
    """Send a case at each of `times` (seconds), whatever became of those before; all answers, and what was
    seen meanwhile. One request in `leave_every` is left by its client: before the first token, after one,
    or in the middle, in turn."""
    seen, answers = Watched(), []
    watching = asyncio.ensure_future(watch(to, pid, seen))
    began = time.perf_counter()

    async def one(number: int, at: float) -> None:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        turn, rest = divmod(number, leave_every)
        case = some[number % len(some)]
        leave = (0, 1, case.body["max_tokens"] // 2)[turn % 3] if rest == leave_every - 1 else None
        answers.append(await send(to, case, leave))
        done()

    try:
        async with asyncio.TaskGroup() as group:
            for number, at in enumerate(times):
                group.create_task(one(number, at))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return answers, seen


async def quiet(to: Target, seconds: float = 30.0) -> dict | None:
    """The stats once nothing waits, runs or holds a page, or those after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        found = await stats(to)
        engine = found and found["engine"]
        if engine and not (any(engine["queue"].values()) or engine["pages"]["used"]):
            return found
        if time.monotonic() > until:
            return found
        await asyncio.sleep(_LOOK)


def resident(pid: int) -> int:
    """Resident bytes of a process and all that it started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    total = 0
    for member in family:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{member}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total
