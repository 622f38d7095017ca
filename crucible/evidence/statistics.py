"""Statistics of measurements: medians with brackets, paired ratios, clustered bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crucible.errors import InputError
from crucible.numerics import inputs

BOOTSTRAP_SEED = 20260908
_STREAM = 0x57A7  # keeps these draws apart from those of test inputs


@dataclass(frozen=True)
class Bracket:
    """A median with the smallest and largest sample beside it; nothing is dropped."""

    median: float
    low: float
    high: float
    samples: int

    def __str__(self) -> str:
        return f"{self.median:.4g} [{self.low:.4g}, {self.high:.4g}], n={self.samples}"


@dataclass(frozen=True)
class Interval:
    """A percentile bootstrap interval and everything that fixes it."""

    estimate: float
    low: float
    high: float
    level: float
    groups: int
    resamples: int
    seed: int

    def __str__(self) -> str:
        return (
            f"{self.estimate:.4g}, {self.level:.0%} interval [{self.low:.4g}, {self.high:.4g}] "
            f"({self.groups} groups, {self.resamples} resamples, seed {self.seed})"
        )


def _finite(values: Sequence[float], what: str) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise InputError(f"{what} must be a non-empty list of finite numbers, got {values!r:.80}")
    return array


def bracket(values: Sequence[float]) -> Bracket:
    """Median, minimum and maximum of the samples (the median of an even count is the middle two's mean)."""
    array = _finite(values, "samples")
    return Bracket(float(np.median(array)), float(array.min()), float(array.max()), int(array.size))


def paired_ratios(a: Sequence[float], b: Sequence[float]) -> np.ndarray:
    """a[i]/b[i] of measurements taken as pairs (interleaved A/B, B/A, A/B on one machine), f64."""
    first, second = _finite(a, "first series"), _finite(b, "second series")
    if first.size != second.size:
        raise InputError(
            f"paired series differ in length: {first.size} and {second.size}; every A needs its B"
        )
    if (first <= 0).any() or (second <= 0).any():
        raise InputError("paired ratios need positive samples; a zero or negative time was measured")
    return first / second


def bootstrap(
    values: Sequence[float],
    groups: Sequence[str],
    statistic: Callable[[np.ndarray], float] = np.median,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = BOOTSTRAP_SEED,
) -> Interval:
    """Percentile bootstrap of `statistic`, resampling whole groups (clusters) with replacement.

    Samples of one group (one process, one request, one round) move together, so repeated samples of
    the same cause do not narrow the interval. The draws come from the counter-based generator of
    `numerics.inputs`, so the interval is the same on every machine.
    """
    array = _finite(values, "samples")
    if len(groups) != array.size:
        raise InputError(f"{array.size} samples but {len(groups)} group names; give one group a sample")
    if not 0 < level < 1 or resamples < 1:
        raise InputError(f"level must lie in (0, 1) and resamples be positive, got {level} and {resamples}")
    names = list(dict.fromkeys(groups))
    members = [array[[g == name for g in groups]] for name in names]
    draws = np.asarray(inputs.bits(seed, _STREAM, resamples * len(names)), np.uint64)
    picks = ((draws * np.uint64(len(names))) >> np.uint64(32)).astype(int).reshape(resamples, len(names))
    known: dict[tuple[int, ...], float] = {}  # few groups are drawn in few ways
    for row in map(tuple, picks.tolist()):
        if row not in known:
            known[row] = statistic(np.concatenate([members[i] for i in row]))
    results = np.sort([known[row] for row in map(tuple, picks.tolist())])
    tail = (1 - level) / 2
    low, high = np.quantile(results, [tail, 1 - tail])
    return Interval(float(statistic(array)), float(low), float(high), level, len(names), resamples, seed)
