"""Sampling parameters of one request, validated once and kept in the formats that the contract names."""

import math
import struct
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from crucible.errors import InputError
from crucible.numerics.checks import real, whole

SAMPLERS = ("inverse-cdf", "gumbel-id")
Sampler = Literal["inverse-cdf", "gumbel-id"]
SEED_LIMIT = 1 << 64
_ZEROS = (struct.pack("<d", 0.0), struct.pack("<d", -0.0))
_LARGE = 1e38


@dataclass(frozen=True)
class SamplingParams:
    """How to choose a token; temperature 0 is greedy and uses no draw.

    temperature: >= 0, kept as float32; top_k: 0 means the whole vocabulary; top_p: f64 in (0, 1];
    seed: 64 bits, the whole identity of the random state beside the draw number.
    InputError names the first value that breaks its rule.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    sampler: Sampler = "inverse-cdf"
    greedy: bool = field(init=False, repr=False, compare=False)  # takes the largest logit without a draw

    def __post_init__(self):
        temperature, top_p = real("temperature", self.temperature), real("top_p", self.top_p)
        if not (math.isfinite(temperature) and temperature >= 0):
            raise InputError(f"temperature {self.temperature} must be finite and at least 0 (0 is greedy)")
        rounded = _float32(temperature)
        # By bits: a caller's floating-point mode may compare a subnormal as zero.
        positive = struct.pack("<d", temperature) not in _ZEROS
        greedy = not int(rounded.view(np.uint32)) << 1 & 0xFFFFFFFF
        if math.isinf(rounded) or (positive and greedy):
            raise InputError(f"temperature {self.temperature} does not fit float32; use 0 for greedy")
        if not 0 < top_p <= 1:
            raise InputError(f"top_p {self.top_p} must be greater than 0 and at most 1 (1 keeps all)")
        top_k, seed = whole("top_k", self.top_k), whole("seed", self.seed)
        if top_k < 0:
            raise InputError(f"top_k {top_k} must be 0 (the whole vocabulary) or more")
        if not 0 <= seed < SEED_LIMIT:
            raise InputError(f"seed {seed} must fit 64 bits: 0 to {SEED_LIMIT - 1}")
        object.__setattr__(self, "greedy", greedy)
        if not isinstance(self.sampler, str) or self.sampler not in SAMPLERS:
            raise InputError(f"sampler {self.sampler!r} is unknown; choose {' or '.join(SAMPLERS)}")
        for name, value in (("temperature", rounded), ("top_k", top_k), ("top_p", top_p), ("seed", seed)):
            object.__setattr__(self, name, value)


def _float32(value: float) -> np.float32:
    """The nearest float32; infinite, without numpy's warning, where there is none."""
    if value < _LARGE:
        return np.float32(value)
    with np.errstate(over="ignore"):
        return np.float32(value)
