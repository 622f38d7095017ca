"""Slices of requests packed into rows, with the descriptors that kernels read (contract section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crucible.errors import InputError
from crucible.numerics.checks import whole

POSITION_LIMIT = 1 << 31


@dataclass(frozen=True)
class Slice:
    """Positions start .. start+length-1 of the request whose page table is `table_index`."""

    table_index: int
    start: int
    length: int

    def __post_init__(self):
        for name in ("table_index", "start", "length"):
            value = getattr(self, name)
            if type(value) is not int:
                object.__setattr__(self, name, whole(name, value))
        if not 0 <= self.table_index < POSITION_LIMIT:
            raise InputError(f"table_index {self.table_index} must be 0 or more, below {POSITION_LIMIT}")
        if self.start < 0:
            raise InputError(f"start {self.start} must be 0 or more")
        if self.length < 1:
            raise InputError(f"length {self.length} must be at least 1; leave an empty slice out")
        if self.start + self.length >= POSITION_LIMIT:
            raise InputError(f"slice end {self.start + self.length} must stay below {POSITION_LIMIT}")


@dataclass(frozen=True)
class Packed:
    """Slices one after another: S segments, T rows.

    desc int32 [S][4] = packed_start, chunk_len, absolute_start, table_index; positions int32 [T];
    row_segment int32 [T]; max_end is the largest position + 1 of any slice.
    """

    desc: np.ndarray
    positions: np.ndarray
    row_segment: np.ndarray
    rows: int
    max_end: int


def pack(slices: Sequence[Slice]) -> Packed:
    """Pack the slices in the given order. InputError when there is none or the rows exceed int32."""
    if not isinstance(slices, (list, tuple)) or not all(isinstance(s, Slice) for s in slices):
        raise InputError(f"slices must be a list of Slice, got {type(slices).__name__}")
    if not slices:
        raise InputError("nothing to pack; pass at least one slice")
    table, start, length = np.array([(s.table_index, s.start, s.length) for s in slices], np.int64).T
    ends = np.cumsum(length)
    rows = int(ends[-1])
    if rows >= POSITION_LIMIT:
        raise InputError(f"{rows} packed rows must stay below {POSITION_LIMIT}; pack fewer slices")
    first = ends - length
    desc = np.stack([first, length, start, table], axis=1).astype(np.int32)
    segment = np.repeat(np.arange(len(slices), dtype=np.int32), length)
    positions = (np.arange(rows) + (start - first)[segment]).astype(np.int32)
    return Packed(desc, positions, segment, rows, int((start + length).max()))
