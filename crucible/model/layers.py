"""The layers of a model in order: one sequence for every model, mode and device (contract section 7)."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from crucible.attention.run import Launch
from crucible.device import Device
from crucible.device.checks import vouched
from crucible.linear.apply import linear, linear_quantized, rmsnorm_linear, swiglu_linear
from crucible.linear.gpu_i8 import rmsnorm_quantize, swiglu_quantize
from crucible.linear.gpu_i8_kernels import choose, is_few
from crucible.model.cache import KVCache
from crucible.model.config import ModelConfig
from crucible.model.replay import Recorder, assign
from crucible.model.weights import Block, Weights
from crucible.ops.embedding import embed, gather_rows
from crucible.ops.kv_store import store_kv
from crucible.ops.norm import rmsnorm
from crucible.ops.pointwise import residual, swiglu
from crucible.ops.rope import rope
from crucible.ops.rope_store import rope_store

# trace(name, layer, array): array is a device buffer that the next step overwrites; copy what you keep.
# layer is None outside the blocks. Names in order: embed; attn_norm, q, k, v, q_rot, k_rot, attn, attn_out,
# after_attn, ffn_norm, swiglu, after_ffn per layer; last_hidden, final_norm (of the rows with logits).
Trace = Callable[[str, int | None, Any], None]

# mark(stage): called before the launches of a stage; a name with + is a fused step that does both.
Mark = Callable[[str], None]


class Lender(Protocol):
    """What lends scratch arrays by name (crucible.device.scratch)."""

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Any: ...


class Attention(Protocol):
    """How a pass runs attention: q f32 [T][Hq*D] into out; k, v are the packed rows' own, if wanted."""

    wants_kv: bool

    def run(self, device: Any, q: Any, k: Any, v: Any, layer: int, out: Any) -> Launch: ...


@dataclass(frozen=True)
class Inputs:
    """What one pass reads, on the device.

    ids, positions int32 [T]; desc int32 [S][4]; tables int32 [requests][stride]; rows int32 [R]: the packed
    rows with logits, None for all of them in order; `wanted` is R.
    """

    ids: Any
    positions: Any
    desc: Any
    tables: Any
    rows: Any
    wanted: int
    attention: Attention


def _unmarked(stage: str) -> None:
    """No profile."""


