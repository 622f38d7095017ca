"""Stored weights to f32: F32, F16, BF16, Q8_0 and Q4_1 as contract section 7 writes them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    """f32 array with the upper halves `bits` (uint16), exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _f32(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return raw.view("<f4").reshape(shape).astype(np.float32)


def _f16(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return raw.view("<f2").reshape(shape).astype(np.float32)


def _bf16(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return widen_bf16(raw.view("<u2")).reshape(shape)


def _q8_0(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Blocks of 34 bytes: f16 d, 32 signed bytes q; w = f32(d)*q."""
    block = raw.reshape(-1, 34)
    d = np.ascontiguousarray(block[:, :2]).view("<f2").astype(np.float32)
    w = block[:, 2:].view(np.int8).astype(np.float32)
    w *= d
    return w.reshape(shape)


def _q4_1(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Blocks of 20 bytes: f16 d, f16 m, 16 bytes (low nibbles q[0..15], high q[16..31]).

    w = f32(d)*q + f32(m).
    """
    block = raw.reshape(-1, 20)
    d = np.ascontiguousarray(block[:, 0:2]).view("<f2").astype(np.float32)
    m = np.ascontiguousarray(block[:, 2:4]).view("<f2").astype(np.float32)
    w = np.empty((len(block), 32), np.float32)
    np.bitwise_and(block[:, 4:], 15, out=w[:, :16], casting="unsafe")
    np.right_shift(block[:, 4:], 4, out=w[:, 16:], casting="unsafe")
    w *= d  # two roundings, as the contract writes them
    w += m
    return w.reshape(shape)


@dataclass(frozen=True)
class Encoding:
    """A tensor type: elements and bytes of a block, and its widening to f32."""

    name: str
    elements: int
    bytes: int
    widen: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


ENCODINGS = {
    0: Encoding("F32", 1, 4, _f32),
    1: Encoding("F16", 1, 2, _f16),
    3: Encoding("Q4_1", 32, 20, _q4_1),
    8: Encoding("Q8_0", 32, 34, _q8_0),
    30: Encoding("BF16", 1, 2, _bf16),
}
