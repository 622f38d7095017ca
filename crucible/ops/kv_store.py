"""Launcher of the paged K/V scatter (contract section 5)."""

import numpy as np

from crucible.device.checks import expect, expect_out
from crucible.errors import InputError
from crucible.numerics.checks import whole
from crucible.numerics.contract import PAGE_SIZE


def store_kv(device, k, v, kpool, vpool, tables, desc, layer) -> None:
    """Write each packed row's K (rotated) and V into its request's page, in place.

    k, v f32 [T][Hkv*D]; kpool, vpool f32 [pages][layers][16][Hkv*D]; tables int32 [requests][stride];
    desc int32 [S][4] = packed_start, chunk_len, absolute_start, table_index, validated by the caller.
    """
    expect("k", k, np.float32, (None, None))
    expect("v", v, np.float32, tuple(k.shape))
    rows, kv_dim = k.shape
    expect("tables", tables, np.int32, (None, None))
    expect("desc", desc, np.int32, (None, 4))
    expect_out("kpool", kpool, np.float32, (None, None, PAGE_SIZE, kv_dim), (k, v, tables, desc))
    expect_out("vpool", vpool, np.float32, tuple(kpool.shape), (k, v, tables, desc, kpool))
    layer = whole("layer", layer)
    layers, stride, S = kpool.shape[1], tables.shape[1], desc.shape[0]
    if not 0 <= layer < layers:
        raise InputError(f"layer {layer} is outside the pools' {layers} layers")
    if rows == 0 or S == 0:
        return
    if device.name == "cpu":
        device.call(
            "crucible_store_kv", k, v, kpool, vpool, tables, stride, desc, S, int(layer), layers, kv_dim
        )
        return
    i32 = np.int32
    sizes = (i32(S), i32(layer), i32(layers), i32(kv_dim))
    device.kernel("kv_store").launch(rows, 256, (k, v, kpool, vpool, tables, i32(stride), desc, *sizes))
