"""Attention inputs for notebooks and pictures: counter-based, so every machine draws the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crucible.attention.run import attention
from crucible.device import Device
from crucible.kv.slices import Slice, pack
from crucible.numerics import inputs
from crucible.numerics.contract import PAGE_SIZE

_PAGES, _QUERY, _KEY, _VALUE = range(4)  # streams of the input generator


@dataclass(frozen=True)
class Case:
    """Paged attention inputs, all on the host.

    q f32 [T][Hq*D]; kpool, vpool f32 [pages][1][16][Hkv*D], NaN wherever no position lives; tables
    int32 [requests][stride]; desc int32 [S][4]; positions int32 [T].
    """

    heads: int
    kv_heads: int
    head_dim: int
    lengths: tuple[int, ...]
    q: np.ndarray
    kpool: np.ndarray
    vpool: np.ndarray
    tables: np.ndarray
    desc: np.ndarray
    positions: np.ndarray

    def run(self, device: Device, variant: str = "reference") -> np.ndarray:
        """Attention of the case on a device -> f32 [T][Hq*D] on the host."""
        arrays = (self.q, self.kpool, self.vpool, self.tables, self.desc)
        arguments = [device.upload(a) for a in arrays]
        return device.download(
            attention(device, *arguments, 0, self.kv_heads, self.head_dim, variant=variant)
        )


def page_tables(lengths: Sequence[int], num_pages: int, seed: int | None = None) -> np.ndarray:
    """int32 [requests][stride] page tables; pages in order, or in the order that `seed` shuffles them to."""
    order = np.arange(num_pages)
    if seed is not None:
        order = np.argsort(inputs.bits(seed, _PAGES, num_pages), kind="stable")
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    tables = np.zeros((len(lengths), max(counts)), np.int32)
    used = 0
    for request, count in enumerate(counts):
        tables[request, :count] = order[used : used + count]
        used += count
    return tables


def make(
    lengths: Sequence[int],
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    slices: Sequence[Slice] | None = None,
    num_pages: int | None = None,
    page_seed: int | None = None,
    seed: int = 1,
) -> Case:
    """A case over requests of `lengths` positions; `slices` (default: every position of every request).

    A request's q, k and v depend only on seed, request and position: not on the pages, the slices or
    the neighbours. That is what makes two cases comparable.
    """
    if slices is None:
        slices = [Slice(i, 0, length) for i, length in enumerate(lengths)]
    num_pages = num_pages or sum(-(-length // PAGE_SIZE) for length in lengths)
    tables = page_tables(lengths, num_pages, page_seed)
    kv_dim, packed = kv_heads * head_dim, pack(slices)
    kpool = np.full((num_pages, 1, PAGE_SIZE, kv_dim), np.nan, np.float32)
    vpool = kpool.copy()
    for request, length in enumerate(lengths):
        at = np.arange(length)
        pages, slots = tables[request, at // PAGE_SIZE], at % PAGE_SIZE
        kpool[pages, 0, slots] = _rows(seed, _KEY, request, length, kv_dim)
        vpool[pages, 0, slots] = _rows(seed, _VALUE, request, length, kv_dim)
    q = _queries(seed, slices, heads * head_dim)
    return Case(
        heads, kv_heads, head_dim, tuple(lengths), q, kpool, vpool, tables, packed.desc, packed.positions
    )


def _rows(seed: int, stream: int, request: int, count: int, width: int) -> np.ndarray:
    return inputs.normalish(seed, 16 * request + stream, (count, width))


def _queries(seed: int, slices: Sequence[Slice], width: int) -> np.ndarray:
    parts = [_rows(seed, _QUERY, s.table_index, s.start + s.length, width)[s.start :] for s in slices]
    return np.concatenate(parts)


def only(case: Case, result: np.ndarray, request: int) -> np.ndarray:
    """The rows of `result` [T][…] that belong to one request, in order of position."""
    rows = [
        np.arange(start, start + count) for start, count, _, table in case.desc.tolist() if table == request
    ]
    at = np.concatenate(rows)
    return result[at[np.argsort(case.positions[at], kind="stable")]]
