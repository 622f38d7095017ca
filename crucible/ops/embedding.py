"""Launcher of the token embedding, f32 rows or dequantized int8 rows (contract section 6)."""

from dataclasses import dataclass

import numpy as np

from crucible.device.checks import expect, expect_array, expect_out, need_cpu
from crucible.errors import InputError
from crucible.linear.weights import STORAGES


@dataclass(frozen=True)
class StoredTable:
    """An f32 embedding table [V][n] kept in the storage it came in: rows uint8 [V][bytes of n weights]."""

    storage: str
    rows: object
    n: int


def embed(device, table, ids, out=None):
    """Rows of the embedding table for the tokens `ids` int32 [T] -> f32 [T][N].

    table: f32 [V][N], a StoredTable, or a pair (q int8 [V][N], scale f32 [V]) whose row is q*scale.
    InputError for an id outside 0..V-1.
    """
    need_cpu("embed", device)
    stored = isinstance(table, StoredTable)
    if isinstance(table, tuple) and len(table) != 2:
        raise InputError(f"table is a tuple of {len(table)}; it must be the pair (q int8, scale)")
    rows = table.rows if stored else table[0] if isinstance(table, tuple) else table
    expect_array("table", rows)
    if rows.ndim != 2:
        raise InputError(f"table has shape {tuple(rows.shape)}; it must be [V][N]")
    vocab, n = rows.shape[0], table.n if stored else rows.shape[1]
    expect("ids", ids, np.int32, (None,))
    bad = np.flatnonzero((ids < 0) | (ids >= vocab))
    if bad.size:
        raise InputError(f"token id {ids[bad[0]]} at row {bad[0]} is outside the vocabulary 0..{vocab - 1}")
    out = device.empty((ids.size, n)) if out is None else out
    expect_out("out", out, np.float32, (ids.size, n), (ids, rows))
    if stored:
        code, elements, size = STORAGES[table.storage]
        expect("table", rows, np.uint8, (vocab, n // elements * size))
        device.call("crucible_embed_stored", code, rows, ids, out, ids.size, n)
    elif isinstance(table, tuple):
        expect("table", rows, np.int8, (vocab, n))
        expect("scale", table[1], np.float32, (vocab,))
        device.call("crucible_embed_i8", rows, table[1], ids, out, ids.size, n)
    else:
        expect("table", rows, np.float32, (vocab, n))
        device.call("crucible_embed_f32", rows, ids, out, ids.size, n)
    return out
