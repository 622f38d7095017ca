"""A fused multiply-add in NumPy, correctly rounded, without any library fma."""

import numpy as np


def fma32(a, b, c) -> np.ndarray:
    """a*b + c in f32 with one rounding, elementwise with broadcasting; a, b, c are float32.

    The product of two f32 is exact in f64. The f64 sum is corrected to round-to-odd with the exact
    error of Knuth's TwoSum; rounding an odd-rounded value of 53 bits to 24 (or to a subnormal) is
    then the single rounding of the exact result (Boldo and Melquiond 2008).
    """
    a, b, c = (np.asarray(v) for v in (a, b, c))
    assert a.dtype == b.dtype == c.dtype == np.float32, "fma32 takes float32"
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = c.astype(np.float64)
        total = np.asarray(product + addend)
        rest = total - product
        error = (product - (total - rest)) + (addend - rest)
        pattern = total.view(np.int64)
        inexact = (error != 0) & np.isfinite(total) & ((pattern & 1) == 0)
        # Away from zero when the error has the sign of the sum, toward zero otherwise: either is odd.
        step = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.where(inexact, pattern + step, pattern).view(np.float64)
        return odd.astype(np.float32)
