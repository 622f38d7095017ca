"""The one forward pass of every model, mode and device (contract section 7)."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crucible.attention.run import Launch
from crucible.attention.run import run as attend
from crucible.attention.variants import default
from crucible.device import Device
from crucible.errors import InputError
from crucible.kv.slices import Slice, pack
from crucible.kv.validation import validate
from crucible.linear.apply import linear
from crucible.model.cache import KVCache
from crucible.model.config import ModelConfig
from crucible.model.replay import Recorder, assign
from crucible.model.weights import Block, Weights
from crucible.numerics.checks import whole_array
from crucible.numerics.contract import PAGE_SIZE
from crucible.ops.embedding import embed
from crucible.ops.kv_store import store_kv
from crucible.ops.norm import rmsnorm
from crucible.ops.pointwise import residual, swiglu
from crucible.ops.rope import rope
from crucible.ops.rope_tables import rope_table

# trace(name, layer, array): array is a device buffer that the next step overwrites; copy what you keep.
# layer is None outside the blocks. Names in order: embed; attn_norm, q, k, v, q_rot, k_rot, attn, attn_out,
# after_attn, ffn_norm, swiglu, after_ffn per layer; last_hidden, final_norm (of the rows with logits).
Trace = Callable[[str, int | None, Any], None]


def check_ids(ids: Sequence[int] | np.ndarray, vocab: int) -> np.ndarray:
    """The token ids as int32 [T]; InputError naming the first that is no integer in [0, vocab)."""
    array = whole_array("token ids", ids)
    outside = np.flatnonzero((array < 0) | (array >= vocab))
    if outside.size:
        at = int(outside[0])
        raise InputError(f"token id {array[at]} at position {at} is outside the vocabulary of {vocab}")
    return array.astype(np.int32)


def _rows(rows: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """Packed row numbers as int32 [R]; InputError naming the first outside [0, count)."""
    array = whole_array("rows", rows)
    outside = np.flatnonzero((array < 0) | (array >= count))
    if outside.size:
        raise InputError(f"row {array[outside[0]]} is outside the {count} packed rows of the call")
    return array.astype(np.int32)


@dataclass(frozen=True)
class _Inputs:
    """Device copies of what one forward reads: ids, positions [T], descriptors [S][4], page tables.

    `capacity` is at least every row's history length, `longest` every slice's rows.
    """

    ids: Any
    positions: Any
    desc: Any
    tables: Any
    capacity: int
    longest: int


@dataclass(frozen=True)
class _Prepared:
    """A recorded decode step: write the inputs, run the calls, read the logits."""

    inputs: _Inputs
    calls: Sequence[Callable[[], Any]]
    logits: Any
    launches: frozenset[Launch]

    def replay(self, ids: np.ndarray, positions: np.ndarray, desc: np.ndarray) -> Any:
        self.inputs.ids[...], self.inputs.positions[...], self.inputs.desc[...] = ids, positions, desc
        for call in self.calls:
            call()
        return self.logits


@dataclass
class Transformer:
    """A model's weights on a device and the forward pass over a paged K/V cache.

    Scratch buffers are shared: one forward runs at a time, and threads wait for each other.
    """

    device: Device
    config: ModelConfig
    weights: Weights
    _scratch: dict[str, Any] = field(default_factory=dict, repr=False)
    _rope: tuple[Any, Any] | None = field(default=None, repr=False)
    # Stands for this object in a cache's recordings: an id may come again when the object is dead.
    _token: object = field(default_factory=object, repr=False)
    _lock: Any = field(default_factory=threading.RLock, repr=False)
    _busy: bool = field(default=False, repr=False)
    _last: threading.local = field(default_factory=threading.local, repr=False)

    @property
    def launches(self) -> frozenset[Launch]:
        """Attention launches of this thread's last forward."""
        return getattr(self._last, "launches", frozenset())

    @launches.setter
    def launches(self, value: frozenset[Launch]) -> None:
        self._last.launches = value

    def forward(
        self,
        ids: Sequence[int] | np.ndarray,
        slices: Sequence[Slice],
        cache: KVCache,
        rows: Sequence[int] | None = None,
        trace: Trace | None = None,
        variant: str | None = None,
    ) -> Any:
        """Logits f32 [R][V] of `rows` (packed row numbers; default: the last row of every slice).

        ids: the tokens of all slices, packed in order, T in all. Their K and V go to the cache's
        pages; each row attends to its own request's positions up to its own, which must have been
        stored. The result belongs to the caller. `variant` names an attention variant (see
        crucible.attention.run.run, which also says what None means). InputError for ids outside the
        vocabulary or slices that do not fit the cache, before anything reaches the device.
        """
        with self._lock:
            if self._busy:
                raise InputError("a trace must not call forward on its own transformer; take another one")
            self._busy = True
            try:
                return self._forward(ids, slices, cache, rows, trace, variant)
            finally:
                self._busy = False

    def _forward(self, ids, slices, cache: KVCache, rows, trace: Trace | None, variant: str | None) -> Any:
        packed = pack(slices)
        ids = check_ids(ids, self.config.vocab)
        if ids.shape != (packed.rows,):
            raise InputError(f"{ids.size} token ids do not fill the {packed.rows} rows of the slices")
        mine, other = self.config, cache.config
        if (mine.layers, mine.kv_dim) != (other.layers, other.kv_dim):
            raise InputError(
                f"the cache has {other.layers} layers of {other.kv_dim} channels, the model {mine.layers} of "
                f"{mine.kv_dim}; use a cache of this model"
            )
        capacity = min(self.config.context, cache.tables.array.shape[1] * PAGE_SIZE)
        validate(
            packed.desc,
            cache.tables.array,
            num_pages=cache.pages.num_pages,
            rows=packed.rows,
            capacity=capacity,
            owners=cache.owners,
        )
        cache.check_history(packed.desc)
        self._reserve_rope(capacity)
        step = (ids, packed.positions, packed.desc)
        self.launches = frozenset()
        if rows is not None or trace is not None or packed.rows != len(slices):
            ends = packed.desc[:, 0] + packed.desc[:, 1] - 1
            wanted = np.ascontiguousarray(ends if rows is None else _rows(rows, packed.rows), np.int32)
            longest = int(packed.desc[:, 1].max())
            inputs = _Inputs(*map(self.device.upload, (*step, cache.tables.array)), packed.max_end, longest)
            logits = self._run(self.device, inputs, cache, wanted, trace, variant)
            cache.note(packed.desc)
            return logits
        # Pure decode, one row a slice: record once for this number of rows, then replay.
        key = (self._token, self._rope[0].shape[0], packed.rows, variant, default())
        if key in cache.prepared:
            self.launches = cache.prepared[key].launches
            logits = cache.prepared[key].replay(*step)
            cache.note(packed.desc)
            return logits.copy()
        own = [self.device.upload(array.copy()) for array in step]
        inputs = _Inputs(*own, self.device.upload(cache.tables.array), capacity, 1)
        recorder = Recorder(self.device)
        # A recording owns its scratch: growing the shared one must not move its buffers.
        shared, self._scratch = self._scratch, {}
        try:
            logits = self._run(recorder, inputs, cache, None, None, variant)
        finally:
            self._scratch = shared
        cache.prepared[key] = _Prepared(inputs, recorder.calls, logits, self.launches)
        cache.note(packed.desc)
        return logits.copy()

    def _reserve_rope(self, capacity: int) -> None:
        if self._rope is None or self._rope[0].shape[0] < capacity:
            positions = np.arange(capacity, dtype=np.int64)
            tables = rope_table(self.config.rope_theta, self.config.head_dim, positions)
            self._rope = tuple(self.device.upload(table) for table in tables)

    def _buffer(self, name: str, rows: int, width: int) -> Any:
        """Scratch f32 [rows][width], reused between calls and grown by need."""
        have = self._scratch.get(name)
        if have is None or have.shape[0] < rows:
            have = self._scratch[name] = self.device.empty((rows, width))
        return have[:rows]

    def _run(self, device, inputs: _Inputs, cache: KVCache, wanted, trace: Trace | None, variant) -> Any:
        """All layers over packed rows; `wanted` None means logits of every row, in order."""
        config, rows = self.config, inputs.ids.shape[0]
        trace = trace or (lambda name, layer, array: None)
        x = embed(device, self.weights.embedding, inputs.ids, out=self._buffer("x", rows, config.hidden))
        trace("embed", None, x)
        for layer, block in enumerate(self.weights.blocks):
            x = self._attend(device, inputs, cache, layer, block, x, trace, variant)
            x = self._feed_forward(device, layer, block, x, trace)
        trace("last_hidden", None, x)
        if wanted is None:
            wanted_rows = rows
        else:
            wanted_rows = wanted.shape[0]
            if wanted_rows == 0:
                return device.empty((0, config.vocab))
            # A gather of rows is an embedding lookup with x as the table.
            x = embed(device, x, device.upload(wanted), out=self._buffer("last", wanted_rows, config.hidden))
        h = rmsnorm(device, x, self.weights.output_norm, np.float32(config.eps), out=x)
        trace("final_norm", None, h)
        return linear(device, h, self.weights.head, out=device.empty((wanted_rows, config.vocab)))

    def _attend(self, device, inputs, cache, layer: int, block: Block, x, trace: Trace, variant) -> Any:
        config, rows, eps = self.config, x.shape[0], np.float32(self.config.eps)
        h = rmsnorm(device, x, block.attn_norm, eps, out=self._buffer("h", rows, config.hidden))
        trace("attn_norm", layer, h)
        width = config.q_dim + 2 * config.kv_dim
        qkv = linear(device, h, block.qkv, out=self._buffer("qkv", rows, width))
        q = self._columns(device, "q", qkv, 0, config.q_dim)
        k = self._columns(device, "k", qkv, config.q_dim, config.kv_dim)
        v = self._columns(device, "v", qkv, config.q_dim + config.kv_dim, config.kv_dim)
        for name, array in (("q", q), ("k", k), ("v", v)):
            trace(name, layer, array)
        if block.q_norm is not None:  # over each head's D channels, before the rotation
            for array, weight in ((q, block.q_norm), (k, block.k_norm)):
                heads = array.reshape(-1, config.head_dim)
                rmsnorm(device, heads, weight, eps, out=heads)
        cos, sin = self._rope
        q = rope(device, q, inputs.positions, cos, sin, config.head_dim, out=q)
        k = rope(device, k, inputs.positions, cos, sin, config.head_dim, out=k)
        trace("q_rot", layer, q)
        trace("k_rot", layer, k)
        store_kv(device, k, v, cache.kpool, cache.vpool, inputs.tables, inputs.desc, layer)
        result = attend(
            device,
            q,
            cache.kpool,
            cache.vpool,
            inputs.tables,
            inputs.desc,
            layer,
            config.kv_heads,
            config.head_dim,
            variant=variant,
            out=self._buffer("attended", rows, config.q_dim),
            capacity=inputs.capacity,
            longest=inputs.longest,
            k=k,
            v=v,
        )
        self.launches |= {result.launch}
        attended = result.out
        trace("attn", layer, attended)
        projected = linear(device, attended, block.output, out=self._buffer("projected", rows, config.hidden))
        trace("attn_out", layer, projected)
        x = residual(device, x, projected, out=x)
        trace("after_attn", layer, x)
        return x

    def _columns(self, device, name: str, fused, start: int, width: int) -> Any:
        """Columns of a fused buffer as a contiguous array: in place for one row, else copied."""
        view = fused[:, start : start + width]
        if fused.shape[0] == 1:
            return view
        return assign(device, self._buffer(name, fused.shape[0], width), view)

    def _feed_forward(self, device, layer: int, block: Block, x, trace: Trace) -> Any:
        config, rows = self.config, x.shape[0]
        h = self._buffer("h", rows, config.hidden)
        h = rmsnorm(device, x, block.ffn_norm, np.float32(config.eps), out=h)
        trace("ffn_norm", layer, h)
        gate_up = linear(device, h, block.gate_up, out=self._buffer("gate_up", rows, 2 * config.ffn))
        gate, up = gate_up[:, : config.ffn], gate_up[:, config.ffn :]
        activated = swiglu(device, gate, up, out=self._buffer("activated", rows, config.ffn))
        trace("swiglu", layer, activated)
        projected = linear(device, activated, block.down, out=self._buffer("projected", rows, config.hidden))
        x = residual(device, x, projected, out=x)
        trace("after_ffn", layer, x)
        return x
