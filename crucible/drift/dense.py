"""Attention functions over dense keys and values as candidates: a user's own, torch SDPA, FlexAttention."""

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from crucible.errors import InputError, UnavailableError
from crucible.numerics.contract import PAGE_SIZE

# f(q [t][Hq][D], k [L][Hkv][D], v [L][Hkv][D], start) -> [t][Hq][D]; row i sees keys 0..start+i.
DenseFunction = Callable[[Any, Any, Any, int], Any]


def dense(function: DenseFunction) -> Callable:
    """`function` over one request's dense history as a function with the paged attention signature.

    `function(q, k, v, start)` gets f32 arrays of the device (NumPy, on cuda CuPy): q [t][Hq][D], k and v
    [L][Hkv][D] in logical order, and returns [t][Hq][D]; row i attends to keys 0..start+i, L = start + t.
    """

    name = getattr(function, "__name__", "the candidate")

    @functools.wraps(function)
    def paged(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):
        rows, target = q.reshape(q.shape[0], -1, D), out.reshape(out.shape[0], -1, D)
        for first, length, start, table in device.download(desc).tolist():
            end = start + length
            pages = tables[table, : -(-end // PAGE_SIZE)]
            k, v = (pool[pages, layer].reshape(-1, Hkv, D)[:end] for pool in (kpool, vpool))
            q_rows = rows[first : first + length]
            found = function(q_rows, k, v, start)
            if tuple(getattr(found, "shape", ())) != tuple(q_rows.shape):
                what = getattr(found, "shape", type(found).__name__)
                raise InputError(f"{name} returned {what}; it must be an array of q's shape, {q_rows.shape}")
            target[first : first + length] = found

    return paged


def _torch():
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("library attention needs torch, which is not installed; install torch")
    import torch

    return torch


def _tensor(array):
    torch = _torch()
    return (
        torch.from_numpy(np.ascontiguousarray(array))
        if isinstance(array, np.ndarray)
        else torch.as_tensor(array, device="cuda")
    )


def _back(tensor, like):
    tensor = tensor.float()
    if isinstance(like, np.ndarray):
        return tensor.numpy()
    import cupy

    return cupy.asarray(tensor)


def _heads_first(q, k, v, dtype: str) -> tuple:
    """Tensors [1][Hq][t][D], [1][Hq][L][D] twice: K and V repeated for the heads of their group."""
    torch = _torch()
    made = [_tensor(x).to(getattr(torch, dtype)).transpose(0, 1)[None] for x in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    return made[0], *(x.repeat_interleave(group, dim=1) for x in made[1:])


def sdpa(backend: str, dtype: str) -> Callable:
    """torch.nn.functional.scaled_dot_product_attention by one backend ("MATH", "EFFICIENT_ATTENTION")."""

    @dense
    def attend(q, k, v, start):
        torch = _torch()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        a, b, c = _heads_first(q, k, v, dtype)
        rows = torch.arange(start, start + a.shape[2], device=a.device)[:, None]
        mask = None if start == 0 or a.shape[2] == 1 else torch.arange(b.shape[2], device=a.device) <= rows
        with torch.inference_mode(), sdpa_kernel(getattr(SDPBackend, backend)):
            out = torch.nn.functional.scaled_dot_product_attention(
                a, b, c, attn_mask=mask, is_causal=start == 0 and a.shape[2] > 1
            )
        return _back(out[0].transpose(0, 1).contiguous(), q)

    return attend


def flex(dtype: str) -> Callable:
    """torch.nn.attention.flex_attention with a causal score_mod, not compiled."""

    @dense
    def attend(q, k, v, start):
        torch = _torch()
        from torch.nn.attention.flex_attention import flex_attention

        a, b, c = _heads_first(q, k, v, dtype)

        def causal(score, batch, head, row, key):
            return torch.where(key <= row + start, score, -float("inf"))

        with torch.inference_mode(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without")  # the candidate's name says so
            out = flex_attention(a, b, c, score_mod=causal)
        return _back(out[0].transpose(0, 1).contiguous(), q)

    return attend


# name: (what it is, maker of the function, the devices that have it)
LIBRARY: dict[str, tuple[str, Callable[[], Callable], tuple[str, ...]]] = {
    "sdpa-math": ("torch SDPA, math, f32", lambda: sdpa("MATH", "float32"), ("cpu", "simt", "cuda")),
    "sdpa-math-bf16": ("torch SDPA, math, bf16", lambda: sdpa("MATH", "bfloat16"), ("cpu", "simt", "cuda")),
    "sdpa-efficient": (
        "torch SDPA, memory-efficient, f32",
        lambda: sdpa("EFFICIENT_ATTENTION", "float32"),
        ("cuda",),
    ),
    "sdpa-efficient-bf16": (
        "torch SDPA, memory-efficient, bf16",
        lambda: sdpa("EFFICIENT_ATTENTION", "bfloat16"),
        ("cuda",),
    ),
    "flex": ("torch FlexAttention, f32, not compiled", lambda: flex("float32"), ("cpu", "simt", "cuda")),
}
