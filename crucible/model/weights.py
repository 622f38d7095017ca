"""Weights of the transformer on a device: fused linears, packed once, read tensor by tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible.device import Device
from crucible.errors import InputError
from crucible.linear.weights import LinearWeight, pack, pack_int8, pack_stored, quantize_weight
from crucible.model.checkpoint import Checkpoint
from crucible.model.config import ATTENTION_LINEARS
from crucible.model.finite import check_finite
from crucible.ops.embedding import StoredTable

MODES = ("f32", "int8")


@dataclass(frozen=True)
class Block:
    """One transformer block; qkv holds the rows of q, k and v, gate_up those of gate and up.

    Rows of a linear layer are independent, so that fusing layers changes no bit. The norms over a
    head's D channels are None unless the model has them.
    """

    attn_norm: Any
    qkv: LinearWeight
    q_norm: Any | None
    k_norm: Any | None
    output: LinearWeight
    ffn_norm: Any
    gate_up: LinearWeight
    down: LinearWeight


@dataclass(frozen=True)
class Weights:
    """All weights of a model; `embedding` is a StoredTable, or (q int8 [V][hidden], s_w f32 [V])."""

    mode: str
    embedding: Any
    blocks: tuple[Block, ...]
    output_norm: Any
    head: LinearWeight


def load_weights(
    device: Device, checkpoint: Checkpoint, mode: str, progress: Callable[[int, int], None] | None = None
) -> Weights:
    """Read and pack every tensor; f32 mode keeps the storage of the file, int8 mode quantizes.

    Contract section 6: in int8 mode the embedding is an int8 table and a tied head shares its q
    and s_w. At most one layer's widened copy is alive. `progress(done, total)` counts blocks.
    InputError naming the first tensor that holds NaN or infinity.
    """
    if mode not in MODES:
        raise InputError(f"unknown mode {mode!r}; choose one of {', '.join(MODES)}")
    config = checkpoint.config

    def stored(name: str) -> tuple[str, np.ndarray]:
        storage, rows = checkpoint.read_stored(name)
        check_finite(checkpoint, name, storage, rows)
        return storage, rows

    def read(name: str) -> np.ndarray:
        tensor = checkpoint.read_tensor(name)
        check_finite(checkpoint, name, "f32", tensor)
        return tensor

    def packed(names: list[str], bias=None) -> LinearWeight:
        if mode == "f32":
            found = [stored(name) for name in names]
            if len({storage for storage, _ in found}) == 1:
                rows = device.upload(np.concatenate([rows for _, rows in found]))
                k = config.tensor_shapes()[names[0]][1]
                return pack_stored(device, rows, found[0][0], k, bias)
        return pack(device, device.upload(np.concatenate([read(name) for name in names])), mode, bias)

    def fused(layer: int, *kinds: str) -> LinearWeight:
        names = [f"blk.{layer}.{kind}" for kind in kinds]
        bias = None
        if kinds[0] in config.biases:
            bias = device.upload(np.concatenate([read(f"{name}.bias") for name in names]))
        return packed([f"{name}.weight" for name in names], bias)

    def vector(name: str) -> Any:
        return device.upload(np.array(read(f"{name}.weight")))  # a copy, as below

    table = "token_embd.weight"
    if mode == "int8":
        embedding = quantize_weight(device, device.upload(read(table)))
        head = pack_int8(device, *embedding) if config.tied else None
    else:
        storage, rows = stored(table)
        # A copy: rows may be a view of the file, and a later write to that must not reach the model.
        embedding = StoredTable(storage, device.upload(np.array(rows)), config.hidden)
        head = packed([table]) if config.tied else None
    if head is None:
        head = packed(["output.weight"])

    blocks = []
    for layer in range(config.layers):
        prefix = f"blk.{layer}."
        blocks.append(
            Block(
                attn_norm=vector(prefix + "attn_norm"),
                qkv=fused(layer, *ATTENTION_LINEARS),
                q_norm=vector(prefix + "attn_q_norm") if config.qk_norm else None,
                k_norm=vector(prefix + "attn_k_norm") if config.qk_norm else None,
                output=fused(layer, "attn_output"),
                ffn_norm=vector(prefix + "ffn_norm"),
                gate_up=fused(layer, "ffn_gate", "ffn_up"),
                down=fused(layer, "ffn_down"),
            )
        )
        if progress:
            progress(layer + 1, config.layers)
    return Weights(mode, embedding, tuple(blocks), vector("output_norm"), head)
