"""The same sum in other orders: f32 sums whose every rounding is spelled out, to compare with the contract's.

No library reduction is used, because its order depends on the machine it was built for.
"""

from collections.abc import Callable

import numpy as np


def chain(x: np.ndarray) -> np.ndarray:
    """((x0 + x1) + x2) + … along the last axis, f32 [...][n] -> [...]: one thread, ascending."""
    total = x[..., 0].copy()
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return total


def backwards(x: np.ndarray) -> np.ndarray:
    """The chain from the last element to the first."""
    return chain(x[..., ::-1])


def split(x: np.ndarray, parts: int = 4) -> np.ndarray:
    """`parts` chains over consecutive pieces, then their chain: what splitting a sum over blocks does."""
    pieces = np.array_split(np.arange(x.shape[-1]), parts)
    return chain(np.stack([chain(x[..., piece]) for piece in pieces], axis=-1))


ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one ascending chain": chain,
    "one descending chain": backwards,
    "split in four": split,
}


def dot_split(x: np.ndarray, w: np.ndarray, parts: int = 4) -> np.ndarray:
    """x f32 [K] times each row of w f32 [N][K], rounded products, K split in `parts` chains -> f32 [N].

    The logits of a tied head as a split-K kernel would sum them: right to rounding, other bits.
    """
    pieces = np.array_split(np.arange(w.shape[1]), parts)
    sums = []
    for piece in pieces:
        total = np.zeros(w.shape[0], np.float32)
        for k in piece:
            total = total + x[k] * w[:, k]
        sums.append(total)
    return chain(np.stack(sums, axis=-1))


def ranking(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """`ids` [n] by their logits [n] descending, then by id ascending, as contract section 8 ranks."""
    return ids[np.lexsort((ids, -logits))]
