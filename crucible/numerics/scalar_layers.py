"""NumPy oracle of contract sections 4, 6 and 7: attention, linear layers, RMSNorm, RoPE, SwiGLU, residual."""

import numpy as np

from crucible.numerics import contract as c
from crucible.numerics.fma import fma32
from crucible.numerics.scalar_exact import reciprocal_root
from crucible.numerics.scalar_math import exp, sigmoid, sum256, sumsq256, tree32


def attention(q, kpool, vpool, tables, desc, layer: int, kv_heads: int) -> np.ndarray:
    """Causal paged attention, f32 (sections 4, 5).

    q [R][Hq][D]; kpool, vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride];
    desc int32 [S][4] = packed_start, chunk_len, absolute_start, table_index. Returns [R][Hq][D].
    """
    rows, heads, head_dim = q.shape
    out = np.zeros((rows, heads, head_dim), np.float32)
    scale, group = reciprocal_root(head_dim), heads // kv_heads
    for start, length, absolute, table in np.asarray(desc).tolist():
        end = absolute + length
        pages = tables[table, np.arange(end) // c.PAGE_SIZE]
        slots = np.arange(end) % c.PAGE_SIZE
        keys = kpool[pages, layer, slots].reshape(end, kv_heads, head_dim)
        values = vpool[pages, layer, slots].reshape(end, kv_heads, head_dim)
        keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
        for i in range(length):
            visible = absolute + i + 1
            out[start + i] = attention_row(q[start + i], keys[:visible], values[:visible], scale)
    return out


def attention_row(q, k, v, scale) -> np.ndarray:
    """One query row [Hq][D] over its visible keys and values [L][Hq][D] (KV heads already repeated)."""
    products = q[None, :, :32] * k[:, :, :32]
    for d in range(32, q.shape[-1], 32):
        products = fma32(q[None, :, d : d + 32], k[:, :, d : d + 32], products)
    scores = tree32(products) * np.float32(scale)  # [L][Hq]
    weights = exp(scores - scores.max(axis=0))
    inverse = np.float32(1) / sum256(weights.T)  # [Hq]
    acc = np.zeros(q.shape, np.float32)
    for j in range(k.shape[0]):
        acc = fma32(weights[j][:, None], v[j], acc)
    return acc * inverse[:, None]


def linear_f32(x, w, bias=None) -> np.ndarray:
    """x [T][K] times w [N][K] transposed -> [T][N], f32: fma chains over blocks of 256, then the bias."""
    y = None
    for block in range(0, x.shape[1], c.K_BLOCK):
        b = np.zeros((x.shape[0], w.shape[0]), np.float32)
        for k in range(block, min(block + c.K_BLOCK, x.shape[1])):
            b = fma32(x[:, k : k + 1], w[:, k][None, :], b)
        y = b if y is None else y + b
    return y if bias is None else y + bias


def quantize_weight(w) -> tuple[np.ndarray, np.ndarray]:
    """w f32 [N][K] -> (q int8 [N][K], s_w f32 [N]): symmetric per row, 127 levels, ties to even."""
    scale = np.abs(w).max(axis=1) / np.float32(c.WEIGHT_LEVELS)
    scale = np.where(scale < c.WEIGHT_SCALE_MIN, np.float32(0), scale)
    divisor = np.where(scale == 0, np.float32(1), scale)[:, None]
    q = np.where(scale[:, None] == 0, np.float32(0), np.rint(w / divisor))
    return q.astype(np.int8), scale


def dequantize(q, scale) -> np.ndarray:
    """The f32 rows q * s_w of an int8 weight (the int8 token embedding)."""
    return q.astype(np.float32) * scale[:, None]


def quantize_rows(x) -> tuple[np.ndarray, np.ndarray]:
    """x f32 [T][K] -> (q int16 [T][K], A f32 [T]): 16-bit fixed point per row; A below 2^-100 becomes 0."""
    top = np.abs(x).max(axis=1)
    top = np.where(top < c.ACTIVATION_MIN, np.float32(0), top)
    factor = np.float32(c.ACTIVATION_LEVELS) / np.where(top == 0, np.float32(1), top)
    q = np.where(top[:, None] == 0, np.float32(0), np.rint(x * factor[:, None]))
    return q.astype(np.int16), top


def split_rows(q) -> tuple[np.ndarray, np.ndarray]:
    """q int16 -> (hi int8, lo int8) with q = 256*hi + lo."""
    hi = (q.astype(np.int32) + 128) >> 8
    return hi.astype(np.int8), (q.astype(np.int32) - 256 * hi).astype(np.int8)


def linear_i8_sums(q, qw) -> np.ndarray:
    """The exact integer sums T int64 [T][N] of q int16 [T][K] and qw int8 [N][K]."""
    hi, lo = split_rows(q)
    weights = qw.astype(np.int32).T
    return 256 * (hi.astype(np.int32) @ weights).astype(np.int64) + (lo.astype(np.int32) @ weights)


def linear_i8(x, qw, scale, bias=None) -> np.ndarray:
    """x f32 [T][K] through an int8 weight -> f32 [T][N]: f32(T) * ((A/32512) * s_w), then the bias."""
    q, top = quantize_rows(x)
    unit = (top / np.float32(c.ACTIVATION_LEVELS))[:, None] * scale[None, :]
    y = linear_i8_sums(q, qw).astype(np.float32) * unit
    return y if bias is None else y + bias


def rmsnorm(x, w, eps) -> np.ndarray:
    """x [T][N], w [N] -> (x*r)*w with r = 1/sqrt(sumsq256(x)/N + eps), each operation rounded once."""
    mean = sumsq256(x) / np.float32(x.shape[-1])
    r = np.float32(1) / np.sqrt(mean + np.float32(eps))
    return (x * r[..., None]) * w


def rope(x, cos, sin) -> np.ndarray:
    """Rotate pairs (i, i + D/2) of x [P][heads][D] by cos, sin [P][D/2]."""
    half = x.shape[-1] // 2
    low, high, cos, sin = x[..., :half], x[..., half:], cos[:, None, :], sin[:, None, :]
    return np.concatenate([fma32(-high, sin, low * cos), fma32(low, sin, high * cos)], axis=-1)


def swiglu(g, u) -> np.ndarray:
    """(g * sigmoid(g)) * u, f32 elementwise."""
    return (g * sigmoid(g)) * u


def residual(x, y) -> np.ndarray:
    """x + y, f32 elementwise."""
    return x + y
