"""Exact measure of the draws whose token differs between two paths, from both cumulative distributions.

A draw is u = m * 2^-53 with a whole m in [0, 2^53). A ladder holds, for each rank, how many of those m lie
below its end, found with the sampler's own rounding, so a measure is a count and has no sampling error.
"""

from dataclasses import dataclass

import numpy as np

from crucible import device as devices
from crucible.numerics import scalar
from crucible.sampling.params import SamplingParams
from crucible.sampling.sample import greedy, rank

DRAWS = 1 << 53


@dataclass(frozen=True)
class Ladder:
    """The sampler's view of one row of logits: kept token ids by rank, and where each rank's draws end.

    ids int32 [kept]; edges int64 [kept], the number of draws below the rank's end (the last is 2^53);
    weights f64 [kept], the contract's e.
    """

    ids: np.ndarray
    edges: np.ndarray
    weights: np.ndarray

    def rank_at(self, u: float) -> int:
        """The rank that the draw u takes."""
        return int(np.searchsorted(self.edges, int(u * DRAWS), side="right"))

    def token_at(self, u: float) -> int:
        """The token that the draw u takes."""
        return int(self.ids[self.rank_at(u)])

    def interval(self, r: int) -> tuple[float, float]:
        """[low, high) of u at rank r."""
        low = int(self.edges[r - 1]) if r else 0
        return low / DRAWS, int(self.edges[r]) / DRAWS

    def rank_of(self, token: int) -> int | None:
        """The rank of a token, None if it is not kept."""
        found = np.flatnonzero(self.ids == token)
        return int(found[0]) if found.size else None


def ladder(logits: np.ndarray, params: SamplingParams) -> Ladder:
    """The ladder of logits f32 [V] (contract section 8); for greedy one rank that takes every draw."""
    cpu = devices.get("cpu")
    if params.greedy:
        token = greedy(cpu, logits)
        return Ladder(np.array([token], np.int32), np.array([DRAWS]), np.ones(1))
    vocab = logits.shape[0]
    top_k = params.top_k if 0 < params.top_k <= vocab else vocab
    ids = rank(cpu, logits, params.temperature, top_k)
    z = logits[ids] / params.temperature
    return steps_of(ids, scalar.exp(z - z[0]), params.top_p)


def steps_of(ids: np.ndarray, e: np.ndarray, top_p: float = 1.0) -> Ladder:
    """The ladder of ranked ids and their weights e f32 [k], cut by top_p."""
    sums = np.cumsum(e, dtype=np.float64)  # one running sum, as the contract's
    kept = sums.size
    if top_p < 1:
        kept = min(int(np.argmax(sums >= top_p * sums[-1])) + 1, kept)
    ends = sums[:kept]
    edges = np.minimum(np.ceil(ends / ends[-1] * DRAWS), DRAWS).astype(np.int64)
    for step in (-1, 1):  # the guess is off by a few at most; move it while the sampler's comparison says so
        while True:
            at = edges - 1 if step < 0 else edges
            passed = (at * 2.0**-53) * ends[-1] >= ends
            move = (passed if step < 0 else ~passed) & (at >= 0) & (at < DRAWS)
            if not move.any():
                break
            edges = edges + step * move
    edges[-1] = DRAWS  # the last kept rank takes what is left
    return Ladder(ids[:kept], edges, e[:kept].astype(np.float64))


def differing_draws(a: Ladder, b: Ladder) -> np.ndarray:
    """int64 [n][2]: the half-open intervals of draws whose token differs, in order."""
    cuts = np.union1d(a.edges, b.edges)
    starts = np.concatenate(([0], cuts[:-1]))
    first = a.ids[np.searchsorted(a.edges, starts, side="right")]
    second = b.ids[np.searchsorted(b.edges, starts, side="right")]
    differ = first != second
    return np.stack([starts[differ], cuts[differ]], axis=1)


def flip_mass(a: Ladder, b: Ladder) -> float:
    """The measure of u in [0, 1) whose token differs under inverse-cdf: a whole number of 2^-53."""
    spans = differing_draws(a, b)
    return int((spans[:, 1] - spans[:, 0]).sum()) / DRAWS


def _aligned(a: Ladder, b: Ladder) -> tuple[np.ndarray, np.ndarray]:
    ids = np.union1d(a.ids, b.ids)
    found = []
    for one in (a, b):
        p = np.zeros(ids.size)
        p[np.searchsorted(ids, one.ids)] = one.weights / one.weights.sum()
        found.append(p)
    return found[0], found[1]


def gumbel_mass(a: Ladder, b: Ladder) -> float:
    """The probability that gumbel-id takes another token, over ideal noise shared by token id.

    Both paths take token i with probability p_i / (1 + d_i), d_i = sum over j with q_j/p_j > q_i/p_i of
    (q_j p_i / q_i - p_j): the minimum of independent exponentials. Resolution about 1e-15.
    """
    p, q = _aligned(a, b)
    both = (p > 0) & (q > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(p > 0, q / p, np.where(q > 0, np.inf, 0.0))
    order = np.argsort(ratio, kind="stable")
    ratio, p, q, both = ratio[order], p[order], q[order], both[order]
    above_p = np.concatenate((np.cumsum(p[::-1])[::-1][1:], [0.0]))
    above_q = np.concatenate((np.cumsum(q[::-1])[::-1][1:], [0.0]))
    with np.errstate(divide="ignore", invalid="ignore"):
        more = np.where(both, np.maximum(above_q / ratio - above_p, 0.0), np.inf)
        lost = np.where(np.isinf(more), p, p * more / (1 + more))
    return float(np.where(p > 0, lost, 0.0).sum())


def total_variation(a: Ladder, b: Ladder) -> float:
    """Half the summed difference of the two distributions: no way to share noise flips less."""
    p, q = _aligned(a, b)
    return float(np.abs(p - q).sum() / 2)
