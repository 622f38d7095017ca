"""A checkpoint with a weight that is not finite is refused by the name of its tensor, in any storage."""

import numpy as np
import pytest

from crucible import device
from crucible.errors import InputError
from crucible.model.checkpoint import Checkpoint
from crucible.model.dequantize import ENCODINGS
from crucible.model.finite import all_finite
from crucible.model.model import Model
from crucible.model.safetensors import hf_name, open_safetensors

from .conftest import tiny_config, write_safetensors

VALUES = [np.nan, -np.nan, np.inf, -np.inf]
NAMES = ["token_embd", "blk.0.attn_norm", "blk.1.attn_k", "blk.1.ffn_down", "output_norm"]


def refusal(checkpoint: Checkpoint, mode: str) -> str:
    with pytest.raises(InputError) as refused:
        Model.from_checkpoint(checkpoint, device.get("cpu"), mode)
    return str(refused.value)


@pytest.mark.parametrize("mode", ["f32", "int8"])
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_weight_that_is_not_finite_is_refused_by_its_tensors_name(
    tmp_path, write_checkpoint, dtype, kind, mode
):
    config, name = tiny_config(), hf_name(f"{kind}.weight")
    for value in VALUES[:: 3 if dtype == "F16" else 1]:
        weights = write_checkpoint(tmp_path / "model", config, dtype)
        bad = weights[f"{kind}.weight"]
        bad[-1] = value
        named = {hf_name(n): w for n, w in weights.items()}
        write_safetensors(tmp_path / "model" / "model.safetensors", named, dtype)
        row = 0 if bad.ndim == 1 else len(bad) - 1
        sentence = f"model: tensor {name} holds NaN or infinity in row {row}; every weight must be finite"
        assert refusal(open_safetensors(tmp_path / "model"), mode) == sentence


@pytest.mark.parametrize("kind", ENCODINGS)
def test_every_bit_pattern_of_a_16_bit_number_is_told_finite_or_not_as_widened(kind):
    encoding = ENCODINGS[kind]
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for place in range(0, {"F32": 4, "Q4_1": 4}.get(encoding.name, 2), 2):
        raw = np.zeros((1 << 16, encoding.bytes), np.uint8)
        raw[:, place : place + 2] = patterns.view(np.uint8).reshape(-1, 2)
        raw[:, 4:] = 0x11
        with np.errstate(invalid="ignore"):
            widened = encoding.widen(raw.reshape(-1), (1 << 16, encoding.elements))
        expected = np.isfinite(widened).all(axis=1)
        storage = encoding.name.lower()
        rows = widened.view(np.uint8) if storage == "f16" else raw
        storage = "f32" if storage == "f16" else storage
        found = [all_finite(storage, row) for row in rows[::7]]
        assert found == expected[::7].tolist()
        assert all_finite(storage, rows[expected]) and all_finite(storage, rows[:0])
        assert expected.all() or not all_finite(storage, rows)


def test_weights_whose_sum_overflows_are_finite():
    rows = np.full((3, 64), np.finfo(np.float32).max, np.float32)
    assert all_finite("f32", rows.view(np.uint8))
    rows[1, 5] = -np.inf
    assert not all_finite("f32", rows.view(np.uint8))
