"""Launcher of the step between the q/k/v layer and attention: head norms, RoPE, K/V store (sections 5, 7)."""

import numpy as np

from crucible.device.checks import expect, expect_out
from crucible.errors import InputError
from crucible.numerics.checks import check_eps, whole
from crucible.numerics.contract import PAGE_SIZE


def rope_store(
    device,
    qkv,
    positions,
    cos,
    sin,
    kpool,
    vpool,
    tables,
    desc,
    layer,
    Hq,
    Hkv,
    D,
    q_out,
    k_out=None,
    v_out=None,
    q_norm=None,
    k_norm=None,
    eps=None,
):
    """Split qkv f32 [T][(Hq + 2 Hkv)*D], rotate q and k, store k and v in their pages. Returns q_out.

    positions int32 [T]; cos, sin f32 [P][D/2], every position below P;
    kpool, vpool f32 [pages][layers][16][Hkv*D]; tables int32 [requests][stride]; desc int32 [S][4],
    validated by the caller; q_out f32 [T][Hq*D]; k_out, v_out f32 [T][Hkv*D] for variants that read the
    current rows from there; q_norm, k_norm f32 [D]
    with eps: RMSNorm of each head before the rotation. A row of no segment is rotated and not stored.
    """
    Hq, Hkv, D, layer = (
        whole(n, v) for n, v in (("Hq", Hq), ("Hkv", Hkv), ("head_dim", D), ("layer", layer))
    )
    if D < 2 or D % 2 or Hq < 1 or Hkv < 1:
        raise InputError(f"Hq {Hq}, Hkv {Hkv} and head_dim {D} must be at least 1, and head_dim even")
    if (q_norm is None) != (k_norm is None):
        raise InputError("only one of q_norm and k_norm is given; pass both or none")
    if q_norm is not None and D % 32:
        raise InputError(f"head_dim {D} with head norms must be a multiple of 32")
    expect("qkv", qkv, np.float32, (None, (Hq + 2 * Hkv) * D))
    T, kv_dim = qkv.shape[0], Hkv * D
    expect("positions", positions, np.int32, (T,))
    expect("cos", cos, np.float32, (None, D // 2))
    expect("sin", sin, np.float32, tuple(cos.shape))
    expect("tables", tables, np.int32, (None, None))
    expect("desc", desc, np.int32, (None, 4))
    read = [qkv, positions, cos, sin, tables, desc]
    if q_norm is not None:
        eps = check_eps(eps)
        expect("q_norm", q_norm, np.float32, (D,))
        expect("k_norm", k_norm, np.float32, (D,))
        read += [q_norm, k_norm]
    for name, pool in (("kpool", kpool), ("vpool", vpool)):
        expect_out(name, pool, np.float32, (None, None, PAGE_SIZE, kv_dim), read)
        read.append(pool)
    for name, out, width in (("q_out", q_out, Hq * D), ("k_out", k_out, kv_dim), ("v_out", v_out, kv_dim)):
        if out is not None:
            expect_out(name, out, np.float32, (T, width), read)
            read.append(out)
    if tuple(kpool.shape) != tuple(vpool.shape):
        raise InputError(f"vpool has shape {tuple(vpool.shape)}; it must be kpool's {tuple(kpool.shape)}")
    if not 0 <= layer < kpool.shape[1]:
        raise InputError(f"layer {layer} is outside the pools' {kpool.shape[1]} layers")
    if T == 0:
        return q_out
    if device.name != "cuda" and not 0 <= positions.min() <= positions.max() < cos.shape[0]:
        span = f"{positions.min()} to {positions.max()}"
        raise InputError(f"positions run from {span}; the table has rows 0 to {cos.shape[0] - 1}")
    if device.name == "cpu":
        k = device.empty((T, kv_dim)) if k_out is None else k_out
        v = device.empty((T, kv_dim)) if v_out is None else v_out
        norms = q_norm, k_norm, np.float32(0 if eps is None else eps)
        pages = kpool, vpool, tables, tables.shape[1], desc, desc.shape[0], layer, kpool.shape[1]
        rows = qkv, positions, cos, sin, *norms, *pages, Hq, Hkv, D, q_out, k, v, T
        device.call("crucible_rope_store", *rows)
        return q_out
    i32 = np.int32
    sizes = (i32(layer), i32(kpool.shape[1]), i32(Hq), i32(Hkv), i32(D))
    args = (
        *(qkv, positions, cos, sin, q_norm, k_norm, np.float32(0 if eps is None else eps)),
        *(kpool, vpool, tables, i32(tables.shape[1]), desc, i32(desc.shape[0]), *sizes),
        *(q_out, k_out, v_out),
    )
    device.kernel("rope_store").launch((T, -(-(Hq + 2 * Hkv) // 8)), 256, args)
    return q_out
