"""Comparison of arrays by bit pattern: views, ulp distance, first divergence, and an assertion."""

from dataclasses import dataclass

import numpy as np

from crucible.errors import InputError

_UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
NAN_DISTANCE = np.iinfo(np.uint64).max  # ulp distance between a NaN and a number


@dataclass(frozen=True)
class Divergence:
    """The first element, in C order, where two arrays hold different bits."""

    index: tuple[int, ...]
    expected: object
    actual: object
    expected_bits: str
    actual_bits: str
    ulps: int

    def __str__(self) -> str:
        where = ",".join(map(str, self.index))
        far = "a NaN against a number" if self.ulps == NAN_DISTANCE else f"{self.ulps} ulp"
        return (
            f"[{where}] expected {self.expected!s} ({self.expected_bits}), "
            f"got {self.actual!s} ({self.actual_bits}), {far}"
        )


@dataclass(frozen=True)
class Comparison:
    """Counts over one pair of arrays; `finite`, `nan` and `zero` describe the actual array."""

    elements: int
    finite: int
    nan: int
    zero: int
    differing: int
    max_ulp: int
    first: Divergence | None

    def __str__(self) -> str:
        if not self.differing:
            return f"{self.elements} elements, 0 differing"
        return f"{self.elements} elements, {self.differing} differing, first at {self.first}"


def as_bits(x) -> np.ndarray:
    """The bit patterns of `x` as unsigned integers of the same width and shape (bool, integer or float)."""
    x = np.ascontiguousarray(x).reshape(np.shape(x))
    if x.dtype.kind not in "biuf" or x.dtype.itemsize not in _UINT:
        raise InputError(f"dtype {x.dtype} has no bit view; pass integers or floats of at most 64 bits")
    return x.view(_UINT[x.dtype.itemsize])


def _pair(expected, actual) -> tuple[np.ndarray, np.ndarray]:
    expected, actual = np.asarray(expected), np.asarray(actual)
    if expected.dtype != actual.dtype:
        raise InputError(
            f"dtype {actual.dtype} cannot be compared by bits with {expected.dtype}; convert neither"
        )
    if expected.shape != actual.shape:
        raise InputError(f"shape {actual.shape} cannot be compared with {expected.shape}; reshape first")
    return expected, actual


def ulp_distance(a, b) -> np.ndarray:
    """Count of representable steps between `a` and `b`, elementwise, as uint64.

    -0 and +0 are one step apart, so equal distance 0 means equal bits; NaN to NaN is 0 and NaN to
    a number is NAN_DISTANCE. For integers it is the absolute difference.
    """
    a, b = _pair(a, b)
    if a.dtype.kind != "f":
        low, high = np.minimum(a, b), np.maximum(a, b)
        return high.astype(np.uint64) - low.astype(np.uint64)
    keys = []
    for x in (a, b):
        signed = as_bits(x).astype(np.uint64) << np.uint64(64 - 8 * x.dtype.itemsize)
        signed = signed.view(np.int64) >> np.int64(64 - 8 * x.dtype.itemsize)
        magnitude = as_bits(x).astype(np.uint64) & np.uint64((1 << (8 * x.dtype.itemsize - 1)) - 1)
        keys.append(np.where(signed < 0, ~magnitude.view(np.int64), magnitude.view(np.int64)))
    with np.errstate(over="ignore"):  # modulo 2^64: keys of two signs are further apart than int64 holds
        distance = np.maximum(*keys).view(np.uint64) - np.minimum(*keys).view(np.uint64)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    distance = np.where(nan_a & nan_b, np.uint64(0), distance)
    return np.where(nan_a ^ nan_b, np.uint64(NAN_DISTANCE), distance)


def _differing(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    unequal = as_bits(expected) != as_bits(actual)
    if expected.dtype.kind == "f" and unequal.any():
        unequal &= ~(np.isnan(expected) & np.isnan(actual))
    return unequal


def same_bits(a, b) -> bool:
    """Whether two arrays hold the same bits; any NaN equals any other NaN, and -0 is not +0."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and not _differing(a, b).any()


def first_divergence(expected, actual) -> Divergence | None:
    """The first differing element in C order, or None when the bits agree."""
    return compare(expected, actual).first


def compare(expected, actual) -> Comparison:
    """Compare two arrays of equal dtype and shape by bits; InputError when those differ."""
    expected, actual = _pair(expected, actual)
    unequal = _differing(expected, actual)
    differing = int(np.count_nonzero(unequal))
    first, max_ulp = None, 0
    if differing:
        distance = ulp_distance(expected[unequal], actual[unequal])
        max_ulp = int(distance.max())
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(unequal)), expected.shape))
        one, other = expected[index], actual[index]
        width = 2 * expected.dtype.itemsize
        patterns = [f"0x{int(as_bits(value)[()]):0{width}x}" for value in (one, other)]
        first = Divergence(index, one, other, *patterns, int(distance[0]))
    is_float = actual.dtype.kind == "f"
    nan = int(np.count_nonzero(np.isnan(actual))) if is_float else 0
    finite = int(np.count_nonzero(np.isfinite(actual))) if is_float else actual.size
    zero = actual.size - int(np.count_nonzero(actual))
    return Comparison(actual.size, finite, nan, zero, differing, max_ulp, first)


def assert_same_bits(
    expected, actual, what: str = "", allow_nan: bool = False, allow_zero: bool = False
) -> None:
    """Raise AssertionError unless the bits agree.

    An empty comparison, a NaN (unless allow_nan) and an all-zero output (unless allow_zero) are
    refused first, because they would make an equality mean nothing.
    """
    result, name = compare(expected, actual), what or "output"
    assert result.elements > 0, f"{name}: nothing was compared"
    assert allow_nan or not result.nan, f"{name}: {result.nan} of {result.elements} elements are NaN"
    assert allow_zero or result.zero < result.elements, f"{name}: all {result.elements} elements are zero"
    assert not result.differing, f"{name}: {result}"
