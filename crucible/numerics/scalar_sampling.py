"""NumPy oracle of contract section 8: Philox draws, ranking, the samplers, logprobs."""

import numpy as np

from crucible.errors import InputError
from crucible.numerics import contract as c
from crucible.numerics.scalar_math import exp, ln


def philox4x32(counter, key) -> np.ndarray:
    """Philox4x32-10: counter uint32 [..., 4], key uint32 [..., 2] -> uint32 [..., 4]."""
    low = np.uint64(0xFFFFFFFF)
    x = np.moveaxis(np.asarray(counter, np.uint32).astype(np.uint64), -1, 0)
    k = np.moveaxis(np.asarray(key, np.uint32).astype(np.uint64), -1, 0)
    m0, m1 = (np.uint64(m) for m in c.PHILOX_MULTIPLIERS)
    for _ in range(c.PHILOX_ROUNDS):
        first, second = x[0] * m0, x[2] * m1
        x = np.stack(
            [
                (second >> np.uint64(32)) ^ x[1] ^ k[0],
                second & low,
                (first >> np.uint64(32)) ^ x[3] ^ k[1],
                first & low,
            ]
        )
        k = np.stack([(k[i] + np.uint64(c.PHILOX_WEYL[i])) & low for i in (0, 1)])
    return np.moveaxis(x, 0, -1).astype(np.uint32)


def seed_key(seed: int) -> np.ndarray:
    """uint32 [2]: the Philox key of a 64-bit seed, low word first."""
    return np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)


def draw(seed: int, n: int) -> float:
    """The draw number n of a request with this seed, a multiple of 2^-53 in [0, 1)."""
    x = philox4x32(np.array([n, 0, 0, 0], np.uint32), seed_key(seed)).tolist()
    return float(((x[0] << 32) | x[1]) >> 11) * 2.0**-53


def check_logits(logits) -> None:
    """Refuse logits with a NaN, a +inf, or no finite entry."""
    bad = np.flatnonzero(np.isnan(logits) | (logits == np.inf))
    if bad.size:
        raise InputError(
            f"logit {logits[bad[0]]} of token {bad[0]} is NaN or +inf; it must be finite or -inf"
        )
    if not np.isfinite(logits).any():
        raise InputError(f"none of {logits.size} logits is finite; at least one must be")


def greedy(logits) -> int:
    """The token with the largest logit, lowest id among equals."""
    check_logits(logits)
    return int(np.argmax(logits))


def scaled(logits, temperature) -> np.ndarray:
    """z = logit/temperature in f32; a z that overflows is refused."""
    check_logits(logits)
    with np.errstate(over="ignore"):
        z = logits / np.float32(temperature)
    over = np.flatnonzero(np.isinf(z) & np.isfinite(logits))
    if over.size:
        raise InputError(
            f"logit {logits[over[0]]} of token {over[0]} overflows at temperature {temperature}; raise it"
        )
    return z


def rank(logits, temperature, k: int) -> np.ndarray:
    """int32 [k]: the first k ids by z descending, then by id ascending (-0 equals +0)."""
    return np.argsort(-scaled(logits, temperature), kind="stable")[:k].astype(np.int32)


def sample(logits, temperature, top_k: int, top_p: float, seed: int, n: int, sampler="inverse-cdf", u=None):
    """One token from f32 logits [V]: returns (token, kept ranks, u).

    temperature 0 is greedy (kept 1, u 0). `u` replaces the draw of the inverse-cdf sampler.
    """
    if temperature == 0:
        return greedy(logits), 1, 0.0
    z = scaled(logits, temperature)
    order = np.argsort(-z, kind="stable")[: top_k if 0 < top_k < logits.size else logits.size]
    e = exp(z[order] - z[order[0]])
    sums = np.cumsum(e.astype(np.float64))  # accumulate runs in order
    kept = order.size
    if top_p < 1:
        kept = int(np.argmax(sums >= top_p * sums[-1])) + 1
    if sampler == "gumbel-id":
        return gumbel_id(order[:kept], e[:kept], seed, n), kept, 0.0
    u = draw(seed, n) if u is None else u
    return int(order[np.argmax(sums[:kept] > u * sums[kept - 1])]), kept, u


def gumbel_id(ids, e, seed: int, n: int) -> int:
    """The kept token with the smallest (-ln v)/e, v drawn at counter (n, token, 1, 0); ties: lowest id."""
    ids, e = ids[e > 0], e[e > 0].astype(np.float64)
    counter = np.zeros((ids.size, 4), np.uint32)
    counter[:, 0], counter[:, 1], counter[:, 2] = n, ids, 1
    x = philox4x32(counter, np.broadcast_to(seed_key(seed), (ids.size, 2))).astype(np.uint64)
    word = (x[:, 0] << np.uint64(32)) | x[:, 1]
    v = ((word >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    race = -ln(v) / e
    return int(ids[race == race.min()].min())


def logprobs(logits) -> np.ndarray:
    """f64 [V]: log of the softmax at temperature 1, with the running f64 sum in token-id order."""
    check_logits(logits)
    shifted = logits - logits.max()
    total = np.cumsum(exp(shifted).astype(np.float64))[-1]
    return shifted.astype(np.float64) - ln(total)
