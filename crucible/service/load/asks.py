"""What is asked and when: prompts, closed bursts, and open arrivals that a seed repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from crucible.errors import InputError
from crucible.numerics import inputs
from crucible.numerics.checks import real, whole

# Ids that every vocabulary here has and that end no sequence: prompts need no tokenizer.
_FIRST_ID, _IDS = 32, 256
_ARRIVALS = 0xA441  # keeps these draws apart from those of prompts
CLOSED, FIXED, POISSON = "closed", "fixed", "poisson"


@dataclass(frozen=True)
class Ask:
    """One request of a burst.

    `at`: seconds after the burst begins; `after` (number of another request of the burst, tokens): not
    before that many of its tokens have come. `label` groups requests in tables. Greedy without `temperature`.
    """

    label: str
    prompt: tuple[int, ...]
    max_tokens: int = 64
    at: float = 0.0
    after: tuple[int, int] | None = None
    temperature: float = 0.0
    seed: int | None = None


def prompt(length: int, seed: int, number: int, first: int | None = None) -> tuple[int, ...]:
    """`length` token ids by the counter-based generator; two numbers share no beginning of some tokens.

    Equal first tokens are one in 256. With `first`, the first token counts on from it: of 256 prompts in turn
    no two have the same.
    """
    drawn = inputs.bits(seed, number, whole("prompt length", length, 1)) % _IDS
    if first is not None:
        drawn[0] = first % _IDS
    return tuple((drawn + _FIRST_ID).tolist())


def closed(
    lengths: Sequence[int], max_tokens: int, seed: int, burst: int, first: int | None = None
) -> list[Ask]:
    """A burst whose requests are all sent at once. The prompts of another burst are others, from the first
    token on: one token that a cached prompt shares makes another pass of it, on a GPU a much slower one.

    `first`: where the burst's first tokens begin to count; behind those of the bursts before it if not given.
    """
    begin = seed + burst * len(lengths) if first is None else first
    made = []
    for i, length in enumerate(lengths):
        ids = prompt(length, seed, burst * 4096 + i, begin + i)
        made.append(Ask(str(length), ids, whole("max_tokens", max_tokens, 1)))
    return made


def fixed(rate: float, count: int) -> tuple[float, ...]:
    """Seconds of `count` arrivals, 1/rate apart, the first at 0."""
    gap = 1.0 / _rate(rate)
    return tuple(i * gap for i in range(whole("count", count, 1)))


def poisson(rate: float, count: int, seed: int) -> tuple[float, ...]:
    """Seconds of `count` arrivals of a Poisson process of `rate` a second: gaps -ln(u)/rate, the first gap
    before the first arrival. Equal seeds give equal times."""
    rate, count = _rate(rate), whole("count", count, 1)
    times, now = [], 0.0
    for bits in inputs.bits(seed, _ARRIVALS, count).tolist():
        now -= math.log((bits + 0.5) / 2**32) / rate
        times.append(round(now, 9))
    return tuple(times)


def open_arrivals(
    kind: str, rate: float, lengths: Sequence[int], count: int, max_tokens: int, seed: int, burst: int = 0
) -> list[Ask]:
    """`count` requests that arrive whether or not earlier ones have ended; lengths are taken in turn."""
    check_arrivals(kind, rate)
    times = fixed(rate, count) if kind == FIXED else poisson(rate, count, seed + burst)
    asks = closed([lengths[i % len(lengths)] for i in range(count)], max_tokens, seed, burst)
    return [replace(ask, at=at) for ask, at in zip(asks, times, strict=True)]


def check_arrivals(kind: str, rate: float) -> None:
    """InputError for arrivals that there are not, or a rate that is none."""
    if kind not in (FIXED, POISSON):
        raise InputError(f"unknown arrivals {kind!r}; choose {FIXED} or {POISSON}")
    _rate(rate)


def _rate(rate: float) -> float:
    rate = real("rate", rate)
    if not 0 < rate < math.inf:
        raise InputError(f"rate {rate} must be a positive number of requests a second")
    return rate
