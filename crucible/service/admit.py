"""From a face's requests to running streams: refused while draining, all or none."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import fastapi

from crucible.engine.request import Checked, Request
from crucible.service.failure import Refusal
from crucible.service.state import service
from crucible.service.tally import Counted

_IN_THE_LOOP = 4096  # bytes of a body
_Made = TypeVar("_Made")


async def apart(request: fastapi.Request, work: Callable[[], _Made]) -> _Made:
    """`work()` on a request's body; on a large one in a thread, so that running streams go on."""
    if len(await request.body()) <= _IN_THE_LOOP:
        return work()
    return await asyncio.to_thread(work)


async def checked(request: fastapi.Request, wanted: Sequence[Request]) -> list[Checked]:
    """The requests as they would run; InputError for the first rule that one breaks."""
    check = service(request).backend.check
    return await apart(request, lambda: [check(one) for one in wanted])


async def admit(request: fastapi.Request, wanted: Sequence[Request | Checked]) -> list[Counted]:
    """Streams of all requests, counted for log and metrics; or none: InputError, QueueFull, EngineStopped,
    and Refusal 503 where the service is loading or draining."""
    here, tally = service(request), request.state.tally
    if here.condition != "ready":
        raise Refusal(503, here.why, code=here.condition)
    ready = [one for one in wanted if isinstance(one, Checked)]
    if len(ready) < len(wanted):
        ready = await checked(request, wanted)
    tally.prompt_tokens = sum(len(one.prompt) for one in ready)
    streams = await here.backend.submit(ready)
    here.surfaces[tally.face] += 1
    return [Counted(stream, tally) for stream in streams]
