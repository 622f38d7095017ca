"""Attention by variant name on every device (contract sections 4 and 5)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from crucible.device.checks import expect
from crucible.errors import InputError, NoKernelError, UnsupportedError
from crucible.numerics.contract import PAGE_SIZE, WARP
from crucible.numerics.scalar_exact import reciprocal_root


@dataclass(frozen=True)
class Problem:
    """One launch, checked: packed rows, paged K/V, and the extents that every launcher needs.

    q, out f32 [T][Hq*D] or [T][Hq][D]; kpool, vpool f32 [pages][layers][16][Hkv*D]; tables int32
    [requests][stride]; desc int32 [S][4]. capacity (C) is at least every row's history length, or
    None where the caller left it open; plan is a plan.Plan of the same descriptors, or None.
    """

    q: object
    kpool: object
    vpool: object
    tables: object
    desc: object
    out: object
    layer: int
    T: int
    Hq: int
    Hkv: int
    D: int
    capacity: int | None
    plan: object = None

    def planned(self, plan) -> "Problem":
        """This problem with its work items, and with the capacity that they need."""
        return replace(self, plan=plan, capacity=self.capacity or plan.end)

    @property
    def layers(self) -> int:
        return self.kpool.shape[1]

    @property
    def scale(self) -> np.float32:
        return reciprocal_root(self.D)


@dataclass(frozen=True)
class Variant:
    """An implementation by name: whether it keeps the contract's bits, and its launcher on each device."""

    summary: str
    exact: bool
    launchers: dict[str, Callable]


def attention(
    device,
    q,
    kpool,
    vpool,
    tables,
    desc,
    layer,
    Hkv,
    D,
    variant="reference",
    out=None,
    capacity=None,
    plan=None,
):
    """Causal attention of packed rows over their own requests' paged history; returns an array like q.

    q f32 [T][Hq*D] or [T][Hq][D]; kpool, vpool f32 [pages][layers][16][Hkv*D]; tables int32
    [requests][stride]; desc int32 [S][4] = packed_start, chunk_len, absolute_start, table_index, all in
    the device's memory; D a multiple of 32, Hq a multiple of Hkv. `capacity` is at least the largest
    absolute_start + chunk_len; without it desc is read back, which waits for the device. `plan` (plan.plan)
    holds the work items of the fast variants, which make one at every call without it. Rows of q that no
    segment covers are left as they are in `out`. Raises InputError, NoKernelError where the device lacks
    the variant, UnsupportedError when the history does not fit it.
    """
    known = variants()
    if variant not in known:
        raise InputError(f"unknown attention variant {variant!r}; choose one of {', '.join(known)}")
    launcher = known[variant].launchers.get(device.name)
    if launcher is None:
        raise NoKernelError(f"attention variant {variant}", device.name)
    problem = _check(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out, capacity, plan)
    if problem.T and desc.shape[0]:
        launcher(device, problem)
    return problem.out


def variants() -> dict[str, Variant]:
    """Every variant by name."""
    from crucible.attention.fast import FAST

    return {**VARIANTS, **FAST}


def _check(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out, capacity, plan) -> Problem:
    layer, Hkv, D = int(layer), int(Hkv), int(D)
    if D < WARP or D % WARP:
        raise InputError(f"head_dim {D} is not a positive multiple of {WARP}")
    columns = int(np.prod(q.shape[1:]))
    if len(q.shape) not in (2, 3) or columns == 0 or columns % D or (len(q.shape) == 3 and q.shape[2] != D):
        raise InputError(f"q has shape {tuple(q.shape)}; it must be [T][Hq*{D}] or [T][Hq][{D}]")
    Hq = columns // D
    if Hkv < 1 or Hq % Hkv:
        raise InputError(f"{Hq} query heads cannot share {Hkv} KV heads evenly; Hq must be a multiple of Hkv")
    out = device.empty(q.shape) if out is None else out
    expect("q", q, np.float32, tuple(q.shape))
    expect("out", out, np.float32, tuple(q.shape))
    expect("kpool", kpool, np.float32, (None, None, PAGE_SIZE, Hkv * D))
    expect("vpool", vpool, np.float32, tuple(kpool.shape))
    expect("tables", tables, np.int32, (None, None))
    expect("desc", desc, np.int32, (None, 4))
    if not 0 <= layer < kpool.shape[1]:
        raise InputError(f"layer {layer} is outside the pools' {kpool.shape[1]} layers")
    return Problem(q, kpool, vpool, tables, desc, out, layer, q.shape[0], Hq, Hkv, D, capacity, plan)


def largest_end(device, desc) -> int:
    """Largest absolute_start + chunk_len of the descriptors, read back from the device."""
    host = device.download(desc)
    return int((host[:, 1] + host[:, 2]).max())


def _native(function: str) -> Callable:
    def launch(device, p: Problem) -> None:
        device.call(
            function,
            *(p.q, p.kpool, p.vpool, p.tables, p.tables.shape[1], p.desc, p.desc.shape[0]),
            *(p.layer, p.layers, p.Hq, p.Hkv, p.D, p.out),
        )

    return launch


def attention_reference(device, p: Problem) -> None:
    """kernels/attention_reference.cu: a block per row and head, all scores of a row in shared memory."""
    capacity = largest_end(device, p.desc) if p.capacity is None else int(p.capacity)
    kernel = device.kernel("attention_reference")
    limit = (device.shared_limit - STATIC_SHARED) // 4 - p.D
    if capacity > limit:
        raise UnsupportedError(
            f"a history of {capacity} positions does not fit attention variant reference on {device.name}, "
            f"which holds {limit} scores in shared memory; use --device cpu or a shorter context"
        )
    i32 = np.int32
    kernel.launch(
        grid=(p.T, p.Hq),
        block=256,
        args=(
            *(p.q, p.kpool, p.vpool, p.tables, i32(p.tables.shape[1]), p.desc, i32(p.desc.shape[0])),
            *(i32(p.layer), i32(p.layers), i32(p.Hq), i32(p.Hkv), i32(p.D), p.scale, i32(capacity), p.out),
        ),
        shared=4 * (capacity + p.D),
    )


def _auto(device, p: Problem) -> None:
    from crucible.attention.dispatch import attention_auto

    attention_auto(device, p)


STATIC_SHARED = 48  # bytes that attention_reference.cu declares itself (a test holds them to ptxas)

VARIANTS: dict[str, Variant] = {
    "reference": Variant(
        "plain: a row and a head at a time, the form that every other variant is held to",
        True,
        {
            "cpu": _native("crucible_attention_reference"),
            "simt": attention_reference,
            "cuda": attention_reference,
        },
    ),
    "exact": Variant(
        "tiled for speed, the same bits",
        True,
        {"cpu": _native("crucible_attention_tiled")},
    ),
    "auto": Variant(
        "the fastest exact variant that a device has",
        True,
        {
            "cpu": _native("crucible_attention_tiled"),
            "simt": _auto,
            "cuda": _auto,
        },
    ),
}
