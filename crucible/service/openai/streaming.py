"""The two ways a reply goes out: whole, or as chunks while its choices grow."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

import fastapi
from fastapi import Response

from crucible.engine.events import Result, Token
from crucible.service.admit import admit
from crucible.service.openai.errors import sse_error
from crucible.service.openai.plan import Plan
from crucible.service.openai.replies import extras, frame, prompt_ids, refuse_cancelled, usage
from crucible.service.sse import EventStream, cancel_all, event, json_reply, wait_or_cancel
from crucible.service.tally import Counted


class Shape(Protocol):
    """How an endpoint spells its choices; `kind` and `chunk_kind` are what its objects are called."""

    kind: str
    chunk_kind: str

    def whole(self, index: int, result: Result) -> dict[str, Any]:
        """Text of a finished choice."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """What the first chunk of a choice holds before any token, if there is such a chunk."""

    def piece(self, text: str) -> dict[str, Any]:
        """Text that tokens added."""

    def end(self) -> dict[str, Any]:
        """The text of the chunk that brings the finish reason."""

    def logprobs(self, index: int, tokens: Sequence[int], found: Sequence) -> dict[str, Any]:
        """Log-probabilities of the choice's next tokens."""


async def reply(request: fastapi.Request, plan: Plan, shape: Shape) -> Response:
    """Queue all requests of a plan, or none, and answer as its body asks."""
    streams = await admit(request, plan.checked)
    if plan.body.stream:
        return EventStream(_chunks(plan, shape, streams), lambda: cancel_all(streams), sse_error)
    results = await wait_or_cancel(request, streams)
    choices = []
    for index, result in enumerate(results):
        refuse_cancelled(result)
        logprobs = (
            shape.logprobs(index, result.tokens, result.logprobs) if result.logprobs is not None else None
        )
        choices.append(
            {
                "index": index,
                **shape.whole(index, result),
                "logprobs": logprobs,
                "finish_reason": result.finish_reason,
                **extras(plan, result.tokens, result.logits_digests),
                **prompt_ids(plan, index),
            }
        )
    return json_reply({**frame(plan, shape.kind, choices), "usage": usage(plan, results)})


async def _chunks(plan: Plan, shape: Shape, streams: Sequence[Counted]) -> AsyncGenerator[bytes, None]:
    """Events of all choices as they grow, then [DONE]."""
    options = plan.body.stream_options
    with_usage = bool(options and options.include_usage)
    head = frame(plan, shape.chunk_kind, [])

    def chunk(choice: dict[str, Any]) -> bytes:
        return event({**head, "choices": [choice], **({"usage": None} if with_usage else {})})

    results: dict[int, Result] = {}
    for index in range(len(streams)):
        opening = shape.opening(index)
        if opening is not None:
            yield chunk({"index": index, **opening, "logprobs": None, "finish_reason": None})
    async with contextlib.aclosing(_merged(streams)) as batches:
        async for index, batch in batches:
            tokens = [one for one in batch if isinstance(one, Token)]
            choice = _grown(plan, shape, index, tokens)
            if choice is not None:
                yield chunk(choice)
            if isinstance(batch[-1], Result):
                results[index] = batch[-1]
                refuse_cancelled(batch[-1])
                yield chunk(
                    {
                        "index": index,
                        **shape.end(),
                        "logprobs": None,
                        "finish_reason": batch[-1].finish_reason,
                        **prompt_ids(plan, index),
                    }
                )
    if with_usage:
        yield event({**head, "usage": usage(plan, [results[index] for index in range(len(streams))])})
    yield event(b"[DONE]")


def _grown(plan: Plan, shape: Shape, index: int, tokens: Sequence[Token]) -> dict[str, Any] | None:
    """The choice of a chunk that brings tokens; None where they bring nothing that was asked for."""
    text = "".join(one.text for one in tokens)
    ids = [one.token for one in tokens]
    found = [one.logprobs for one in tokens if one.logprobs is not None]
    added = extras(plan, ids, [one.logits_digest for one in tokens])
    if not tokens or not (text or found or added):
        return None
    return {
        "index": index,
        **shape.piece(text),
        "logprobs": shape.logprobs(index, ids, found) if found else None,
        "finish_reason": None,
        **added,
    }


async def _merged(streams: Sequence[Counted]) -> AsyncGenerator[tuple[int, list[Token | Result]], None]:
    """(number of the stream, its batch) of all streams, as they come; raises what the first failure is."""
    if len(streams) == 1:
        async for batch in streams[0]:
            yield 0, batch
        return
    news: asyncio.Queue[tuple[int, list[Token | Result] | Exception]] = asyncio.Queue()

    async def pump(index: int, stream: Counted) -> None:
        try:
            async for batch in stream:
                news.put_nowait((index, batch))
        except Exception as error:
            news.put_nowait((index, error))

    pumps = [asyncio.ensure_future(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(streams)
        while running:
            index, batch = await news.get()
            if isinstance(batch, Exception):
                raise batch
            yield index, batch
            running -= isinstance(batch[-1], Result)
    finally:
        for task in pumps:
            task.cancel()
