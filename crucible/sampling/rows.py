"""Sampling of many rows on simt and cuda, each by parameters of its own, without a look from the host."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible.device.checks import expect, expect_out
from crucible.errors import InputError
from crucible.sampling.params import SAMPLERS, SamplingParams
from crucible.sampling.philox import check_draw

_CHUNK = 2048  # ids of a block of kernels/sample_scan.cu
_PARTIAL = 4  # int32 words of what a chunk amounts to
_BUCKETS = 16384  # of kernels/sample_rows.cu, in dynamic shared memory
_STATIC = 48 * 1024  # bytes that its static shared memory may take
_INT32_MAX = 2**31 - 1

# Fields of a batch, and of what sampling gives, with their types.
_FIELDS = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float64,
    "seed": np.uint64,
    "draw": np.uint32,
    "sampler": np.int32,
}
_RESULTS = {"token": np.int32, "kept": np.int32, "u": np.float64, "status": np.int32}


@dataclass(frozen=True)
class SampleBatch:
    """Parameters of R rows as device arrays [R]: data that a captured graph reads anew at each replay.

    temperature f32 (0: greedy), top_k i32 (0: the vocabulary), top_p f64, seed u64, draw u32, sampler i32
    (place in params.SAMPLERS).
    """

    temperature: Any
    top_k: Any
    top_p: Any
    seed: Any
    draw: Any
    sampler: Any

    @property
    def rows(self) -> int:
        return self.temperature.shape[0]


@dataclass(frozen=True)
class Sampled:
    """What a launch chose, device arrays [R]: token, ranks kept, and status, all i32, and u f64.

    A row with status other than 0 (see sample.refuse) has token -1; u is -1 where no uniform draw was used.
    """

    token: Any
    kept: Any
    u: Any
    status: Any


def check_params(params: list[SamplingParams]) -> None:
    """InputError for the first that is no SamplingParams."""
    for p in params:
        if not isinstance(p, SamplingParams):
            raise InputError(f"params holds {type(p).__name__}; each must be SamplingParams")


def host_batch(params: list[SamplingParams], draws: list[int]) -> dict[str, np.ndarray]:
    """The fields of a SampleBatch as NumPy arrays, for an upload or into the arrays of a captured graph."""
    if len(params) != len(draws):
        raise InputError(f"{len(params)} rows of parameters have {len(draws)} draw numbers; give one each")
    check_params(params)
    values = {
        "temperature": [p.temperature for p in params],
        "top_k": [min(p.top_k, _INT32_MAX) for p in params],
        "top_p": [p.top_p for p in params],
        "seed": [p.seed for p in params],
        "draw": [check_draw(d) for d in draws],
        "sampler": [SAMPLERS.index(p.sampler) for p in params],
    }
    return {name: np.array(values[name], dtype) for name, dtype in _FIELDS.items()}


def make_batch(device, params: list[SamplingParams], draws: list[int]) -> SampleBatch:
    """Upload the parameters and draw numbers of R rows."""
    return SampleBatch(**{name: device.upload(a) for name, a in host_batch(params, draws).items()})


def empty_results(device, rows: int) -> Sampled:
    """Arrays for the results of R rows."""
    return Sampled(**{name: device.empty(rows, dtype) for name, dtype in _RESULTS.items()})


def sample_rows(device, logits, batch: SampleBatch, scratch=None, out: Sampled | None = None) -> Sampled:
    """One token for each row of logits f32 [R][V], the one that `sample` chooses on the cpu (section 8).

    Two launches of a fixed grid; nothing is read back, so logits that the contract refuses show in
    `status`. scratch: 20 bytes an id and row; `out`: from empty_results, reused between steps.
    """
    return launch(device, logits, batch, scratch, out)


def launch(device, logits, batch: SampleBatch, scratch=None, out=None, given_u=None, ids=None) -> Sampled:
    """sample_rows with a given u f64 [R] (used where >= 0), or ids i32 [R][V] for the first top_k ranks."""
    _check_logits(logits)
    rows, vocab = logits.shape
    for name, dtype in _FIELDS.items():
        expect(name, getattr(batch, name), dtype, (rows,))
    out = empty_results(device, rows) if out is None else out
    for name, dtype in _RESULTS.items():
        expect_out(f"out.{name}", getattr(out, name), dtype, (rows,), (logits,))
    if rows == 0:
        return out
    take = _taker(device, scratch)
    z = take("sample_z", (rows, _stride(vocab)), np.float32)
    slots, order = (take(f"sample_{name}", z.shape, np.uint64) for name in ("slots", "order"))
    partials, maxima = scan(device, logits, batch.temperature, z, take)
    room = max(0, (device.shared_limit - _STATIC - 4 * _BUCKETS) // 8192 * 1024)
    args = (
        *(partials, maxima, np.int32(partials.shape[1]), z, np.int32(z.shape[1]), slots, order),
        *(getattr(batch, name) for name in _FIELDS),
        *(given_u, np.int32(vocab), np.int32(room)),
        *(getattr(out, name) for name in _RESULTS),
        ids,
    )
    device.kernel("sample_rows").launch(rows, 1024, args, shared=4 * _BUCKETS + 8 * room)
    return out


def scan(device, logits, temperature, z, take):
    """(partials int32 [R][chunks][4], maxima uint32 [R][8 chunks]) of logits f32 [R][V].

    z f32 [R][stride] gets logit/temperature; it may be None where every temperature is 0.
    """
    rows, vocab = logits.shape
    chunks = -(-vocab // _CHUNK)
    partials = take("sample_partials", (rows, chunks, _PARTIAL), np.int32)
    maxima = take("sample_maxima", (rows, 8 * chunks), np.uint32)
    stride = np.int32(0 if z is None else z.shape[1])
    args = (logits, temperature, z, stride, partials, maxima, np.int32(vocab))
    device.kernel("sample_scan").launch((chunks, rows), 256, args)
    return partials, maxima


def logprob_rows(device, logits, out=None, status=None, scratch=None):
    """(log-probabilities f64 [R][V] at temperature 1, status i32 [R]) of logits f32 [R][V].

    A refused row holds NaN. Two launches, nothing is read back.
    """
    _check_logits(logits)
    rows, vocab = logits.shape
    out = device.empty((rows, vocab), np.float64) if out is None else out
    status = device.empty(rows, np.int32) if status is None else status
    expect_out("out", out, np.float64, (rows, vocab), (logits,))
    expect_out("status", status, np.int32, (rows,), (logits, out))
    if rows:
        take = _taker(device, scratch)
        partials, _ = scan(device, logits, device.zeros(rows), None, take)
        e = take("sample_z", (rows, _stride(vocab)), np.float32)
        sizes = (np.int32(e.shape[1]), np.int32(vocab))
        args = (logits, partials, np.int32(partials.shape[1]), e, *sizes, out, status)
        device.kernel("logprobs").launch(rows, 1024, args)
    return out, status


def _stride(vocab: int) -> int:
    return -(-vocab // 4) * 4  # rows that vector loads can start


def _check_logits(logits) -> None:
    expect("logits", logits, np.float32, (None, None))
    if logits.shape[1] < 1:
        raise InputError("logits are empty; the vocabulary has at least one token")
    if logits.shape[0] > 65535:
        raise InputError(f"logits have {logits.shape[0]} rows; one launch samples at most 65535")


def _taker(device, scratch):
    return (lambda name, shape, dtype: device.empty(shape, dtype)) if scratch is None else scratch.take
