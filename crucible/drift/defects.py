"""Attention that is broken on purpose, one kind a function, to show that a diagnosis tells them apart."""

import numpy as np

from crucible.attention.run import attention


def wrong_history(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):
    """Every row but a request's first misses its newest key: a causal end one too small."""
    rows = [
        (first + i, 1, max(start + i - 1, 0), table)
        for first, length, start, table in device.download(desc).tolist()
        for i in range(length)
    ]
    short = device.upload(np.array(rows, np.int32))
    attention(device, q, kpool, vpool, tables, short, layer, Hkv, D, "reference", out)


def wrong_page(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):
    """A request's first logical page is read from the physical page after it in the pool."""
    wrong = tables.copy()
    wrong[:, 0] = (tables[:, 0] + 1) % kpool.shape[0]
    attention(device, q, kpool, vpool, wrong, desc, layer, Hkv, D, "reference", out)


def wrong_head(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):
    """Query heads read the KV head after theirs (with one KV head there is no other: nothing changes)."""
    shape = (q.shape[0], -1, D)
    group = q.reshape(shape).shape[1] // Hkv
    moved = device.empty(q.shape)
    for target, source in ((slice(0, group), slice(-group, None)), (slice(group, None), slice(0, -group))):
        if q.reshape(shape)[:, source].shape[1]:
            moved.reshape(shape)[:, target] = q.reshape(shape)[:, source]
    if Hkv == 1:
        moved[...] = q
    made = attention(device, moved, kpool, vpool, tables, desc, layer, Hkv, D, "reference").reshape(shape)
    if Hkv == 1:
        out[...] = made.reshape(out.shape)
        return
    out.reshape(shape)[:, :-group] = made[:, group:]
    out.reshape(shape)[:, -group:] = made[:, :group]


def nan(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):
    """The last element of every row is NaN in the last layer, as 0/0 in a fully masked tile would make it."""
    attention(device, q, kpool, vpool, tables, desc, layer, Hkv, D, "reference", out)
    if layer == kpool.shape[1] - 1:
        out.reshape(out.shape[0], -1)[:, -1] = np.nan


DEFECTS = {
    "defect-wrong-history": wrong_history,
    "defect-wrong-page": wrong_page,
    "defect-wrong-head": wrong_head,
    "defect-nan": nan,
}
