"""From a body to requests of the engine: one for each choice of each prompt, checked before any is queued."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import fastapi

from crucible.engine.request import Checked, Request
from crucible.errors import ContextError, InputError
from crucible.model.card import Card
from crucible.numerics.checks import whole
from crucible.numerics.contract import PAGE_SIZE
from crucible.sampling.params import SEED_LIMIT
from crucible.service.admit import checked
from crucible.service.failure import Refusal
from crucible.service.openai.errors import TOO_LONG, naming
from crucible.service.openai.models import refuse_other_model
from crucible.service.openai.schemas import Common
from crucible.service.openai.unsupported import refuse_unsupported
from crucible.service.state import Service, service

STOPS = 4
CHOICES = 128


@dataclass(frozen=True)
class Plan:
    """What a body asks for: `n` requests for each prompt, prompt by prompt, with seeds S, S + 1, …"""

    body: Common
    card: Card
    checked: list[Checked]
    n: int
    seed: int
    id: str
    created: int


@dataclass(frozen=True)
class Wish:
    """The fields that the two bodies name differently: `param` and `limit_param` are what errors name."""

    param: str
    limit_param: str
    max_tokens: int | None
    logprobs: int | None


def begin(request: fastapi.Request, body: Common) -> Service:
    """The service, once it is clear that it has the model and that no field asks for what it lacks."""
    here = service(request)
    refuse_other_model(here, body.model)
    refuse_unsupported(body)
    return here


async def plan(
    request: fastapi.Request, body: Common, prompts: Sequence[Sequence[int]], wish: Wish, prefix: str
) -> Plan:
    """Checked requests of all choices; Refusal 400 that names the field of the first rule that one breaks."""
    here = service(request)
    n = choices(here, body, len(prompts))
    seed, ready = body.seed, []
    for prompt in prompts:
        first = await _check(request, _request(here, body, prompt, seed, wish), wish)
        seed = first.params.seed
        seeds = ((seed + i) % SEED_LIMIT for i in range(n))
        ready += [replace(first, params=replace(first.params, seed=one)) for one in seeds]
    id = f"{prefix}-{request.state.tally.request_id.removeprefix('req_')}"
    return Plan(body, here.backend.card, ready, n, seed, id, int(time.time()))


def choices(here: Service, body: Common, prompts: int) -> int:
    """Choices of each of so many prompts; Refusal 400 where the queue could not hold them."""
    with naming("n"):
        n = whole("n", 1 if body.n is None else body.n, 1, CHOICES)
    count, queue = n * prompts, here.backend.limits.queue
    if count > queue:
        message = f"{count} choices are asked for and {queue} requests may wait; ask for fewer at once"
        raise Refusal(400, message, "n", "too_many_choices")
    return n


def _request(here: Service, body: Common, prompt: Sequence[int], seed: int | None, wish: Wish) -> Request:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > STOPS:
        message = f"{len(stops)} stop texts are too many; give at most {STOPS}"
        raise Refusal(400, message, "stop", "invalid_value")
    return Request(
        prompt,
        max_tokens=_room(here, len(prompt)) if wish.max_tokens is None else wish.max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=seed,
        sampler=body.sampler or "inverse-cdf",
        stop=tuple(body.stop_token_ids or ()),
        stop_strings=tuple(stops),
        ignore_eos=bool(body.ignore_eos),
        logprobs=wish.logprobs,
        digests=bool(body.digests),
    )


def _room(here: Service, length: int) -> int:
    """Tokens that fit after a prompt, in the context and in the engine's pages; at least 1, to be refused."""
    pages = here.backend.limits.pages * PAGE_SIZE
    return max(1, min(here.backend.card.config.context - length, pages - length + 1))


async def _check(request: fastapi.Request, wanted: Request, wish: Wish) -> Checked:
    config = service(request).backend.card.config
    for token in wanted.stop:
        if not 0 <= token < config.vocab:
            message = f"stop_token_ids holds {token}, which is outside the vocabulary of {config.vocab}"
            raise Refusal(400, message, "stop_token_ids", "invalid_value")
    try:
        (one,) = await checked(request, [wanted])
        return one
    except ContextError as error:
        raise Refusal(400, str(error), wish.param, TOO_LONG) from None
    except InputError as error:
        raise Refusal(400, str(error), _field(str(error), wish), "invalid_value") from None


def _field(sentence: str, wish: Wish) -> str:
    """The field that an error of the engine is about; it begins its sentence if it is a single value."""
    name = sentence.split()[0]
    if sentence.startswith(("a stop string", "stop_strings")):
        return "stop"
    if name == "max_tokens":
        return wish.limit_param
    return name if name in Common.model_fields else wish.param
