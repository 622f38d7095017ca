"""Launchers of row gathers: the token embedding (contract sections 6 and 7) and rows of activations."""

from dataclasses import dataclass

import numpy as np

from crucible.device.checks import expect, expect_array, expect_out
from crucible.errors import InputError
from crucible.linear.weights import STORAGES

# Of kernels/embed.cu: columns of a block, and (code, elements, bytes) of a block of each storage.
_COLUMNS = 1024
_STORED = {"f16": (4, 1, 2), **STORAGES}
_INT8 = 5


@dataclass(frozen=True)
class StoredTable:
    """An f32 embedding table [V][n] kept in the storage it came in: rows uint8 [V][bytes of n weights]."""

    storage: str
    rows: object
    n: int


def embed(device, table, ids, out=None):
    """Rows of the embedding table for the tokens `ids` int32 [T] -> f32 [T][N].

    table: f32 [V][N], a StoredTable, or a pair (q int8 [V][N], scale f32 [V]) whose row is q*scale.
    InputError for an id outside 0..V-1; on cuda, where no launcher reads ids back, its row is NaN.
    """
    stored = isinstance(table, StoredTable)
    if isinstance(table, tuple) and len(table) != 2:
        raise InputError(f"table is a tuple of {len(table)}; it must be the pair (q int8, scale)")
    rows = table.rows if stored else table[0] if isinstance(table, tuple) else table
    expect_array("table", rows)
    if rows.ndim != 2:
        raise InputError(f"table has shape {tuple(rows.shape)}; it must be [V][N]")
    vocab, n = rows.shape[0], table.n if stored else rows.shape[1]
    expect("ids", ids, np.int32, (None,))
    _check_rows(device, "token id", ids, vocab, "the vocabulary")
    out = device.empty((ids.size, n)) if out is None else out
    expect_out("out", out, np.float32, (ids.size, n), (ids, rows))
    if stored:
        known = STORAGES if device.name == "cpu" else _STORED
        if table.storage not in known:
            raise InputError(
                f"table storage {table.storage!r} is unknown; it must be one of {', '.join(known)}"
            )
        code, elements, size = known[table.storage]
        expect("table", rows, np.uint8, (vocab, n // elements * size))
        if device.name == "cpu":
            device.call("crucible_embed_stored", code, rows, ids, out, ids.size, n)
        else:
            _gather(device, code, rows, None, ids, out)
    elif isinstance(table, tuple):
        expect("table", rows, np.int8, (vocab, n))
        expect("scale", table[1], np.float32, (vocab,))
        if device.name == "cpu":
            device.call("crucible_embed_i8", rows, table[1], ids, out, ids.size, n)
        else:
            _gather(device, _INT8, rows.view(np.uint8), table[1], ids, out)
    else:
        expect("table", rows, np.float32, (vocab, n))
        _rows_f32(device, rows, ids, out)
    return out


def gather_rows(device, x, rows, out=None):
    """x[rows]: rows int32 [R] of x f32 [T][N] -> f32 [R][N]. InputError, or NaN on cuda, as `embed`."""
    expect("x", x, np.float32, (None, None))
    expect("rows", rows, np.int32, (None,))
    _check_rows(device, "row", rows, x.shape[0], "the rows")
    out = device.empty((rows.size, x.shape[1])) if out is None else out
    expect_out("out", out, np.float32, (rows.size, x.shape[1]), (rows, x))
    _rows_f32(device, x, rows, out)
    return out


def _check_rows(device, what: str, ids, count: int, of: str) -> None:
    if device.name == "cuda":
        return
    bad = np.flatnonzero((ids < 0) | (ids >= count))
    if bad.size:
        raise InputError(f"{what} {ids[bad[0]]} at row {bad[0]} is outside {of} 0..{count - 1}")


def _rows_f32(device, table, ids, out) -> None:
    if device.name == "cpu":
        device.call("crucible_embed_f32", table, ids, out, ids.size, table.shape[1])
    else:
        _gather(device, STORAGES["f32"][0], table.view(np.uint8), None, ids, out)


def _gather(device, storage: int, table, scale, ids, out) -> None:
    if not out.size:
        return
    i32 = np.int32
    vocab, row_bytes = table.shape
    args = (table, scale, i32(storage), i32(row_bytes), ids, out, i32(vocab), i32(out.shape[1]))
    device.kernel("embed").launch((ids.size, -(-out.shape[1] // _COLUMNS)), 256, args)
