"""Where answers come from, in few words: an engine of this process and a service look the same from here."""

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from crucible.errors import InputError
from crucible.numerics.checks import real, whole
from crucible.sampling.params import SamplingParams

Messages = Sequence[Mapping[str, str]]
Progress = Callable[[int, int], None]
_SEED_BITS = 53  # of a drawn seed, so that every JSON reader keeps it whole


@dataclass(frozen=True)
class Sampling:
    """How to choose an answer's tokens; `seed` None is drawn anew for each answer, 0 `temperature` is greedy.

    InputError for the first value that breaks its rule.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    seed: int | None = None
    max_tokens: int = 256
    sampler: str = "inverse-cdf"

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    def __post_init__(self):
        SamplingParams(self.temperature, self.top_k, self.top_p, self.seed or 0, self.sampler)
        if self.seed is not None:
            whole("seed", self.seed)
        whole("max_tokens", self.max_tokens, 1)

    @property
    def greedy(self) -> bool:
        """The largest logit is taken: no draw, no seed."""
        return self.temperature == 0

    def drawn(self) -> "Sampling":
        """The same with its seed decided: None where none is used."""
        if self.greedy:
            return replace(self, seed=None)
        return self if self.seed is not None else replace(self, seed=secrets.randbits(_SEED_BITS))


_NUMBERS = {"temperature": float, "top_p": float, "top_k": int, "seed": int, "max_tokens": int}


def changed(sampling: Sampling, name: str, text: str) -> Sampling:
    """`sampling` with field `name` read from a text; InputError names the value and the rule it breaks."""
    if name == "sampler":
        return replace(sampling, sampler=text)
    text = text.strip()
    if name == "seed" and not text:
        return replace(sampling, seed=None)
    kind, label = _NUMBERS[name], name.replace("_", " ")
    if not text:
        raise InputError(f"{label} is empty; give a number")
    if len(text) > 40 or "_" in text or not text.isascii():
        raise InputError(f"{label} {text[:20]!r} is not a number")
    try:
        value = kind(text)
    except ValueError:
        wanted = "whole number" if kind is int else "number"
        raise InputError(f"{label} {text!r} is not a {wanted}") from None
    return replace(sampling, **{name: real(name, value) if kind is float else value})


@dataclass(frozen=True)
class About:
    """What answers: the model's name, where it runs, and positions of a prompt and its answer together."""

    model: str
    where: str
    capacity: int


@dataclass(frozen=True)
class Piece:
    """Text that became final, and the tokens that came with it."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class State:
    """The random state after an answer: the seed (None where greedy uses none) and the next draw's number."""

    seed: int | None
    next_draw: int

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class End:
    """The end of an answer: all its text and tokens, the prompt's tokens, and what names its bits."""

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    finish_reason: str
    fingerprint: str
    random_state: State


class Source(Protocol):
    """Something that answers. Every method raises CrucibleError with a sentence for the person who asks."""

    name: str
    place: str

    async def open(self, progress: Progress) -> About:
        """Make ready; `progress` hears of (done, total) from any thread. May be called again after an error.

        UnsupportedError for a model that has no chat template."""

    async def count(self, messages: Messages) -> int:
        """Tokens of the prompt that asks for the message after `messages`."""

    def ask(self, messages: Messages, sampling: Sampling) -> AsyncGenerator[Piece | End, None]:
        """Pieces of the answer and its End. Closing the generator early cancels the answer."""

    async def close(self) -> None:
        """Give everything back; may be called twice, and while `open` runs."""


def no_template(model: str) -> str:
    """The sentence for a model that cannot chat."""
    return (
        f"model {model} has no chat template, so it cannot chat; "
        "it serves completions: crucible generate --prompt, or /v1/completions of a service"
    )
