"""What both replies consist of: the frame around choices, what is added to a choice, the usage."""

from collections.abc import Sequence
from typing import Any

from crucible.engine.events import Result
from crucible.service.failure import Refusal
from crucible.service.openai.plan import Plan


def frame(plan: Plan, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A reply or a chunk; `seed` is this service's own field: S, with which choice i used S + i."""
    return {
        "id": plan.id,
        "object": kind,
        "created": plan.created,
        "model": plan.body.model,
        "system_fingerprint": plan.card.fingerprint(plan.checked[0].params.sampler),
        "seed": plan.seed,
        "choices": choices,
    }


def extras(plan: Plan, tokens: Sequence[int], digests: Sequence[str] | None) -> dict[str, Any]:
    """Fields of a choice that return_token_ids and digests ask for."""
    added: dict[str, Any] = {}
    if plan.body.return_token_ids:
        added["token_ids"] = tokens
    if plan.body.digests:
        added["logits_digests"] = digests
    return added


def prompt_ids(plan: Plan, index: int) -> dict[str, Any]:
    """A choice's prompt_token_ids, which return_token_ids asks for too."""
    return {"prompt_token_ids": plan.checked[index].prompt} if plan.body.return_token_ids else {}


def usage(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    """Tokens of each prompt, counted once however many choices it has, and of all choices."""
    firsts = results[:: plan.n]
    prompt = sum(len(result.prompt_tokens) for result in firsts)
    completion = sum(len(result.tokens) for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(result.cached_rows for result in firsts)},
    }


def refuse_cancelled(result: Result) -> None:
    """Refusal 503 for a request that was cut off by the service: half an answer is not passed off as one."""
    if result.finish_reason == "cancelled":
        raise Refusal(503, "the service cancelled the request; send it again", code="cancelled")
