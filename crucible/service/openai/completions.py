"""POST /v1/completions: texts or token ids, continued."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import fastapi
from fastapi import APIRouter

from crucible.engine.events import Result
from crucible.model.tokenizer import Tokenizer
from crucible.numerics.checks import whole
from crucible.service.admit import apart
from crucible.service.failure import Refusal
from crucible.service.openai.documents import Completion, streamed
from crucible.service.openai.errors import naming
from crucible.service.openai.logprobs import TOP, LegacyLogprobs
from crucible.service.openai.plan import Wish, begin, choices, plan
from crucible.service.openai.schemas import CompletionBody
from crucible.service.openai.streaming import reply

MAX_TOKENS = 16


def add(routes: APIRouter) -> None:
    """The route of completions."""

    @routes.post(
        "/v1/completions", summary="Continue prompts", responses=streamed(Completion, "the continuations")
    )
    async def complete(request: fastapi.Request, body: CompletionBody):
        here = begin(request, body)
        _refuse_search(body)
        logprobs = body.logprobs
        if logprobs is not None:
            with naming("logprobs"):
                logprobs = whole("logprobs", logprobs, 0, TOP)
        card, prompts = here.backend.card, _prompts(body)
        choices(here, body, len(prompts))
        with naming("prompt"):
            ids = await apart(
                request,
                lambda: [card.encode(one, fit=True) if isinstance(one, str) else one for one in prompts],
            )
        max_tokens = MAX_TOKENS if body.max_tokens is None else body.max_tokens
        wish = Wish("prompt", "max_tokens", max_tokens, logprobs)
        planned = await plan(request, body, ids, wish, "cmpl")
        echoes = None
        if body.echo:
            texts = [one if isinstance(one, str) else card.decode(one) for one in prompts]
            echoes = [text for text in texts for _ in range(planned.n)]
        return await reply(request, planned, _Completion(card.tokenizer, echoes))


class _Completion:
    """Choices are texts, behind their prompts where `echoes` gives those."""

    kind = chunk_kind = "text_completion"

    def __init__(self, tokenizer: Tokenizer, echoes: Sequence[str] | None):
        self._echoes = echoes
        self._logprobs = defaultdict(lambda: LegacyLogprobs(tokenizer))

    def whole(self, index: int, result: Result) -> dict[str, Any]:
        return {"text": (self._echoes[index] if self._echoes else "") + result.text}

    def opening(self, index: int) -> dict[str, Any] | None:
        return {"text": self._echoes[index]} if self._echoes else None

    def piece(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def end(self) -> dict[str, Any]:
        return {"text": ""}

    def logprobs(self, index: int, tokens: Sequence[int], found: Sequence) -> dict[str, Any]:
        return self._logprobs[index].part(tokens, found)


def _prompts(body: CompletionBody) -> list[str] | list[list[int]]:
    """The prompts one by one; a flat list of token ids is one prompt."""
    if isinstance(body.prompt, str):
        return [body.prompt]
    if not body.prompt:
        raise Refusal(400, "prompt is an empty list; give a text or token ids", "prompt", "invalid_value")
    return [body.prompt] if isinstance(body.prompt[0], int) else body.prompt


def _refuse_search(body: CompletionBody) -> None:
    """Nothing is generated to be thrown away, and no log-probability of a prompt is known."""
    if body.best_of is not None and body.best_of != (1 if body.n is None else body.n):
        message = f"best_of {body.best_of} differs from n; leave it out, every choice is returned"
        raise Refusal(400, message, "best_of", "unsupported_parameter")
    if body.echo and body.logprobs is not None:
        message = (
            "echo with logprobs would need those of the prompt, which are not computed; send one of them"
        )
        raise Refusal(400, message, "echo", "unsupported_parameter")
