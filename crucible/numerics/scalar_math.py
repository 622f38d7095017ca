"""NumPy oracle of contract sections 2, 3 and 8's ln: exp, sigmoid, the trees and sums, ln."""

import numpy as np

from crucible.numerics import contract as c
from crucible.numerics.fma import fma32


def exp(x) -> np.ndarray:
    """e^x for x <= 0, f32 elementwise; +0 below -87 (section 2)."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        n = fma32(x, c.EXP_LOG2E, c.EXP_ROUND) - c.EXP_ROUND
        r = fma32(n, -c.EXP_LN2_HIGH, x)
        r = fma32(n, -c.EXP_LN2_LOW, r)
        p = c.EXP_POLYNOMIAL[0]
        for constant in c.EXP_POLYNOMIAL[1:]:
            p = fma32(p, r, constant)
        p = np.asarray(fma32(p, r * r, r) + np.float32(1))
        exponent = np.where(np.isfinite(n), n, np.float32(0)).astype(np.int32) << np.int32(23)
        result = (p.view(np.int32) + exponent).view(np.float32)
    return np.where(x < c.EXP_MIN, np.float32(0), np.where(np.isnan(x), x, result))


def sigmoid(g) -> np.ndarray:
    """1/(1+e^-g), f32 elementwise, from exp of a value <= 0 on both sides (section 2)."""
    g, one = np.asarray(g, np.float32), np.float32(1)
    e = exp(-np.abs(g))
    return np.where(g >= 0, one, e) / (one + e)


def tree32(p) -> np.ndarray:
    """Sum of 32 lanes [..., 32] -> [...] in the pairing of a 32-lane shuffle-down (section 3)."""
    p = np.array(p, np.float32)
    with np.errstate(all="ignore"):
        for offset in (16, 8, 4, 2, 1):
            p[..., :offset] = p[..., :offset] + p[..., offset : 2 * offset]
    return p[..., 0].copy()


def _finish256(lanes: np.ndarray) -> np.ndarray:
    warps = np.zeros((*lanes.shape[:-1], 32), np.float32)
    warps[..., :8] = tree32(lanes.reshape(*lanes.shape[:-1], 8, 32))
    return tree32(warps)


def sum256(x) -> np.ndarray:
    """Sum over the last axis [..., n] -> [...], f32: 256 lanes in ascending order, then two trees."""
    x = np.asarray(x, np.float32)
    lanes = np.zeros((*x.shape[:-1], 256), np.float32)
    for start in range(0, x.shape[-1], 256):
        part = x[..., start : start + 256]
        lanes[..., : part.shape[-1]] = lanes[..., : part.shape[-1]] + part
    return _finish256(lanes)


def sumsq256(x) -> np.ndarray:
    """Sum of squares over the last axis [..., n] -> [...], f32: as sum256 with one fma per element."""
    x = np.asarray(x, np.float32)
    lanes = np.zeros((*x.shape[:-1], 256), np.float32)
    for start in range(0, x.shape[-1], 256):
        part = x[..., start : start + 256]
        lanes[..., : part.shape[-1]] = fma32(part, part, lanes[..., : part.shape[-1]])
    return _finish256(lanes)


def ln(v) -> np.ndarray:
    """Natural logarithm of finite v > 0, f64 elementwise: a series without fma (section 8)."""
    m, k = np.frexp(np.asarray(v, np.float64))
    low = m < c.LN_MANTISSA_LOW
    m, k = np.where(low, m * 2.0, m), np.where(low, k - 1, k)
    t = (m - 1.0) / (m + 1.0)
    s = t * t
    p = c.LN_SERIES[0]
    for constant in c.LN_SERIES[1:]:
        p = p * s + constant
    return k.astype(np.float64) * c.LN_2 + (2.0 * t) * p
