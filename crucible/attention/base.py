"""What an attention variant is, what one launch is given, and what a caller learns about it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from crucible.device.checks import expect, expect_out
from crucible.errors import InputError
from crucible.numerics.checks import whole
from crucible.numerics.contract import PAGE_SIZE, WARP
from crucible.numerics.scalar_exact import reciprocal_root

INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Problem:
    """One launch, checked: packed rows, paged K/V, and the extents that every launcher needs.

    q, out f32 [T][Hq*D] or [T][Hq][D]; kpool, vpool f32 [pages][layers][16][Hkv*D]; tables int32
    [requests][stride]; desc int32 [S][4]. capacity is at least every row's history length and longest
    at least every segment's rows; plan holds the fast variants' work items (plan.Plan of the same
    descriptors). Beside the cpu device, which needs none of the three, run() sees to it that they are
    there. k, v f32 [T][Hkv*D] are the packed rows' own K (rotated) and V, or None; only the hybrid variants
    read them.
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
    longest: int | None = None
    k: object = None
    v: object = None
    plan: object = None

    def planned(self, plan) -> "Problem":
        """This problem with its work items (plan.Plan), and the extents that they have."""
        return replace(
            self,
            plan=plan,
            capacity=plan.end if self.capacity is None else self.capacity,
            longest=plan.longest_chunk,
        )

    @property
    def layers(self) -> int:
        return self.kpool.shape[1]

    @property
    def scale(self) -> np.float32:
        return reciprocal_root(self.D)

    @property
    def G(self) -> int:
        return self.Hq // self.Hkv

    @property
    def S(self) -> int:
        return self.desc.shape[0]


@dataclass(frozen=True)
class Variant:
    """An implementation by name.

    `exact` says that it keeps the contract's bits; `launchers` maps a device's name to the function
    that runs a Problem there. `covers(device, problem)` returns why it cannot run this problem, "" if
    it can; None means that it runs everything. `ablation` marks a member of a family that another
    member stands for where one is enough; `user` one that a user gave as a file and asked the engine to
    run, outside the contract's promise.
    """

    summary: str
    exact: bool
    launchers: dict[str, Callable]
    covers: Callable[[object, Problem], str] | None = None
    ablation: bool = False
    user: bool = False


@dataclass(frozen=True)
class Launch:
    """Which variant really ran, which was asked for, and why they differ ("" where they do not)."""

    variant: str
    asked: str
    reason: str = ""


def check(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out, capacity, longest, k, v) -> Problem:
    """The arguments of crucible.attention.run.attention as a Problem, or InputError for what does not fit."""
    layer, Hkv, D = whole("layer", layer), whole("Hkv", Hkv), whole("head_dim", D)
    expect("q", q, np.float32, None)
    if D < WARP or D % WARP:
        raise InputError(f"head_dim {D} is not a positive multiple of {WARP}")
    columns = int(np.prod(q.shape[1:]))
    if len(q.shape) not in (2, 3) or columns == 0 or columns % D or (len(q.shape) == 3 and q.shape[2] != D):
        raise InputError(f"q has shape {tuple(q.shape)}; it must be [T][Hq*{D}] or [T][Hq][{D}]")
    Hq = columns // D
    if Hkv < 1 or Hq % Hkv:
        raise InputError(f"{Hq} query heads cannot share {Hkv} KV heads evenly; Hq must be a multiple of Hkv")
    out = device.empty(q.shape) if out is None else out
    expect("kpool", kpool, np.float32, (None, None, PAGE_SIZE, Hkv * D))
    expect("vpool", vpool, np.float32, tuple(kpool.shape))
    expect("tables", tables, np.int32, (None, None))
    expect("desc", desc, np.int32, (None, 4))
    for name, array in (("k", k), ("v", v)):
        if array is not None:
            expect(name, array, np.float32, (q.shape[0], Hkv * D))
    inputs = (q, kpool, vpool, tables, desc, k, v)
    expect_out("out", out, np.float32, tuple(q.shape), inputs)
    if not 0 <= layer < kpool.shape[1]:
        raise InputError(f"layer {layer} is outside the pools' {kpool.shape[1]} layers")
    given = (("capacity", capacity), ("longest", longest))
    extents = (None if x is None else whole(name, x, 1, INT32_MAX) for name, x in given)
    return Problem(q, kpool, vpool, tables, desc, out, layer, q.shape[0], Hq, Hkv, D, *extents, k, v)


class TooLong(str):
    """Why a variant does not cover a problem, where a shorter history would lift the reason."""


def fits(what: str, needed: int, limit: int, capacity: int) -> str:
    """Why `needed` bytes of shared memory are too many, or ""."""
    if needed <= limit:
        return ""
    return TooLong(f"{capacity} positions of history need {needed} bytes of shared memory {what}, of {limit}")
