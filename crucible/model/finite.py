"""Weights must be finite, as activations are (contract section 1): the first that is not is named."""

import numpy as np

from crucible.errors import InputError
from crucible.model.checkpoint import Checkpoint

# Of a block of each storage: its bytes, the type of its leading 16-bit numbers and how many there are. The
# other bytes are small integers.
_BLOCKS = {"bf16": (2, "bf16", 1), "q8_0": (34, "f16", 1), "q4_1": (20, "f16", 2)}
_INFINITY = {"bf16": 0x7F80, "f16": 0x7C00}  # bits; NaNs lie above


def check_finite(checkpoint: Checkpoint, name: str, storage: str, rows: np.ndarray) -> None:
    """InputError naming the tensor and the row where `rows`, as `read_stored` gives them, are not finite."""
    if all_finite(storage, rows):
        return
    row = next(i for i, row in enumerate(np.atleast_2d(rows)) if not all_finite(storage, row))
    file = checkpoint.name if checkpoint.source is None else checkpoint.source.name
    raise InputError(
        f"{file}: tensor {checkpoint.spelled(name)} holds NaN or infinity in row {row}; every weight must be "
        "finite"
    )


def all_finite(storage: str, rows: np.ndarray) -> bool:
    """Whether every weight of rows uint8 [...][bytes] in a storage of crucible.linear.weights is finite."""
    if storage == "f32":
        values = rows.view(np.float32)
        with np.errstate(all="ignore"):  # a sum takes no memory, and is finite only where every term is
            return bool(np.isfinite(values.sum()) or np.isfinite(values).all())
    size, kind, count = _BLOCKS[storage]
    halves = rows.reshape(-1, size)[:, : 2 * count]
    bits = np.ascontiguousarray(halves.view(f"u{2 * count}")).view(np.uint16)
    # Signed, the positive infinity and NaNs are the largest; unsigned, the negative ones.
    infinity = _INFINITY[kind]
    return not bits.size or bool(bits.view(np.int16).max() < infinity and bits.max() < infinity + 0x8000)
