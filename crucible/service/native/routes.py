"""Paths of the native face."""

import fastapi
from fastapi import APIRouter, Response

from crucible.engine.request import Checked
from crucible.service.admit import admit, apart, checked
from crucible.service.failure import Refusal
from crucible.service.native.bodies import (
    Detokenize,
    Detokenized,
    Generate,
    Generated,
    Message,
    Tokenize,
    Tokenized,
)
from crucible.service.native.errors import RESPONSES, sse_error
from crucible.service.native.reply import Reply
from crucible.service.route import StrictRoute
from crucible.service.sse import EventStream, cancel_all, json_reply, wait_or_cancel
from crucible.service.state import service

_STREAM = (
    "with stream true: `tokens` events (index, tokens, text, and logprobs and logits_digests if asked for) "
    "whose lists and texts joined are those of the `end` event, which holds the object of the plain reply; "
    "an `error` event ends a stream that failed"
)
_GENERATED = {
    "model": Generated,
    "description": "the finished generation",
    "content": {"text/event-stream": {"schema": {"type": "string", "description": _STREAM}}},
}


def router() -> APIRouter:
    """The routes of this face."""
    routes = APIRouter(route_class=StrictRoute, tags=["native"], responses=RESPONSES)
    routes.post("/v1/generate", summary="Continue a prompt", responses={200: _GENERATED})(generate)
    routes.post("/v1/tokenize", summary="Text to token ids", responses={200: {"model": Tokenized}})(tokenize)
    routes.post("/v1/detokenize", summary="Token ids to text", responses={200: {"model": Detokenized}})(
        detokenize
    )
    return routes


async def generate(request: fastapi.Request, body: Generate) -> Response:
    """Continue a prompt; the same request with the same seed gives the same tokens on any machine."""
    here = service(request)
    prompt = await _prompt(request, "prompt", body.prompt, body.messages, fit=True)
    (asked,) = await checked(request, [body.request(prompt)])
    (stream,) = await admit(request, [asked])
    reply = Reply(
        id=request.state.tally.request_id,
        model=here.settings.model,
        fingerprint=here.backend.card.fingerprint(asked.params.sampler),
        request=asked,
        seed=_seed(body, asked),
        prompt_ids=body.prompt_ids,
    )
    if body.stream:
        return EventStream(reply.events(stream), lambda: cancel_all([stream]), sse_error)
    (result,) = await wait_or_cancel(request, [stream])
    return json_reply(reply.whole(result))


async def tokenize(request: fastapi.Request, body: Tokenize) -> Response:
    """Token ids of a text, or of messages by the chat template."""
    prompt = await _prompt(request, "text", body.text, body.messages)
    if isinstance(prompt, str):
        text, card = prompt, service(request).backend.card
        prompt = await apart(request, lambda: card.encode(text))
    return json_reply({"tokens": prompt, "count": len(prompt)})


async def detokenize(request: fastapi.Request, body: Detokenize) -> Response:
    """Text of token ids."""
    card = service(request).backend.card
    return json_reply({"text": await apart(request, lambda: card.decode(body.tokens))})


async def _prompt(
    request: fastapi.Request,
    name: str,
    given: str | list[int] | None,
    messages: list[Message] | None,
    fit: bool = False,
) -> str | list[int]:
    if (given is None) == (messages is None):
        how = "both are" if given is not None else "neither is"
        raise Refusal(422, f"of {name} and messages {how} given; give one of them", name, "one_of_two")
    if messages is None:
        return given
    card = service(request).backend.card
    return await apart(
        request, lambda: card.encode_chat([message.model_dump() for message in messages], fit=fit)
    )


def _seed(body: Generate, asked: Checked) -> int | None:
    """The seed that gives these tokens again; null where none was given and greedy needs none."""
    return body.seed if asked.params.greedy else asked.params.seed
