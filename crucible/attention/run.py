"""Attention by variant name on every device (contract sections 4 and 5)."""

import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from crucible.attention import dispatch
from crucible.attention.base import Launch, Problem, TooLong, Variant, check
from crucible.attention.plan import Plan, check_plan
from crucible.attention.reference import STATIC_SHARED
from crucible.attention.variants import AUTO, VARIANTS, asked_for, stand_in
from crucible.errors import InputError, NoKernelError, UnsupportedError
from crucible.kv.validation import validate_reads

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
    absolute_start + chunk_len: a kernel that sizes its memory by it gives NaN for a row past it. `longest`
    is at least the largest chunk_len. k, v f32 [T][Hkv*D], the packed rows' own K and V, are needed by
    hybrid variants alone. Rows of q that no segment covers are left as they are in `out`, and a segment of
    no rows is passed over.

    Without a `plan`, desc and tables are read back to the host, which waits for the device, and checked
    before anything is launched: every segment's rows, history and pages must exist, and a row belongs to
    one segment. With one (plan.plan_of) nothing is read back, and only what costs next to nothing is
    checked: the caller vouches that the plan was made of this desc and that the pages exist, for kernels
    trust both. Give one plan to every layer of a batch, and to what a graph captures.

    A `variant` that is named is demanded: what it does not cover raises UnsupportedError, a device
    without it NoKernelError. None means CRUCIBLE_PREFILL_ATTN or auto, which fall back to the reference
    where they must; the result's `launch` says so, and a warning is logged once. InputError for
    malformed arguments, metadata and unknown names.
    """
    asked, demanded = asked_for(variant)
    problem = check(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out, capacity, longest, k, v)
    if plan is None:
        host = _checked(device, problem)
        if not host[:, 1].any():
            return Result(problem.out, Launch(asked, asked, "nothing to launch"))
        plan = Plan(device, host, problem.Hkv)
    else:
        check_plan(plan, device, problem)
    if device.name != "cpu":  # whose kernels need no items
        problem = problem.planned(plan)
    launch = choose(device, problem, asked, demanded)
    VARIANTS[launch.variant].launchers[device.name](device, problem)
    return Result(problem.out, launch)


def _checked(device, p: Problem) -> np.ndarray:
    """The descriptors on the host, once they and the table entries that they use have passed."""
    desc = device.download(p.desc)
    validate_reads(desc, device.download(p.tables), num_pages=p.kpool.shape[0], rows=p.T)
    longest = int(desc[:, 1].max(initial=0))
    if p.longest is not None and p.longest < longest:
        raise InputError(f"longest {p.longest} must be at least {longest}, the rows of the largest segment")
    return desc


def choose(device, problem: Problem, asked: str, demanded: bool) -> Launch:
    """The variant that runs `problem` when `asked` is, or UnsupportedError if it is demanded and cannot."""
    if asked == AUTO:
        refusals: dict[str, str] = {}
        for name in dispatch.candidates(device.name, problem):
            refused = _refusal(device, problem, name)
            if not refused:
                return Launch(name, asked, _listed(refusals))
            refusals[name] = refused
        raise _none(device, refusals)
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
            f"use {_way_out([refused], 'auto', 'the cpu device')}"
        )
    fallback = _refusal(device, problem, "reference")
    if fallback:
        raise _none(device, {asked: refused, "reference": fallback})
    refused = f"{asked}: {refused}"
    _warn(device.name, refused)
    return Launch("reference", asked, refused)


def _none(device, refusals: dict[str, str]) -> UnsupportedError:
    """The error for a call that no variant covers, by the reasons of those that were tried."""
    return UnsupportedError(
        f"no attention variant covers this call on {device.name}: {_listed(refusals)}; "
        f"use {_way_out(refusals.values(), 'the cpu device')}"
    )


def _listed(refusals: dict[str, str]) -> str:
    return "; ".join(f"{name}: {refused}" for name, refused in refusals.items())


def _way_out(refused: Iterable[str], *ways: str) -> str:
    """`ways` as a choice, with a shorter context where that would help."""
    if any(isinstance(one, TooLong) for one in refused):
        ways = (*ways, "a shorter context")
    return " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))


def _refusal(device, problem: Problem, name: str) -> str:
    covers = VARIANTS[name].covers
    return covers(device, problem) if covers else ""


@functools.cache
def _warn(device_name: str, refused: str) -> None:
    log.warning("attention falls back to the reference on %s: %s", device_name, refused)
