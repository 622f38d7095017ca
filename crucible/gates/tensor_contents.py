"""Contents of a tensor-gate case: what its numbers are like, from near normal to zeros of both signs."""

from collections.abc import Sequence

import numpy as np

from crucible.gates.tensor_cases import Plan

_SIZE = 0.8  # mean magnitude of an element of q before the plan's factor
_FAINT, _VANISHED = 60.0, 180.0  # how far below the row's maximum the scores of `_vanish` lie, on average


def fill(plan: Plan, q: np.ndarray, keys: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
    """Change q [T][Hq][D] and each request's K and V [n][Hkv][D] in place into what the plan asks for."""
    q *= np.float32(plan.factor)
    if plan.content == "zeros":
        _zeros(plan, q, keys, values)
        return
    scale = np.sqrt(np.float32(plan.geometry.D))
    for k, v in zip(keys, values, strict=True):
        n = len(k)
        ramp = (np.arange(n, dtype=np.float32) / np.float32(max(n, 8)))[:, None, None]
        if plan.content == "groups":
            v += np.arange(v.shape[1], dtype=np.float32)[:, None] * 10
        elif plan.content in ("ascending", "descending"):
            k *= np.float32(0.05)
            k += (ramp if plan.content == "ascending" else 1 - ramp) * 20 / scale
        elif plan.content == "spikes":
            k[:: max(n // 5, 1)] *= np.float32(12)
        elif plan.content == "subnormals":
            v *= np.float32(2.0**-135)
            k[::2] *= np.float32(2.0**-80)
    if plan.content in ("ascending", "descending"):
        q[...] = np.abs(q)
    if plan.content == "subnormals":
        q[..., ::2] *= np.float32(2.0**-70)


def _zeros(plan: Plan, q, keys, values) -> None:
    """Zeros of both signs in K and V, spikes in K, a q of one sign in two heads of each group.

    V is -0 throughout in every second dimension, in request 0 also in all of KV head 0 where there is
    another: only a sum that starts from +0 gives +0 there. Request 0 of several has scores of both zeros,
    the last KV head of the others has weights that vanish. Some head of every row stays non-zero.
    """
    G, D = plan.geometry.G, plan.geometry.D
    heads = q.reshape(len(q), -1, G, D)
    heads[:, :, 0] = np.abs(heads[:, :, 0])
    if G > 1:
        heads[:, :, 1] = -np.abs(heads[:, :, 1])
    for request, (k, v) in enumerate(zip(keys, values, strict=True)):
        v[2::4] = -0.0
        if request == 0 and len(keys) > 1:
            k[::2], k[1::2] = 0.0, -0.0
        else:
            k[1::3] *= np.float32(12)
            _vanish(k[:, -1], v[:, -1, (request + 1) % 2 :: 4], plan.factor)
        v[:, :, request % 2 :: 2] = -0.0
        if request == 0 and v.shape[1] > 1:
            v[:, 0] = -0.0


def _vanish(k: np.ndarray, v: np.ndarray, factor: float) -> None:
    """K [n][D] and V [n][some] of one head that leave a sum at -0 until a weight of +0 makes it +0.

    For a positive q the first product underflows to -0, the maximum's V is -0, and every later weight is +0.
    """
    D = k.shape[1]
    step = np.float32(1 / (_SIZE * factor * np.sqrt(D)))
    k[0], k[1:2], k[2:] = -_FAINT * step, 0.0, -_VANISHED * step
    v[0], v[1:2], v[2:] = -(2.0**-100), -0.0, np.abs(v[2:])
