"""Every small kernel of a forward pass and of sampling once, held to the cpu's bits."""

from collections.abc import Iterator

import numpy as np

from crucible import device as devices
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits
from crucible.ops import pointwise, sums
from crucible.ops.advance import decode_advance
from crucible.ops.embedding import StoredTable, embed, gather_rows
from crucible.ops.norm import rmsnorm
from crucible.ops.rope_store import rope_store
from crucible.ops.rope_tables import rope_table
from crucible.sampling import rows
from crucible.sampling.params import SAMPLERS, SamplingParams
from crucible.sampling.philox import philox
from crucible.sampling.sample import ln, logprobs, rank, sample

F = np.float32
_TEMPERATURES = ((0.0, 0, 1.0), (0.9, 40, 1.0), (0.9, 0, 0.9), (1.5, 1200, 0.5), (0.1, 0, 1.0))


def _made(stream: int, *shape: int) -> np.ndarray:
    return inputs.normalish(61, stream, shape, 2)


def _both(device, name: str, operation, *arrays, **options) -> str:
    expected = operation(devices.get("cpu"), *arrays, **options)
    actual = operation(device, *map(device.upload, arrays), **options)
    assert_same_bits(expected, device.download(actual), name)
    return name


def block_launches(device) -> Iterator[str]:
    """Embedding, norm, SwiGLU, residual, the sums, and RoPE with K/V store; yields what ran."""
    cpu, ids = devices.get("cpu"), np.array([4, 0, 6, 4, 2], np.int32)
    for storage, size in (("f32", 4 * 96), ("bf16", 2 * 96), ("q8_0", 102), ("q4_1", 60)):
        table = (inputs.bits(62, 0, 7 * size) & np.uint32(0x3B)).astype(np.uint8).reshape(7, size)
        expected = embed(cpu, StoredTable(storage, table, 96), ids)
        mine = embed(device, StoredTable(storage, device.upload(table), 96), device.upload(ids))
        assert_same_bits(expected, device.download(mine), storage, allow_zero=True)
        yield f"embed {storage}"
    q, scale = _made(0, 7, 100).astype(np.int8), _made(1, 7)
    mine = embed(device, (device.upload(q), device.upload(scale)), device.upload(ids))
    assert_same_bits(embed(cpu, (q, scale), ids), device.download(mine), "embed int8")
    yield "embed int8"
    yield _both(device, "gather_rows", gather_rows, _made(2, 7, 1030), ids)
    for n in (96, 2100):
        yield _both(device, f"rmsnorm {n}", rmsnorm, _made(3, 3, n), _made(4, n), eps=F(1e-5))
    for shape in ((3, 101), (70, 2048)):
        yield _both(device, f"swiglu {shape}", pointwise.swiglu, _made(5, *shape), _made(6, *shape))
    yield _both(device, "residual", pointwise.residual, _made(7, 3, 1001), _made(8, 3, 1001))
    yield _both(device, "exp", pointwise.exp, -np.abs(_made(9, 999)))
    yield _both(device, "sigmoid", pointwise.sigmoid, _made(9, 999))
    for operation in (sums.sum256, sums.sumsq256):
        yield _both(device, operation.__name__, operation, _made(10, 999), np.array([0, 40, 999], np.int32))
    yield _both(device, "tree32", sums.tree32, _made(11, 13, 32))
    for norms in (False, True):
        yield _rope_store(device, norms)
    yield _advance(device)


def _rope_store(device, norms: bool) -> str:
    Hq, Hkv, D = 6, 2, 64
    desc = np.array([(0, 18, 14, 1), (18, 1, 5, 0)], np.int32)
    positions = np.array([*range(14, 32), 5, 0], np.int32)  # the last row is padding
    tables = np.array([[3, 1], [0, 5]], np.int32)
    made = [_made(12, 20, (Hq + 2 * Hkv) * D), positions, *rope_table(10000.0, D, np.arange(40))]
    made += [_made(13 + i, 6, 2, 16, Hkv * D) for i in range(2)] + [tables, desc]
    found = []
    for d in (devices.get("cpu"), device):
        arrays = [d.upload(a.copy()) for a in made]
        own = [d.zeros((20, Hq * D)), d.zeros((20, Hkv * D)), d.zeros((20, Hkv * D))]
        weights = [d.upload(_made(15 + i, D)) for i in range(2)] if norms else [None, None]
        rope_store(d, *arrays, 1, Hq, Hkv, D, *own, *weights, F(1e-6))
        found.append([d.download(a) for a in (*own, *arrays[4:6])])
    for want, have in zip(*found, strict=True):
        assert_same_bits(want, have, "rope_store")
    return "rope_store with head norms" if norms else "rope_store"


def _advance(device) -> str:
    made = [inputs.bits(64, i, n).astype(np.int32) for i, n in enumerate((5, 5, 5, 20, 5, 60, 1200))]
    found = []
    for d in (devices.get("cpu"), device):
        token, ids, positions, desc, draw, *items = (d.upload(a.copy()) for a in made)
        items = [array.reshape(-1, 4) for array in items]
        decode_advance(d, token, ids, positions, desc.reshape(-1, 4), draw.view(np.uint32), items)
        found.append([d.download(a).view(np.float32) for a in (ids, positions, desc, draw, *items)])
    for want, have in zip(*found, strict=True):
        assert_same_bits(want, have, "decode_advance", allow_nan=True, allow_zero=True)
    return "decode_advance"


def sampling_launches(device) -> Iterator[str]:
    """Both samplers over mixed rows, ranks, log-probabilities, Philox and ln; yields what ran."""
    cpu = devices.get("cpu")
    for name, logits in (("spread", _made(20, 2500)), ("tied", np.round(_made(20, 2500)))):
        params = [SamplingParams(*t, 5, s) for s in SAMPLERS for t in _TEMPERATURES]
        batch = rows.make_batch(device, params, list(range(len(params))))
        made = rows.sample_rows(device, device.upload(np.stack([logits] * len(params))), batch)
        expected = [sample(cpu, logits, p, n).token for n, p in enumerate(params)]
        if device.download(made.token).tolist() != expected:
            raise AssertionError(f"sample_rows chose other tokens than the cpu from {name} logits")
        yield f"sample_rows {name}"
        assert_same_bits(rank(cpu, logits, 0.7, 900), rank(device, device.upload(logits), 0.7, 900), "rank")
        yield f"rank {name}"
        assert_same_bits(logprobs(cpu, logits), logprobs(device, device.upload(logits)), "logprobs")
        yield f"logprobs {name}"
    words = inputs.bits(63, 0, 6 * 40).reshape(40, 6)
    yield _both(
        device, "philox", philox, np.ascontiguousarray(words[:, :4]), np.ascontiguousarray(words[:, 4:])
    )
    yield _both(device, "ln", ln, inputs.uniform(63, 1, 300, 0.1, 9).astype(np.float64))
