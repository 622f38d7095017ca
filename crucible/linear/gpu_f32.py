"""The f32 linear layer on cuda and simt (contract section 6): packing, and the choice among kernels."""

import numpy as np

STORAGE_CODE = {"f32": 0, "bf16": 1}  # macro STORAGE of kernels/linear.cuh
_SOURCES = {"f32": 0, "bf16": 1, "q8_0": 2, "q4_1": 3}  # macro SOURCE of kernels/linear_pack.cu
_DTYPE = {"f32": np.float32, "bf16": np.uint16}
_PANEL = 8
_MOST_BLOCKS = 1 << 16  # blocks of the kernels that stride over their grid


def pack_rows(device, rows, storage: str, n: int, k: int) -> tuple[object, str]:
    """rows uint8 [N][bytes] in a storage of weights.STORAGES -> (packed, its storage: f32 or bf16).

    packed f32 or uint16 [ceil(N/8)][K][8]: a panel of 8 outputs is one run over K. Quantized
    storages widen to f32, with the roundings of contract section 7.
    """
    kept = storage if storage in STORAGE_CODE else "f32"
    packed = device.empty((-(-n // _PANEL), k, _PANEL), _DTYPE[kept])
    kernel = device.kernel("linear_pack", SOURCE=_SOURCES[storage], STORAGE=STORAGE_CODE[kept])
    sizes = (np.int32(n), np.int32(k), np.int64(rows.shape[1]))
    kernel.launch(min(-(-packed.size // 256), _MOST_BLOCKS), 256, (rows, packed, *sizes))
    return packed, kept


def linear_reference(device, x, weight, out, add=None) -> None:
    """kernels/linear_reference.cu: a thread an output; any shape and alignment."""
    kernel = device.kernel("linear_reference", STORAGE=STORAGE_CODE[weight.storage])
    rows = x.shape[0]
    if rows == 0:
        return
    blocks = min(-(-rows * weight.n // 256), _MOST_BLOCKS)
    sizes = (np.int32(rows), np.int32(weight.n), np.int32(weight.k))
    kernel.launch(blocks, 256, (x, weight.packed, weight.bias, add, out, *sizes))


def linear_f32(device, x, weight, out, scratch=None, add=None) -> None:
    """x f32 [T][K] through an f32 layer into out f32 [T][N]; with `add`, out = add + y."""
    linear_reference(device, x, weight, out, add)
