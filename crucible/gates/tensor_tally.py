"""Counts over compared outputs, taken where the arrays are (NumPy on cpu and simt, CuPy on cuda)."""

from dataclasses import dataclass

import numpy as np

from crucible.numerics.tolerance import ABSOLUTE, RELATIVE

_FLOOR = 1e-6  # denominator of a relative error, at least


@dataclass
class Tally:
    """What some comparisons add up to.

    `differing` counts unequal bit patterns, `halves` elements whose value rounded to 16 bits changes,
    `outside` those beyond the tolerance, `bad` comparisons that fail: NaN or infinite or all-zero
    output, or elements that differ (exact) or lie outside (tolerant).
    """

    comparisons: int = 0
    elements: int = 0
    finite: int = 0
    nonzero: int = 0
    differing: int = 0
    halves: int = 0
    outside: int = 0
    bad: int = 0
    max_absolute: float = 0.0
    max_relative: float = 0.0

    def add(self, other: "Tally") -> None:
        """Count another tally into this one."""
        for name in vars(self):
            mine, more = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, more) if name.startswith("max_") else mine + more)

    def __str__(self) -> str:
        return (
            f"{self.elements} elements, {self.elements - self.finite} not finite, {self.nonzero} non-zero, "
            f"{self.differing} differing, {self.outside} outside the tolerance"
        )


def _module(array):
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy


def measure(expected, actual, tolerant: bool = False) -> Tally:
    """The tally of one pair of f32 arrays of equal shape; finite and non-zero are counted before a verdict.

    `tolerant` judges by the tolerance, else every bit must agree (a NaN never passes).
    """
    xp = _module(actual)
    expected = xp.ascontiguousarray(xp.asarray(expected))
    actual = xp.ascontiguousarray(actual)
    # Counted by bits: CuPy's own kernels flush subnormals, so to them a subnormal is zero.
    magnitude = actual.view(xp.uint32) & xp.uint32(0x7FFFFFFF)
    with np.errstate(all="ignore"):
        error = xp.abs(actual.astype(xp.float64) - expected)
        size = xp.abs(expected)
        halves = [x.astype(xp.float16).view(xp.uint16) for x in (expected, actual)]
        counts = xp.stack(
            [
                (magnitude < xp.uint32(0x7F800000)).sum(),
                (magnitude != 0).sum(),
                (expected.view(xp.uint32) != actual.view(xp.uint32)).sum(),
                (halves[0] != halves[1]).sum(),
                (~(error <= ABSOLUTE + RELATIVE * size)).sum(),
            ]
        )
        worst = xp.stack([error.max(), (error / xp.maximum(size, _FLOOR)).max()])
    finite, nonzero, differing, rounded, outside = (int(n) for n in counts.tolist())
    absolute, relative = (float(x) if np.isfinite(x) else float("inf") for x in worst.tolist())
    wrong = outside if tolerant else differing
    bad = finite != actual.size or nonzero == 0 or wrong > 0
    return Tally(1, actual.size, finite, nonzero, differing, rounded, outside, int(bad), absolute, relative)
