"""torch's attentions on the inputs of a benchmark case, each held to ours before it is timed."""

import numpy as np

from crucible.attention.shapes import LAYER, Case
from crucible.bench.attention_timers import Call, Torch
from crucible.errors import InputError, UnsupportedError

EFFICIENT = "torch SDPA efficient"


def contiguous(c: Case, repeat: bool):
    """q [B][Hq][t][D], k, v [B][H][L][D] of a shape whose segments are alike, gathered from the pages.

    H is Hq with `repeat` (each KV head G times, what a library without grouped heads needs), else Hkv.
    UnsupportedError where the segments differ: one dense batch cannot hold them.
    """
    if len(set(c.segments)) != 1:
        raise UnsupportedError("segments of different lengths do not form one dense batch")
    (p, t), B = c.segments[0], len(c.segments)
    position = np.arange(p + t)
    rows = c.tables[:, position >> 4], LAYER, position & 15
    k, v = (pool[rows].reshape(B, p + t, c.Hkv, c.D).transpose(0, 2, 1, 3) for pool in (c.kpool, c.vpool))
    if repeat:
        k, v = (np.repeat(x, c.Hq // c.Hkv, axis=1) for x in (k, v))
    q = c.q.reshape(B, t, c.Hq, c.D).transpose(0, 2, 1, 3)
    return tuple(np.ascontiguousarray(x) for x in (q, k, v))


def hold(result, expected: np.ndarray, c: Case, tolerance: float, name: str) -> None:
    B, t = len(c.segments), c.segments[0][1]
    got = result.float().cpu().numpy().transpose(0, 2, 1, 3).reshape(expected.shape)
    worst = float(np.abs(got - expected).max())
    if not (worst <= tolerance and B * t == len(expected)):
        raise InputError(f"{name} is off by {worst:.3g}, more than {tolerance:.3g}: not timed")


def torch_calls(c: Case, expected: np.ndarray, timer: Torch, flex: bool) -> list[Call]:
    """torch's attentions on the same problem, each held to ours first; empty where no dense batch exists."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    try:
        q, k, v = (torch.from_numpy(x).cuda() for x in contiguous(c, repeat=True))
    except UnsupportedError:
        return []
    torch.backends.cuda.matmul.allow_tf32 = False
    (p, t) = c.segments[0]
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def with_backend(backend, *arrays):
        masked = {"is_causal": True} if p == 0 else {"attn_mask": causal_lower_right(t, p + t)}

        def run():
            with sdpa_kernel(backend):
                return sdpa(*arrays, **masked)

        return run

    dense = "K/V dense, heads repeated"
    halves = tuple(x.bfloat16() for x in (q, k, v))
    planned = [
        (
            "torch SDPA efficient",
            f"f32, {dense}",
            with_backend(SDPBackend.EFFICIENT_ATTENTION, q, k, v),
            1e-4,
        ),
        ("torch SDPA math", f"f32, TF32 off, {dense}", with_backend(SDPBackend.MATH, q, k, v), 1e-4),
        (
            "torch flash bf16",
            f"other arithmetic: bf16, {dense}",
            with_backend(SDPBackend.FLASH_ATTENTION, *halves),
            5e-2,
        ),
    ]
    if flex:
        planned.append(("torch FlexAttention", f"f32, {dense}", _flex(torch, q, k, v, p), 1e-4))
    calls = []
    for name, arithmetic, run, tolerance in planned:
        try:
            with torch.inference_mode(), torch.cuda.stream(timer.stream):
                result = run()
            timer.synchronize()
        except RuntimeError:  # a backend that this build or shape lacks
            continue
        hold(result, expected, c, tolerance, name)
        calls.append(Call(name, arithmetic, torch.inference_mode()(run), False, timer))
    return calls


def _flex(torch, q, k, v, p: int):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    mask = create_block_mask(
        lambda b, h, row, key: key <= row + p, None, None, q.shape[2], k.shape[2], device="cuda"
    )
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask)
