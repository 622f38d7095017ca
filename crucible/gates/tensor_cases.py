"""The cases of the tensor gate: which slices, which contents, which geometry (inputs: tensor_inputs)."""

from dataclasses import dataclass, replace

import numpy as np

from crucible.kv.slices import Slice
from crucible.numerics.inputs import bits

CONTEXT = 1024
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 941, 1023, 1024)
CONTENTS = ("normal", "groups", "ascending", "descending", "spikes", "zeros", "subnormals")
FIXED_CONTENTS = ("groups", "ascending", "descending", "zeros", "subnormals")  # zeros holds spikes too
FUZZ_CASES = 128
QUICK_SCORES = 4000  # a case of the quick part has at most this many scores (rows x history x heads)

_PREFIXED = ((16, 16), (17, 15), (100, 37), (960, 64))
_FUZZ_STREAM, _GEOMETRY_STREAM = 1 << 20, 1 << 21


@dataclass(frozen=True)
class Geometry:
    """Group size G = Hq/Hkv, KV heads, head dimension, and page-table entries beyond those needed."""

    G: int = 4
    Hkv: int = 3
    D: int = 64
    spare: int = 3

    def __str__(self) -> str:
        return f"G{self.G} Hkv{self.Hkv} D{self.D}"


@dataclass(frozen=True)
class Plan:
    """A case before its arrays are made. `adjacent` gives neighbours alternating physical pages in
    order instead of shuffled ones; `factor` scales q, so that the softmax is flat or sharp."""

    name: str
    slices: tuple[Slice, ...]
    seed: int
    geometry: Geometry = Geometry()
    content: str = "normal"
    adjacent: bool = False
    factor: float = 1.0

    @property
    def rows(self) -> int:
        return sum(s.length for s in self.slices)

    @property
    def scores(self) -> int:
        """Scores of all rows and heads: what a case costs."""
        keys = sum(s.length * s.start + s.length * (s.length + 1) // 2 for s in self.slices)
        return keys * self.geometry.G * self.geometry.Hkv


def _slices(starts, lengths) -> tuple[Slice, ...]:
    return tuple(Slice(i, a, n) for i, (a, n) in enumerate(zip(starts, lengths, strict=True)))


def fixed(seed: int, geometry: Geometry = Geometry()) -> list[Plan]:
    """The 53 fixed cases: prompts, single rows at every edge, prefixes, packings, adversarial contents."""
    plans = [(f"prompt {n}", _slices([0], [n]), {}) for n in LENGTHS]
    plans += [(f"row at {n - 1}", _slices([n - 1], [1]), {}) for n in LENGTHS[1:]]
    plans += [(f"prefix {start}+{n}", _slices([start], [n]), {}) for start, n in _PREFIXED]
    heterogeneous = _slices((0, 63, 255, 512), (17, 64, 129, 257))
    small = _slices((0, 9, 30, 5), (21, 6, 4, 1))
    plans += [
        ("heterogeneous", heterogeneous, {}),
        ("16 prompts of 16", _slices([0] * 16, [16] * 16), {}),
        ("neighbours' adjacent pages", _slices((0, 16, 40), (33, 17, 3)), {"adjacent": True}),
        *((content, small, {"content": content}) for content in FIXED_CONTENTS),
    ]
    return [Plan(name, s, seed + 7919 * i, geometry, **more) for i, (name, s, more) in enumerate(plans)]


class Draw:
    """Integers from one counter-based stream, in the order they are asked for."""

    def __init__(self, seed: int, stream: int, words: int = 256):
        self._words = iter(bits(seed, stream, words).tolist())

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return next(self._words) * n >> 32

    def of(self, values):
        """One of the values."""
        return values[self.below(len(values))]

    def order(self, n: int) -> list[int]:
        """A permutation of n numbers."""
        return sorted(range(n), key=lambda _: next(self._words))


def _fuzzed(seed: int, number: int, stream: int, context: int, rows: int, geometry: Geometry | None) -> Plan:
    draw = Draw(seed, stream + number)
    if geometry is None:
        geometry = Geometry(1 + draw.below(8), 1 + draw.below(4), draw.of((64, 128)), draw.below(9))
    slices, left = [], 1 + draw.below(rows)
    while left > 0 and len(slices) < 16:
        length = 1 + draw.below(draw.of((1, 4, 40, left)) if left > 1 else 1)
        length = min(length, left, context)
        start = 0 if draw.below(3) == 0 else draw.below(context - length + 1)
        slices.append(Slice(len(slices), start, length))
        left -= length
    return Plan(
        f"fuzz {number}",
        tuple(slices),
        seed * 1000003 + stream + number,
        geometry,
        draw.of(("normal", "normal", *CONTENTS)),
        draw.below(4) == 0,
        draw.of((0.25, 1.0, 1.0, 4.0)),
    )


def fuzz(
    seed: int, count: int = FUZZ_CASES, context=CONTEXT, rows=CONTEXT, geometry=Geometry()
) -> list[Plan]:
    """Random packings, prefixes, page layouts and contents of one geometry."""
    return [_fuzzed(seed, i, _FUZZ_STREAM, context, rows, geometry) for i in range(count)]


def random_geometry(seed: int, count: int = FUZZ_CASES, context: int = 512, rows: int = 256) -> list[Plan]:
    """Random cases that draw G 1 to 8, D 64 or 128, Hkv 1 to 4 and the table's stride too."""
    return [_fuzzed(seed, i, _GEOMETRY_STREAM, context, rows, None) for i in range(count)]


def quick(seed: int) -> tuple[list[Plan], list[Plan]]:
    """(cases of one geometry, cases of many) small enough for simt; every G of 1 to 8 and D occurs."""
    small = Geometry(4, 2, 64)
    cases = [p for p in fixed(seed, small) if p.scores <= QUICK_SCORES] + fuzz(seed, 8, 80, 24, small)
    some = random_geometry(seed, 16, 48, 12)
    pairs = [(G, D) for G in (1, 2, 3, 4, 5, 6, 7, 8) for D in (64, 128)]
    return cases, [
        replace(p, geometry=Geometry(G, 1 + i % 2, D, i))
        for i, (p, (G, D)) in enumerate(zip(some, pairs, strict=True))
    ]


def several(plans: list[Plan], count: int) -> list[Plan]:
    """The first `count` plans with more than one segment and a segment of several rows."""
    found = [p for p in plans if len(p.slices) > 1 and max(s.length for s in p.slices) > 2]
    return found[:count]


def resplit(plan: Plan) -> Plan:
    """The same rows with every slice cut in two where its length allows."""
    draw, parts = Draw(plan.seed, 1), []
    for s in plan.slices:
        cut = 1 + draw.below(s.length - 1) if s.length > 1 else 0
        if cut:
            parts.append(Slice(s.table_index, s.start, cut))
        parts.append(Slice(s.table_index, s.start + cut, s.length - cut))
    return replace(plan, slices=tuple(parts))


def reorder(plan: Plan) -> tuple[Plan, np.ndarray]:
    """The slices packed in another order, and which of the old rows each new one is."""
    order = Draw(plan.seed, 2).order(len(plan.slices))
    starts = np.cumsum([0, *(s.length for s in plan.slices)])
    rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order])
    return replace(plan, slices=tuple(plan.slices[i] for i in order)), rows