@dataclass(eq=False)
class Pass:
    """One forward over packed rows.

    `fused` joins steps in one launch: the quantization of an int8 layer's rows with what makes them, RoPE
    with the K/V store, the residual with the layer before it. It moves no bit. A trace sees the steps apart,
    so it takes them apart.
    """

    device: Device | Recorder
    config: ModelConfig
    weights: Weights
    rope: tuple[Any, Any]
    scratch: Lender
    inputs: Inputs
    cache: KVCache
    trace: Trace | None = None
    mark: Mark = _unmarked
    fused: bool = True
    launches: set[Launch] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.fused = self.fused and self.trace is None
        self._rows = self.inputs.ids.shape[0]

    def run(self, logits: Any) -> Any:
        """All layers; the logits go to `logits` f32 [R][V], which is returned."""
        inputs, hidden = self.inputs, self.config.hidden
        self.mark("embed")
        x = embed(self.device, self.weights.embedding, inputs.ids, out=self._take("x", hidden))
        self._seen("embed", None, x)
        for layer, block in enumerate(self.weights.blocks):
            # Every layer has the shapes and the buffers of the first. A trace may call anything, so it is
            # left what checks there are.
            with contextlib.nullcontext() if layer == 0 or self.trace is not None else vouched():
                self._attend(layer, block, x)
                self._feed_forward(layer, block, x)
        self._seen("last_hidden", None, x)
        if inputs.wanted:
            if inputs.rows is not None:
                self.mark("final_gather")
                out = self.scratch.take("last", (inputs.wanted, hidden))
                x = gather_rows(self.device, x, inputs.rows, out=out)
            names = ("final_norm", "final_norm", "final_head")
            self._normed(names, None, x, self.weights.output_norm, self.weights.head, logits)
        return logits

    def _take(self, name: str, width: int) -> Any:
        return self.scratch.take(name, (self._rows, width))

    def _seen(self, name: str, layer: int | None, array: Any) -> None:
        if self.trace is not None:
            self.trace(name, layer, array)

    def _normed(self, names: tuple[str, str, str], layer: int | None, x, norm, weight, out) -> Any:
        """The layer `weight` of rmsnorm(x); names of the norm in a trace, of its stage, of the layer's."""
        seen, norm_stage, linear_stage = names
        eps = np.float32(self.config.eps)
        if self.fused and self._makes_rows(weight, x.shape[0]):
            self.mark(f"{norm_stage}+{linear_stage}")
            return rmsnorm_linear(self.device, x, norm, eps, weight, out=out, scratch=self.scratch)
        if self.fused and weight.kind == "int8":
            self.mark(f"{norm_stage}+quantize")
            rows, top = rmsnorm_quantize(self.device, x, norm, eps, self.scratch)
            self.mark(linear_stage)
            return linear_quantized(self.device, rows, top, weight, out=out, scratch=self.scratch)
        self.mark(norm_stage)
        h = rmsnorm(self.device, x, norm, eps, out=self.scratch.take("h", tuple(x.shape)))
        self._seen(seen, layer, h)
        self.mark(linear_stage)
        return linear(self.device, h, weight, out=out, scratch=self.scratch)

    def _makes_rows(self, weight, rows: int) -> bool:
        """Whether the layer makes its quantized rows itself, from what comes before them."""
        if weight.kind != "int8":
            return False
        if self.device.name == "cpu":
            return True
        return is_few(choose(self.device, rows, weight.n, weight.k, floats=True))

    def _added(self, stage: str, seen: str | None, layer: int, y, weight, x) -> None:
        """x = x + the layer `weight` of y."""
        if self.fused:
            self.mark(f"{stage}+residual")
            linear(self.device, y, weight, out=x, scratch=self.scratch, add=x)
            return
        self.mark(stage)
        out = self._take("projected", self.config.hidden)
        projected = linear(self.device, y, weight, out=out, scratch=self.scratch)
        if seen:
            self._seen(seen, layer, projected)
        self.mark("residual")
        residual(self.device, x, projected, out=x)

    def _attend(self, layer: int, block: Block, x) -> None:
        config = self.config
        out = self._take("qkv", config.q_dim + 2 * config.kv_dim)
        qkv = self._normed(("attn_norm", "norm", "qkv"), layer, x, block.attn_norm, block.qkv, out)
        rotate = self._rotate_and_store if self.fused else self._rotate_then_store
        q, k, v = rotate(layer, block, qkv)
        self.mark("attention")
        attended = self._take("attended", config.q_dim)
        self.launches.add(self.inputs.attention.run(self.device, q, k, v, layer, attended))
        self._seen("attn", layer, attended)
        self._added("o", "attn_out", layer, attended, block.output, x)
        self._seen("after_attn", layer, x)

    def _rotate_and_store(self, layer: int, block: Block, qkv) -> tuple[Any, Any, Any]:
        config, inputs = self.config, self.inputs
        self.mark("rope+kv_store")
        q, k, v = self._take("q", config.q_dim), None, None
        if inputs.attention.wants_kv:
            k, v = self._take("k", config.kv_dim), self._take("v", config.kv_dim)
        pools = self.cache.kpool, self.cache.vpool
        paged = (*pools, inputs.tables, inputs.desc, layer, config.heads, config.kv_heads, config.head_dim)
        norms = block.q_norm, block.k_norm, None if block.q_norm is None else np.float32(config.eps)
        rope_store(self.device, qkv, inputs.positions, *self.rope, *paged, q, k, v, *norms)
        return q, k, v

    def _rotate_then_store(self, layer: int, block: Block, qkv) -> tuple[Any, Any, Any]:
        config, inputs = self.config, self.inputs
        self.mark("rope")
        q = self._columns("q", qkv, 0, config.q_dim)
        k = self._columns("k", qkv, config.q_dim, config.kv_dim)
        v = self._columns("v", qkv, config.q_dim + config.kv_dim, config.kv_dim)
        for name, array in (("q", q), ("k", k), ("v", v)):
            self._seen(name, layer, array)
        if block.q_norm is not None:  # over each head's D channels, before the rotation
            for array, weight in ((q, block.q_norm), (k, block.k_norm)):
                heads = array.reshape(-1, config.head_dim)
                rmsnorm(self.device, heads, weight, np.float32(config.eps), out=heads)
        for name, array in (("q_rot", q), ("k_rot", k)):
            rope(self.device, array, inputs.positions, *self.rope, config.head_dim, out=array)
            self._seen(name, layer, array)
        self.mark("kv_store")
        pools = self.cache.kpool, self.cache.vpool
        store_kv(self.device, k, v, *pools, inputs.tables, inputs.desc, layer)
        return q, k, v

    def _columns(self, name: str, both, start: int, width: int) -> Any:
        """Columns of a wider buffer as a contiguous array: in place for one row, else copied."""
        view = both[:, start : start + width]
        if both.shape[0] == 1:
            return view
        return assign(self.device, self._take(name, width), view)

    def _feed_forward(self, layer: int, block: Block, x) -> None:
        ffn = self.config.ffn
        out = self._take("gate_up", 2 * ffn)
        gate_up = self._normed(("ffn_norm", "norm", "gate_up"), layer, x, block.ffn_norm, block.gate_up, out)
        if self.fused and self._makes_rows(block.down, self._rows):
            self.mark("swiglu+down+residual")
            swiglu_linear(self.device, gate_up, block.down, out=x, scratch=self.scratch, add=x)
            return
        if self.fused and block.down.kind == "int8":
            self.mark("swiglu+quantize")
            rows, top = swiglu_quantize(self.device, gate_up, ffn, self.scratch)
            self.mark("down+residual")
            linear_quantized(self.device, rows, top, block.down, out=x, scratch=self.scratch, add=x)
            return
        self.mark("swiglu")
        out = self._take("activated", ffn)
        activated = swiglu(self.device, gate_up[:, :ffn], gate_up[:, ffn:], out=out)
        self._seen("swiglu", layer, activated)
        self._added("down", None, layer, activated, block.down, x)
        self._seen("after_ffn", layer, x)
