"""The plain variant: one row and one head at a time."""

import numpy as np

from crucible.attention.base import Problem, TooLong, Variant
from crucible.attention.native import native

STATIC_SHARED = 48  # bytes that attention_reference.cu declares itself (a test holds them to ptxas)


def covers(device, p: Problem) -> str:
    """Why the history does not fit one block's shared memory, or ""."""
    if device.name == "cpu":
        return ""
    limit = (device.shared_limit - STATIC_SHARED) // 4 - p.D
    if p.capacity <= limit:
        return ""
    return TooLong(
        f"a history of {p.capacity} positions does not fit, since shared memory holds {limit} scores"
    )


def arguments(p: Problem) -> tuple:
    """The arguments of a kernel that takes one block per row and head."""
    i32 = np.int32
    return (
        *(p.q, p.kpool, p.vpool, p.tables, i32(p.tables.shape[1]), p.desc, i32(p.S)),
        *(i32(p.layer), i32(p.layers), i32(p.Hq), i32(p.Hkv), i32(p.D), p.scale, i32(p.capacity), p.out),
    )


def attention_reference(device, p: Problem) -> None:
    """kernels/attention_reference.cu: a block per row and head, all scores of a row in shared memory."""
    kernel = device.kernel("attention_reference")
    kernel.launch((p.T, p.Hq), 256, arguments(p), shared=4 * (p.capacity + p.D))


VARIANTS = {
    "reference": Variant(
        "plain: a row and a head at a time, the form that every other variant is held to",
        True,
        {
            "cpu": native("crucible_attention_reference"),
            "simt": attention_reference,
            "cuda": attention_reference,
        },
        covers,
    )
}
