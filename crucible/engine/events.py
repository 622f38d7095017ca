"""What a request gives back: a Token as each is made, then one Result, or a RequestError."""

from dataclasses import dataclass, field
from typing import NamedTuple

from crucible.errors import CrucibleError, UnavailableError
from crucible.model.generate import RandomState


class QueueFull(UnavailableError):
    """As many requests wait as the engine lets wait; nothing of the new one was kept."""


class EngineStopped(UnavailableError):
    """The engine was closed, or a step of it failed: it takes no request and hands out no token any more."""


class RequestError(CrucibleError):
    """A request failed by itself, the others are untouched: `results`, if it was one of a list."""

    def __init__(self, message: str, results: "list[Result | None] | None" = None):
        super().__init__(message)
        self.results = results


class TemperatureTooLow(RequestError):
    """A request failed by its own temperature, which a logit divided by it overflows."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """A token of the vocabulary and the log of its probability (f64, contract section 8)."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of one step: the chosen token's logprob, and the likeliest tokens (ties by id), likeliest first."""

    chosen: float
    top: tuple[TopLogprob, ...]


class Token(NamedTuple):
    """One generated token: its number within the request, the text that it makes final, what was asked for.

    A stop string holds text back until it is clear that it does not come: the text may belong to
    earlier tokens.
    """

    index: int
    token: int
    text: str
    kept: int
    logits_digest: str | None = None
    logprobs: Logprobs | None = None


@dataclass(frozen=True)
class Timings:
    """Seconds from submission to admission, to the first token (None without one) and to the end."""

    queued: float
    first_token: float | None
    total: float


@dataclass(frozen=True)
class Result:
    """A request's end; all but `id` and the last three fields depend on the request alone.

    finish_reason: stop (a stop token or string, named by `stopped_by`), length or cancelled. `tokens`
    keeps the stop token, `text` ends before a stop string. logits_digests, the digests of the final
    K and V and logprobs are None unless asked for. cached_rows: prompt rows that the prefix cache saved.
    """

    id: int = field(compare=False)
    text: str
    tokens: list[int]
    prompt_tokens: list[int]
    finish_reason: str
    stopped_by: int | str | None
    random_state: RandomState
    logits_digests: list[str] | None
    k_digest: str | None
    v_digest: str | None
    logprobs: list[Logprobs] | None
    cached_rows: int = field(default=0, compare=False)
    preemptions: int = field(default=0, compare=False)
    timings: Timings | None = field(default=None, compare=False)
