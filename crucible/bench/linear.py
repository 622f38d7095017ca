"""Linear layers beside torch: our f32 and int8 (contract section 6) at the shapes of two models."""

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from crucible.bench.engines import pip_install
from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import interleave, seconds_per_call
from crucible.errors import InputError, UnavailableError


@dataclass(frozen=True)
class Shape:
    """A layer of N outputs by K inputs; the LM head sees few rows, since only last rows need logits."""

    model: str
    layer: str
    n: int
    k: int
    most_rows: int = 1 << 30


SHAPES = (
    Shape("smollm2", "qkv", 960, 576),
    Shape("smollm2", "output", 576, 576),
    Shape("smollm2", "gate_up", 3072, 576),
    Shape("smollm2", "down", 576, 1536),
    Shape("smollm2", "head", 49152, 576, most_rows=16),
    Shape("synthetic-12x768", "qkv", 1152, 768),
    Shape("synthetic-12x768", "output", 768, 768),
    Shape("synthetic-12x768", "gate_up", 4096, 768),
    Shape("synthetic-12x768", "down", 768, 2048),
    Shape("synthetic-12x768", "head", 32000, 768, most_rows=16),
)
ROWS = (1, 16, 256, 512)
PEERS = ("torch",)
# (kind, arithmetic, tolerance of the check before timing)
OURS = (
    ("f32", "f32, contract order", 1e-6),
    ("int8", "int8 weights, 16-bit activations, exact sums", 1e-2),
)

# (arithmetic, the call to time)
Call = tuple[str, Callable[[], object]]


def _torch_calls(x: np.ndarray, w: np.ndarray, threads: int) -> dict[str, Call]:
    """torch's f32 layer and, labelled, what it has in other arithmetics."""
    try:
        import torch
    except ImportError:
        raise UnavailableError(f"torch is not installed; run: {pip_install('torch')}") from None
    torch.set_num_threads(threads)
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    bx, bw = tx.bfloat16(), tw.bfloat16()
    linear = torch.nn.functional.linear

    def quiet(call):
        def run():
            with torch.inference_mode():
                return call()

        return run

    calls = {
        "torch f32": ("f32, order of the library", quiet(lambda: linear(tx, tw))),
        "torch bf16": ("other arithmetic: bf16 weights and activations", quiet(lambda: linear(bx, bw))),
    }
    quantized = _torch_int8(torch, w)
    if quantized is not None:
        what = "other arithmetic: int8 weights, 8-bit activations"
        calls["torch int8"] = (what, quiet(lambda: quantized(tx)))
    return calls


def _torch_int8(torch, w: np.ndarray):
    """torch's dynamically quantized layer (8-bit activations), or None where this torch has none."""
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = torch.from_numpy(w)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = torch.nn.Sequential(layer)
            return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    except (AttributeError, RuntimeError):  # deprecated in torch, or no engine for it on this processor
        return None


def _check(ours: np.ndarray, x: np.ndarray, w: np.ndarray, tolerance: float, what: str) -> float:
    """Largest error of the first outputs against float64, over sum |x||w|; refused past `tolerance`."""
    few = slice(0, 64)
    exact = x.astype(np.float64) @ w[few].astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(w[few]).astype(np.float64).T
    worst = float((np.abs(ours[:, few] - exact) / size).max())
    if not worst <= tolerance:
        raise InputError(f"{what} is off by {worst:.3g} of sum |x||w|, more than {tolerance:.3g}: not timed")
    return worst


def _our_calls(cpu, x: np.ndarray, w: np.ndarray, packed: dict, title: str) -> dict[str, Call]:
    """Our layers with the output buffer allocated once, each held to float64 first."""
    from crucible.linear.apply import linear

    calls = {}
    for kind, arithmetic, tolerance in OURS:
        out = cpu.empty((x.shape[0], w.shape[0]))
        call = functools.partial(linear, cpu, x, packed[kind], out=out)
        _check(call(), x, w, tolerance, f"crucible {kind}, {title}")
        calls[f"crucible {kind}"] = (arithmetic, call)
    return calls


def _measure(title: str, calls: dict[str, Call], operations: float, rounds: int) -> Outcome:
    timed = {
        name: functools.partial(lambda call: operations / seconds_per_call(call) / 1e9, call)
        for name, (_, call) in calls.items()
    }
    samples = interleave(timed, rounds)
    contenders = (
        Contender(name, calls[name][0], "GFLOP/s", tuple(samples[name]), name.startswith("crucible"))
        for name in calls
    )
    stopped = any(len(taken) < rounds for taken in samples.values())
    return Outcome(title, tuple(contenders), stopped=stopped)


def run(
    models: tuple[str, ...] = (),
    rows: tuple[int, ...] = ROWS,
    against: tuple[str, ...] = (),
    rounds: int = 7,
    threads: int = 2,
    progress: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """One Outcome a shape and row count, in GFLOP/s (2*T*N*K operations a call, whatever the arithmetic).

    Our int8 line contains the quantisation of the activations. Ctrl-C ends the run; the layers
    measured by then come back, the last of them marked as stopped.
    """
    from crucible import device as devices

    known = {shape.model for shape in SHAPES}
    if unknown := set(models) - known:
        raise InputError(
            f"no linear shapes for model {min(unknown)!r} on cpu; choose from {', '.join(sorted(known))} "
            "(square is for --device cuda)"
        )
    if bad := [t for t in rows if t < 1]:
        raise InputError(f"rows must be at least 1, got {bad[0]}")
    cpu = devices.get("cpu")
    cpu.call("crucible_set_threads", threads)
    outcomes: list[Outcome] = []
    try:
        for outcome in _each(cpu, models, rows, against, rounds, threads, progress):
            outcomes.append(outcome)
            if outcome.stopped:
                break
    except KeyboardInterrupt:
        if not outcomes:
            raise
        outcomes[-1] = replace(outcomes[-1], stopped=True)
    return outcomes


def _each(cpu, models, rows, against, rounds, threads, progress) -> Iterator[Outcome]:
    from crucible.linear.weights import pack
    from crucible.numerics import inputs

    for shape in (s for s in SHAPES if not models or s.model in models):
        w = inputs.normalish(7, 1, (shape.n, shape.k), np.float32(0.04))
        packed = {kind: pack(cpu, w, kind) for kind, _, _ in OURS}
        for t in (t for t in rows if t <= shape.most_rows):
            x = inputs.normalish(7, 2, (t, shape.k), np.float32(1.0))
            title = f"{shape.model} {shape.layer} {t}x{shape.k}x{shape.n}"
            if progress:
                progress(title)
            calls = _our_calls(cpu, x, w, packed, title)
            if "torch" in against:
                calls |= _torch_calls(x, w, threads)
            yield _measure(title, calls, 2.0 * t * shape.n * shape.k, rounds)
