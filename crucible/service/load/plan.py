"""A whole run of the load client: warmups apart, then bursts in turn, or one plan of open arrivals."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from crucible.errors import InputError, UnavailableError
from crucible.numerics.checks import whole
from crucible.service.load import asks, client, http
from crucible.service.load.asks import Ask
from crucible.service.load.client import Log
from crucible.service.load.target import Target

_WARMUP_SEED = 1 << 20  # keeps the prompts of warmups apart from those that are timed


@dataclass(frozen=True)
class Plan:
    """Bursts in order; the first `warmups` of them are kept apart."""

    name: str
    bursts: tuple[tuple[Ask, ...], ...]
    warmups: int

    @property
    def requests(self) -> int:
        """All requests, warmups too."""
        return sum(map(len, self.bursts))

    async def run(self, to: Target, log: Log) -> None:
        """Send every burst when the one before has ended; samples go into `log`."""
        for number, burst in enumerate(self.bursts):
            await client.run(to, burst, log, number, warmup=number < self.warmups)


def parse(lengths: str) -> list[int]:
    """Prompt lengths of "33,535"."""
    try:
        return [whole("length", int(part), 1) for part in lengths.split(",")]
    except ValueError:
        raise InputError(f"lengths {lengths!r} are not whole numbers with commas, such as 33,535") from None


def closed(shape: str, bursts: int, max_tokens: int, warmups: int, seed: int) -> Plan:
    """`bursts` times the requests of "4x256" at once, each burst with prompts of its own."""
    try:
        requests, length = (whole("part", int(part), 1) for part in shape.split("x"))
    except ValueError:
        raise InputError(f"shape {shape!r} is not REQUESTSxTOKENS, such as 4x256") from None
    made = tuple(
        tuple(asks.closed([length] * requests, max_tokens, seed, i)) for i in range(bursts + warmups)
    )
    return Plan(f"{bursts} bursts of {shape}, {max_tokens} tokens each, seed {seed}", made, warmups)


def arriving(
    kind: str, rate: float, count: int, lengths: Sequence[int], max_tokens: int, warmups: int, seed: int
) -> Plan:
    """`warmups` single requests, then `count` arrivals that wait for nothing."""
    first = [tuple(asks.closed(lengths[:1], max_tokens, seed + _WARMUP_SEED, i)) for i in range(warmups)]
    timed = tuple(asks.open_arrivals(kind, rate, lengths, count, max_tokens, seed))
    shown = ",".join(map(str, lengths))
    name = f"{count} {kind} arrivals at {rate:g}/s of {shown} tokens, {max_tokens} each, seed {seed}"
    return Plan(name, (*first, timed), warmups)


async def named(to: Target, needed: bool) -> Target:
    """The target with a model name, asked of the service where it is `needed` and not given.

    UnavailableError where nobody answers at all.
    """
    try:
        status, body = await http.fetch(to, "/v1/models" if needed and not to.model else "/health/ready")
    except http.BadReply as error:
        raise UnavailableError(f"{error}; start one with crucible serve") from None
    if to.model or not needed:
        return to
    try:
        return replace(to, model=json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise UnavailableError(f"{to.url} names no model (status {status}); give one with --model") from None
