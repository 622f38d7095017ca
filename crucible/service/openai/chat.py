"""POST /v1/chat/completions: messages through the model's chat template, answered."""

from collections.abc import Sequence
from typing import Any

import fastapi
from fastapi import APIRouter

from crucible.engine.events import Result
from crucible.model.card import Card
from crucible.numerics.checks import whole
from crucible.service.failure import Refusal
from crucible.service.openai.documents import ChatCompletion, streamed
from crucible.service.openai.errors import naming
from crucible.service.openai.logprobs import TOP, chat_logprobs
from crucible.service.openai.messages import encode_messages
from crucible.service.openai.plan import Wish, begin, plan
from crucible.service.openai.schemas import ChatBody
from crucible.service.openai.streaming import reply


def add(routes: APIRouter) -> None:
    """The route of chat completions."""

    @routes.post(
        "/v1/chat/completions", summary="Answer messages", responses=streamed(ChatCompletion, "the answers")
    )
    async def chat(request: fastapi.Request, body: ChatBody):
        here = begin(request, body)
        card = here.backend.card
        ids = await encode_messages(request, card, body)
        limit_param, max_tokens = _limit(body)
        wish = Wish("messages", limit_param, max_tokens, _logprobs(body))
        planned = await plan(request, body, [ids], wish, "chatcmpl")
        return await reply(request, planned, _Chat(card))


class _Chat:
    """Choices are messages of the assistant; the first chunk of a stream gives the role."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, card: Card):
        self._card = card

    def whole(self, index: int, result: Result) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": result.text, "refusal": None}}

    def opening(self, index: int) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def end(self) -> dict[str, Any]:
        return {"delta": {}}

    def logprobs(self, index: int, tokens: Sequence[int], found: Sequence) -> dict[str, Any]:
        return chat_logprobs(self._card.tokenizer, tokens, found)


def _limit(body: ChatBody) -> tuple[str, int | None]:
    """(field that gives it, max_tokens); None where neither name of it is given."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = f"max_tokens {old} and max_completion_tokens {new} differ; send one of them"
        raise Refusal(400, message, "max_tokens", "invalid_value")
    return ("max_tokens", old) if new is None else ("max_completion_tokens", new)


def _logprobs(body: ChatBody) -> int | None:
    """How many likeliest tokens the engine reports, None for no log-probabilities."""
    top = body.top_logprobs
    with naming("top_logprobs"):
        count = whole("top_logprobs", 0 if top is None else top, 0, TOP)
    if count and not body.logprobs:
        message = f"top_logprobs {count} needs logprobs; send logprobs true"
        raise Refusal(400, message, "top_logprobs", "invalid_value")
    return count if body.logprobs else None
