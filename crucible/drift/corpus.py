"""The numbered requests of drift runs: prompts of held-out text, with lengths and sampling by number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crucible.drift.paths import Request
from crucible.model import heldout
from crucible.model.model import Model
from crucible.numerics.inputs import bits
from crucible.sampling.params import SamplingParams

SEED = 20260908
FIRST_SEED = 141025  # of request 0
STEPS = 16
LENGTHS = (24, 48, 16, 96, 33, 64)
SETTINGS = ((1.0, 40), (0.8, 40), (1.0, 128), (0.7, 500), (1.0, 5))  # (temperature, top_k)
_TEXT = 1 << 18  # characters of the held-out text that prompts are cut from
_APART = 101  # tokens from one prompt's place in it to the next one's: prompts up to that length are disjoint
_STREAM = 1 << 24

Prompts = Callable[[int, int], tuple[int, ...]]  # (prompt number, length) -> token ids


def prompts_of(model: Model) -> Prompts:
    """Prompts cut from the held-out text for a model with a tokenizer of a file, else of random ids.

    Some 700 of them share no part of the text: intervals clustered by prompt take prompts for independent.
    """
    if model.source is None:
        vocab = model.config.vocab

        def random(number: int, length: int) -> tuple[int, ...]:
            words = bits(SEED, _STREAM + number, length)
            return tuple(int(word) * vocab >> 32 for word in words)

        return random
    ids = model.encode(heldout.text()[:_TEXT])

    places = len(ids) // _APART

    def text(number: int, length: int) -> tuple[int, ...]:
        start = min(number * 271 % places * _APART, len(ids) - length)
        return tuple(ids[start : start + length])

    return text


@dataclass(frozen=True)
class Corpus:
    """Request number n is replicate n % replicates of prompt n // replicates.

    Prompt p has LENGTHS[p % 6] tokens; its replicates share it and differ in their seed (`seed` and 977 more
    for each number) and setting.
    """

    prompts: Prompts
    steps: int = STEPS
    replicates: int = 2
    sampler: str = "inverse-cdf"
    lengths: Sequence[int] = LENGTHS
    seed: int = FIRST_SEED

    def request(self, number: int) -> Request:
        """Request `number`, the same at every call."""
        prompt = number // self.replicates
        length = self.lengths[prompt % len(self.lengths)]
        temperature, top_k = SETTINGS[number % len(SETTINGS)]
        sampling = SamplingParams(temperature, top_k, 1.0, (self.seed + 977 * number) % 2**64, self.sampler)
        return Request(self.prompts(prompt, length), self.steps, sampling, number, f"prompt {prompt}")

    def requests(self, count: int, first: int = 0) -> list[Request]:
        """Requests first .. first+count-1."""
        return [self.request(first + i) for i in range(count)]


# A request whose first token lies on a near tie between reference attention and online softmax in tiles of 32
# keys, on SmolLM2 in f32. Found in an earlier corpus, at step 3; its draw is inside the 0.56 % that differ.
RECORDED = (
    "44 teoliphant Exp $\n\nMake a dictionary out of the non-None arguments, plus conversion of\n"
    "*legacy* and sanity checks.\n\nSet printing options.\n\n"
    "These options determine the way floating point numbers, arrays and\n"
    "other NumPy objects are displayed.\n\nParameters\n----------\n\n*"
)
RECORDED_SAMPLING = SamplingParams(1.0, 128, 1.0, 40)


def recorded(model: Model) -> Request:
    """The recorded request in a model's tokens."""
    return Request(tuple(model.encode(RECORDED)), STEPS, RECORDED_SAMPLING, -1, "recorded")
