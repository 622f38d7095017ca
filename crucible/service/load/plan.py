"""A whole run of the load client: warmups apart, then bursts in turn, or one plan of open arrivals."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from crucible.errors import InputError, UnavailableError
from crucible.files import brief
from crucible.numerics.checks import whole
from crucible.service.load import asks, client, http
from crucible.service.load.asks import Ask
from crucible.service.load.client import Log
from crucible.service.load.target import Target

_WARMUP_SEED = 1 << 20  # keeps the prompts of warmups apart from those that are timed
# What is held at once: the requests of one burst, or all arrivals, and the ids of their prompts.
MOST_REQUESTS, MOST_ARRIVALS, MOST_IDS = 4096, 65536, 1 << 23
LONGEST_PLAN = 24 * 3600.0  # seconds until the last arrival is due


@dataclass(frozen=True)
class Plan:
    """`count` bursts in order, each made by `make` when its turn comes; the first `warmups` are kept apart.

    `requests` counts all of them, warmups too; `longest` is the longest prompt, in tokens, and `max_tokens`
    what each request generates.
    """

    name: str
    count: int
    warmups: int
    requests: int
    longest: int
    max_tokens: int
    make: Callable[[int], Sequence[Ask]]

    @property
    def bursts(self) -> Iterator[Sequence[Ask]]:
        """The bursts, one at a time."""
        return map(self.make, range(self.count))

    def check(self, context: int | None) -> None:
        """InputError where a request is longer than the service's context, if that is known."""
        if context is not None and self.longest > context:
            raise InputError(
                f"a prompt of {self.longest} tokens is longer than the service's context of {context}; "
                "give shorter ones"
            )
        if context is not None and self.longest + self.max_tokens > context:
            room = context - self.longest
            raise InputError(
                f"a prompt of {self.longest} tokens and {self.max_tokens} generated ones exceed the "
                f"service's context of {context}; give shorter prompts"
                + (f" or a --max-tokens of at most {room}" if room else "")
            )

    async def run(self, to: Target, log: Log) -> None:
        """Send every burst when the one before has ended; samples go into `log`."""
        for number, burst in enumerate(self.bursts):
            await client.run(to, burst, log, number, warmup=number < self.warmups)


def parse(lengths: str) -> list[int]:
    """Prompt lengths of "33,535"."""
    try:
        return [whole("length", int(part), 1, MOST_IDS) for part in lengths.split(",")]
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"lengths {brief(lengths)} are not whole numbers with commas, such as 33,535"
        ) from None


def closed(shape: str, bursts: int, max_tokens: int, warmups: int, seed: int, begin: int = 0) -> Plan:
    """`bursts` times the requests of "4x256" at once, each burst with prompts of its own.

    `begin`: the number of the first one, so a plan that begins behind another shares no prompt with it.
    InputError for more than MOST_REQUESTS a burst or MOST_IDS tokens in its prompts.
    """
    parts = shape.split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"shape {brief(shape)} is not REQUESTSxTOKENS, such as 4x256")
    requests = whole("requests of a burst", int(parts[0]), 1, MOST_REQUESTS)
    length = whole("prompt tokens", int(parts[1]), 1)
    _check_ids(requests * length)
    count = bursts + warmups

    def make(number: int) -> Sequence[Ask]:
        return asks.closed([length] * requests, max_tokens, seed, begin + number)

    name = f"{bursts} bursts of {shape}, {max_tokens} tokens each, seed {seed}"
    return Plan(name, count, warmups, count * requests, length, max_tokens, make)


def arriving(
    kind: str, rate: float, count: int, lengths: Sequence[int], max_tokens: int, warmups: int, seed: int
) -> Plan:
    """`warmups` single requests, then `count` arrivals that wait for nothing.

    InputError for more than MOST_ARRIVALS or MOST_IDS tokens in their prompts, and for arrivals that would
    take longer than LONGEST_PLAN.
    """
    whole("arrivals", count, 1, MOST_ARRIVALS)
    taken = [lengths[i % len(lengths)] for i in range(count)]
    _check_ids(sum(taken))
    asks.check_arrivals(kind, rate)
    if (span := (count - (kind == asks.FIXED)) / rate) > LONGEST_PLAN:
        raise InputError(
            f"{count} arrivals at {rate:g} a second take {span:.3g} s, more than the {LONGEST_PLAN:g} that a "
            "run may; give a higher --rate or a smaller --count"
        )

    def make(number: int) -> Sequence[Ask]:
        if number < warmups:
            return asks.closed(lengths[:1], max_tokens, seed + _WARMUP_SEED, number, seed + count + number)
        return asks.open_arrivals(kind, rate, lengths, count, max_tokens, seed)

    shown = ",".join(map(str, lengths))
    name = f"{count} {kind} arrivals at {rate:g}/s of {shown} tokens, {max_tokens} each, seed {seed}"
    return Plan(name, warmups + 1, warmups, warmups + count, max(taken), max_tokens, make)


def _check_ids(count: int) -> None:
    if count > MOST_IDS:
        raise InputError(
            f"{count:,} prompt tokens at once are more than the {MOST_IDS:,} that this client holds; "
            "ask for fewer requests or shorter prompts"
        )


async def first_model(to: Target) -> tuple[int, dict]:
    """(status, the first entry of /v1/models; {} where there is none with an id).

    UnavailableError where nobody answers at all, and where another key is asked for.
    """
    try:
        status, body = await http.fetch(to, "/v1/models")
    except http.BadReply as error:
        raise UnavailableError(f"{error}; start one with crucible serve") from None
    if status == 401:
        lacks = "asks for a key" if to.api_key is None else "asks for another key"
        raise UnavailableError(
            f"{to.url} {lacks} (status 401); give its key with --api-key or CRUCIBLE_API_KEY"
        )
    try:
        card = json.loads(body)["data"][0]
    except (ValueError, LookupError, TypeError):
        card = None
    return status, card if isinstance(card, dict) and "id" in card else {}


async def known(to: Target, needed: bool) -> tuple[Target, int | None]:
    """The target, with a model name where one is `needed` and not given, and the model's context.

    The service is asked for both; one that does not say its context gives None. UnavailableError where
    nobody answers at all.
    """
    status, card = await first_model(to)
    name, context = str(card.get("id", "")), card.get("context")
    if needed and not to.model:
        if not name:
            raise UnavailableError(f"{to.url} names no model (status {status}); give one with --model")
        to = replace(to, model=name)
    return to, context if isinstance(context, int) and context > 0 else None
