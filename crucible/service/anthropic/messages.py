"""POST /v1/messages: the assistant's next message, whole or as events."""

import fastapi
from fastapi import APIRouter

from crucible.engine.request import Checked, Request
from crucible.errors import InputError
from crucible.service.admit import admit, checked
from crucible.service.anthropic.errors import sse_error
from crucible.service.anthropic.prompt import encoded
from crucible.service.anthropic.reply import Reply
from crucible.service.anthropic.schemas import Answer, MessagesBody
from crucible.service.failure import Refusal
from crucible.service.sse import EventStream, cancel_all, json_reply, wait_or_cancel
from crucible.service.state import service

SEED_HEADER = "x-crucible-seed"
_EVENTS = (
    "with stream true: message_start, content_block_start, ping, content_block_delta for each piece of text, "
    "content_block_stop, message_delta, message_stop; an `error` event ends a stream that failed"
)
_ANSWERED = {
    "model": Answer,
    "description": "the message",
    "content": {"text/event-stream": {"schema": {"type": "string", "description": _EVENTS}}},
}


def add(routes: APIRouter) -> None:
    """The route."""
    routes.post("/v1/messages", summary="Create a message", responses={200: _ANSWERED})(create)


async def create(request: fastapi.Request, body: MessagesBody):
    """Answer a conversation; the same request with the same seed gives the same tokens on any machine."""
    here, asked = service(request), await _asked(request, body)
    reply = Reply(
        id=f"msg_{request.state.tally.request_id.removeprefix('req_')}",
        model=here.settings.model,
        fingerprint=here.backend.card.fingerprint(asked.params.sampler),
        seed=body.seed if asked.params.greedy else asked.params.seed,
        request=asked,
    )
    headers = {} if reply.seed is None else {SEED_HEADER: str(reply.seed)}
    (stream,) = await admit(request, [asked])
    if body.stream:
        streamed = EventStream(reply.events(stream), lambda: cancel_all([stream]), sse_error)
        streamed.headers.update(headers)
        return streamed
    (result,) = await wait_or_cancel(request, [stream])
    return json_reply(reply.whole(result), headers=headers)


async def _asked(request: fastapi.Request, body: MessagesBody) -> Checked:
    wanted = Request(
        prompt=await encoded(request, body, fit=True),
        max_tokens=body.max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        sampler=body.sampler or "inverse-cdf",
        stop_strings=tuple(body.stop_sequences or ()),
        ignore_eos=bool(body.ignore_eos),
        digests=bool(body.digests),
    )
    try:
        (one,) = await checked(request, [wanted])
    except InputError as error:
        # What the schema let pass is about one value, which begins the sentence, or about the length.
        first = str(error).split()[0]
        param = first if first in MessagesBody.model_fields else "messages"
        raise Refusal(400, str(error), param, "invalid_value") from None
    return one
