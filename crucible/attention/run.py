"""Attention by variant name on every device (contract sections 4 and 5)."""

import functools
import logging
from dataclasses import dataclass

from crucible.attention import dispatch, fast
from crucible.attention.base import Launch, Problem, Variant, check
from crucible.attention.plan import Plan, plan_of
from crucible.attention.reference import STATIC_SHARED
from crucible.attention.variants import AUTO, VARIANTS, asked_for, stand_in
from crucible.errors import NoKernelError, UnsupportedError

__all__ = [
    "STATIC_SHARED",
    "VARIANTS",
    "Launch",
    "Problem",
    "Result",
    "Variant",
    "attention",
    "choose",
    "run",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The output of a call, an array like q, and the launch that made it."""

    out: object
    launch: Launch


def attention(device, *arguments, **options):
    """The output of `run`, which has the same arguments."""
    return run(device, *arguments, **options).out


def run(
    device,
    q,
    kpool,
    vpool,
    tables,
    desc,
    layer,
    Hkv,
    D,
    variant: str | None = "reference",
    out=None,
    capacity: int | None = None,
    longest: int | None = None,
    k=None,
    v=None,
    plan: Plan | None = None,
) -> Result:
    """Causal attention of packed rows over their own requests' paged history.

    q f32 [T][Hq*D] or [T][Hq][D]; kpool, vpool f32 [pages][layers][16][Hkv*D]; tables int32
    [requests][stride]; desc int32 [S][4] = packed_start, chunk_len, absolute_start, table_index, all in
    the device's memory; D a multiple of 32, Hq a multiple of Hkv. `capacity` is at least the largest
    absolute_start + chunk_len and `longest` the largest chunk_len; without them desc is read back, which
    waits for the device. `plan` (plan.plan_of) holds the work items of auto and the fast variants, made at
    every call that lacks it: give one to every layer of a batch, and to what a graph captures. k, v f32
    [T][Hkv*D], the packed rows' own K and V, are needed by hybrid variants alone. Rows of q that no
    segment covers are left as they are in `out`.

    A `variant` that is named is demanded: what it does not cover raises UnsupportedError, a device
    without it NoKernelError. None means CRUCIBLE_PREFILL_ATTN or auto, which fall back to the reference
    where they must; the result's `launch` says so, and a warning is logged once. InputError for
    malformed arguments and unknown names.
    """
    asked, demanded = asked_for(variant)
    problem = check(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out, capacity, longest, k, v)
    if not problem.T or not problem.S:
        return Result(problem.out, Launch(asked, asked, "nothing to launch"))
    needs_plan = problem.capacity is None or asked == AUTO or asked in fast.VARIANTS
    if device.name != "cpu" and (plan is not None or needs_plan):
        problem = problem.planned(plan or plan_of(device, desc, Hkv))
    launch = choose(device, problem, asked, demanded)
    VARIANTS[launch.variant].launchers[device.name](device, problem)
    return Result(problem.out, launch)


def choose(device, problem: Problem, asked: str, demanded: bool) -> Launch:
    """The variant that runs `problem` when `asked` is, or UnsupportedError if it is demanded and cannot."""
    if asked == AUTO:
        refusals = []
        for name in dispatch.candidates(device.name, problem):
            refused = _refusal(device, problem, name)
            if not refused:
                return Launch(name, asked, "; ".join(refusals))
            refusals.append(f"{name}: {refused}")
        raise UnsupportedError(
            f"no attention variant covers this call on {device.name}: {'; '.join(refusals)}"
        )
    name, reason = stand_in(device.name, asked)
    if device.name not in VARIANTS[name].launchers:
        refused = f"device {device.name} has no such kernel"
        if demanded:
            where = next(iter(VARIANTS[name].launchers))
            raise NoKernelError(f"attention variant {asked}", device.name, where)
    else:
        refused = _refusal(device, problem, name)
    if not refused:
        return Launch(name, asked, reason)
    if demanded or name == "reference":
        raise UnsupportedError(
            f"attention variant {asked} does not cover this call on {device.name}: {refused}; "
            "use auto, the cpu device or a shorter context"
        )
    refused = f"{asked}: {refused}"
    _warn(device.name, refused)
    fallback = _refusal(device, problem, "reference")
    if fallback:
        raise UnsupportedError(
            f"no attention variant covers this call on {device.name}: {refused}; {fallback}"
        )
    return Launch("reference", asked, refused)


def _refusal(device, problem: Problem, name: str) -> str:
    covers = VARIANTS[name].covers
    return covers(device, problem) if covers else ""


@functools.cache
def _warn(device_name: str, refused: str) -> None:
    log.warning("attention falls back to the reference on %s: %s", device_name, refused)
