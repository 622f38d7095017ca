"""Choose a token from logits, rank them, and report log-probabilities (contract section 8)."""

from dataclasses import dataclass

import numpy as np

from crucible.device.checks import expect
from crucible.errors import InputError
from crucible.numerics.checks import real, whole
from crucible.sampling import rows
from crucible.sampling.params import SAMPLERS, SamplingParams
from crucible.sampling.philox import check_draw


@dataclass(frozen=True)
class Sample:
    """A chosen token, how many ranks top_k and top_p left, and the uniform draw (None if none was used)."""

    token: int
    kept: int
    u: float | None


class TooCold(InputError):
    """A temperature so small that a logit divided by it is beyond float32."""


_COLD = 3
_REFUSALS = {
    1: "the logits hold a NaN or +inf; every logit must be finite or -inf",
    2: "no logit is finite; at least one must be",
    _COLD: "a logit overflows when divided by the temperature {temperature}; raise the temperature",
}


def refuse(status: int, temperature=1) -> None:
    """InputError with the reason of a status other than 0: TooCold where the temperature is to blame."""
    if status:
        raise (TooCold if status == _COLD else InputError)(_REFUSALS[status].format(temperature=temperature))


def _size(logits) -> int:
    expect("logits", logits, np.float32, (None,))
    if logits.shape[0] < 1:
        raise InputError("logits are empty; the vocabulary has at least one token")
    return logits.shape[0]


def sample(device, logits, params: SamplingParams, draw: int = 0, u: float | None = None) -> Sample:
    """One token from f32 logits [V] with draw number `draw` of the request's seed.

    `u` in [0, 1) replaces the draw of the inverse-cdf sampler (for checks at exact boundaries).
    InputError for logits outside the contract and for a temperature that overflows one.
    """
    vocab = _size(logits)
    if not isinstance(params, SamplingParams):
        raise InputError(f"params is {type(params).__name__}; it must be SamplingParams")
    draw = check_draw(draw)
    if u is not None and not 0 <= real("u", u) < 1:
        raise InputError(f"u {u} must be at least 0 and less than 1")
    if device.name != "cpu":
        return _sample_row(device, logits, params, draw, u)
    token, kept, used = np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float64)
    if params.greedy:
        return Sample(greedy(device, logits), 1, None)
    status = device.call(
        "crucible_sample",
        *(logits, vocab, params.temperature, min(params.top_k, vocab), params.top_p, np.uint64(params.seed)),
        *(draw, SAMPLERS.index(params.sampler), -1.0 if u is None else float(u)),
        *(token, kept, used),
    )
    refuse(status, params.temperature)
    return Sample(int(token[0]), int(kept[0]), float(used[0]) if params.sampler == "inverse-cdf" else None)


def _sample_row(device, logits, params: SamplingParams, draw: int, u: float | None, ids=None) -> Sample:
    given = None if u is None else device.upload(np.array([u], np.float64))
    batch = rows.make_batch(device, [params], [draw])
    made = rows.launch(device, logits.reshape(1, -1), batch, given_u=given, ids=ids)
    token, kept, used, status = (
        device.download(getattr(made, n))[0] for n in ("token", "kept", "u", "status")
    )
    refuse(int(status), params.temperature)
    return Sample(int(token), int(kept), None if used < 0 else float(used))


def greedy(device, logits) -> int:
    """The token with the largest logit, lowest id among equals; logits f32 [V]."""
    if device.name != "cpu":
        _size(logits)
        return _sample_row(device, logits, SamplingParams(), 0, None).token
    token = np.zeros(1, np.int32)
    refuse(device.call("crucible_greedy", logits, _size(logits), token))
    return int(token[0])


def rank(device, logits, temperature, k: int) -> np.ndarray:
    """int32 [k]: the first k token ids by logit/temperature descending, then by id ascending."""
    vocab = _size(logits)
    k = whole("k", k)
    with np.errstate(over="ignore"):
        rounded = np.float32(real("temperature", temperature))
    if not np.isfinite(rounded) or not 0 < int(rounded.view(np.uint32)) < 1 << 31:
        raise InputError(f"temperature {temperature} must be finite in float32 and greater than 0 to rank")
    if not 1 <= k <= vocab:
        raise InputError(f"k {k} must lie in 1..{vocab}, the vocabulary")
    if device.name != "cpu":
        ids = device.empty((1, vocab), np.int32)
        _sample_row(device, logits, SamplingParams(rounded, k), 0, None, ids)
        return device.download(ids[0, :k]).copy()  # the rest is not written
    ids = np.zeros(k, np.int32)
    refuse(device.call("crucible_rank", logits, vocab, rounded, k, ids), temperature)
    return ids


def logprobs(device, logits) -> np.ndarray:
    """f64 [V]: log of the softmax over the whole vocabulary at temperature 1; -inf for a -inf logit."""
    if device.name != "cpu":
        _size(logits)
        made, status = rows.logprob_rows(device, logits.reshape(1, -1))
        refuse(int(device.download(status)[0]))
        return device.download(made)[0]
    out = np.zeros(_size(logits), np.float64)
    refuse(device.call("crucible_logprobs", logits, out.size, out))
    return out


def ln(device, v) -> np.ndarray:
    """Natural logarithm of finite v > 0, f64 [n] (the contract's series), for conformance."""
    expect("v", v, np.float64, (None,))
    host = device.download(v)
    if not (np.isfinite(host) & (host > 0)).all():
        raise InputError("v holds a value that is not finite and greater than 0; ln takes no other")
    out = device.empty(v.shape, np.float64)
    if device.name == "cpu":
        device.call("crucible_ln", v, out, v.size)
    elif v.size:
        device.kernel("sampling_parts", "ln").launch(-(-v.size // 256), 256, (v, out, np.int32(v.size)))
    return out
