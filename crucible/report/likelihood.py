"""The real model for the notebooks: hidden states, surprise of each token, a wrong weight order."""

from collections.abc import Sequence

import numpy as np

from crucible.kv.slices import Slice
from crucible.model.cache import pages_for
from crucible.model.checkpoint import Checkpoint
from crucible.model.model import Model
from crucible.sampling.sample import logprobs


def every_step(model: Model, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(hidden states after the final norm, f32 [T][hidden]; logits f32 [T][V]) of T ids, teacher forced."""
    kept = {}

    def trace(name, layer, array):
        if name == "final_norm":
            kept[name] = model.device.download(array).copy()

    cache, rows = model.new_cache(pages_for(len(ids))), range(len(ids))
    cache.reserve(0, len(ids))
    logits = model.transformer.forward(ids, [Slice(0, 0, len(ids))], cache, rows=rows, trace=trace)
    return kept["final_norm"], model.device.download(logits).copy()


def surprises(model: Model, logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """Negative log-probability (nats, f64 [T-1]) of each id but the first under the logits before it."""
    scored = zip(logits[:-1], ids[1:], strict=True)
    return np.array([-logprobs(model.device, model.device.upload(row))[target] for row, target in scored])


def interleaved(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with Q and K rows in interleaved-pair order, as a GGUF file stores llama models.

    Read that way by half-split RoPE, every tensor still has its shape and the model still speaks.
    """
    heads = {"attn_q": checkpoint.config.heads, "attn_k": checkpoint.config.kv_heads}

    def read_tensor(name: str) -> np.ndarray:
        rows = checkpoint.read_tensor(name)
        kind = name.split(".")[2] if name.startswith("blk.") else name
        if kind not in heads:
            return rows
        halves = rows.reshape(heads[kind], 2, -1, rows.shape[-1])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)

    return checkpoint.with_tensors(read_tensor)
