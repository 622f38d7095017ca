"""From a face's requests to running streams: refused while draining, all or none."""

import asyncio
from collections.abc import Sequence

import fastapi

from crucible.engine.request import Checked, Request
from crucible.service.failure import Refusal
from crucible.service.state import service
from crucible.service.tally import Counted

_IN_THE_LOOP = 4096  # characters or tokens; a longer prompt is encoded in a thread


async def checked(request: fastapi.Request, wanted: Sequence[Request]) -> list[Checked]:
    """The requests as they would run; InputError for the first rule that one breaks."""
    check = service(request).backend.check
    if sum(len(one.prompt) for one in wanted) <= _IN_THE_LOOP:
        return [check(one) for one in wanted]
    return await asyncio.to_thread(lambda: [check(one) for one in wanted])


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
