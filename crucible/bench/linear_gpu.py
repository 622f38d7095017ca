"""Linear layers on the GPU beside torch: graph replay, each call reading another copy of the weights."""

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from crucible.bench.attention import measure
from crucible.bench.attention_timers import Call, Cupy, Torch
from crucible.bench.linear import SHAPES, Shape
from crucible.bench.outcome import Outcome
from crucible.errors import InputError
from crucible.linear.apply import linear
from crucible.linear.gpu_choice import KERNELS, choose, runs
from crucible.linear.gpu_f32 import launch, linear_f32
from crucible.linear.weights import LinearWeight, pack_stored
from crucible.numerics import inputs
from crucible.numerics.bits import compare

ROWS = (1, 16, 256, 1024)
LAUNCHES = 50
KINDS = ("f32", "int8")
CONTRACT = "f32, contract order"
# Layers of a model follow each other, so a call finds its weights in memory, not in the cache, unless all
# layers fit there: copies are made until they take this many bytes.
COLD_BYTES = 160 << 20
MOST_COPIES = 60
DISTINCT = 1024  # rows of weights that differ; the time does not depend on more, making them would
# Beside the layers of the two models, with the rows that they are timed at unless others are asked for: one
# fills the GPU for milliseconds, one leaves most of it idle.
MORE = {Shape("square", "4096", 4096, 4096): (4096,), Shape("square", "up", 1536, 576): (1024,)}


def copies(n: int, k: int, size: int) -> int:
    """How many copies of a layer's weights a benchmark walks through."""
    return max(1, min(MOST_COPIES, COLD_BYTES // (n * k * size)))


class Bank:
    """Weights of a shape on the device, by storage, in as many copies as a benchmark walks through."""

    def __init__(self, device, n: int, k: int, storages: Sequence[str]):
        self.n, self.k = n, k
        rows = inputs.normalish(7, 1, (min(n, DISTINCT), k), np.float32(0.04))
        self.host_w = w = np.resize(rows, (n, k))
        halves = (w.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        raw = {"f32": w, "bf16": halves}
        self.weights: dict[str, list[LinearWeight]] = {}
        for storage in storages:
            rows = device.upload(raw[storage].view(np.uint8))
            count = copies(n, k, raw[storage].itemsize)
            self.weights[storage] = [pack_stored(device, rows, storage, k) for _ in range(count)]


class Layer:
    """T rows for a bank's layer on the device: x, an output, and its right bits by storage."""

    def __init__(self, device, bank: Bank, rows: int):
        self.device, self.rows, self.bank = device, rows, bank
        self.host_x = inputs.normalish(7, 2, (rows, bank.k), np.float32(1.0))
        self.x, self.out = device.upload(self.host_x), device.empty((rows, bank.n))
        self.expected: dict[str, np.ndarray] = {}
        for storage, weights in bank.weights.items():
            launch(device, None, self.x, weights[0], self.out)
            self.expected[storage] = device.download(self.out).copy()

    def check(self, storage: str, run: Callable[[], object], what: str) -> None:
        """Refuse a call whose bits differ from those of the reference kernel."""
        self.out[...] = np.float32(np.nan)
        run()
        result = compare(self.expected[storage], self.device.download(self.out))
        if result.differing or result.nan:
            raise InputError(f"linear kernel {what} differs from the reference: {result}; not timed")


def our_calls(
    device,
    layer: Layer,
    timer: Cupy,
    kernels: Sequence[str | None] = (None,),
    storages: Sequence[str] | None = None,
) -> list[Call]:
    """Ours by storage and kernel (None: the one that is chosen), each held to the reference's bits."""
    calls = []
    for storage in layer.bank.weights if storages is None else storages:
        weights = layer.bank.weights[storage]
        first = weights[0]
        for name in kernels:
            chosen = name or choose(device, layer.rows, first)
            if not runs(device, KERNELS[chosen], first):
                continue
            scratch = Buffers(device)

            def run(turn, name=name, scratch=scratch):
                linear_f32(device, layer.x, next(turn), layer.out, scratch, kernel=name)

            layer.check(storage, functools.partial(run, itertools.repeat(first)), chosen)
            title = name or ("crucible f32" if storage == "f32" else "crucible f32, bf16 weights")
            arithmetic = CONTRACT if storage == "f32" else f"{CONTRACT}, weights stored as bf16"
            turn = itertools.cycle(weights)
            calls.append(
                Call(title, arithmetic, functools.partial(run, turn), True, timer, {"kernel": chosen})
            )
    return calls


class Buffers:
    """Scratch arrays that live as long as a benchmark, by name."""

    def __init__(self, device):
        self.device, self.held = device, {}

    def take(self, name: str, shape, dtype=np.float32):
        if name not in self.held or self.held[name].shape != tuple(shape):
            self.held[name] = self.device.empty(shape, dtype)
        return self.held[name]


def int8_calls(device, layer: Layer, timer: Cupy) -> list[Call]:
    """Our int8 layer, quantization of the activations included, held to the reference's bits."""
    from crucible.linear.gpu_i8 import linear_int8
    from crucible.linear.gpu_i8_kernels import choose as int8_choice
    from crucible.linear.weights import pack

    n, k = layer.bank.n, layer.bank.k
    w = device.upload(layer.bank.host_w)
    weights = [pack(device, w, "int8") for _ in range(copies(n, k, 1))]
    turn, scratch = itertools.cycle(weights), Buffers(device)
    expected = device.empty(layer.out.shape)
    linear_int8(device, layer.x, weights[0], expected, scratch, kernel="reference")

    def run(turn=turn):
        linear(device, layer.x, next(turn), layer.out, scratch)

    run(itertools.repeat(weights[0]))
    result = compare(device.download(expected), device.download(layer.out))
    chosen = int8_choice(device, layer.rows, n, k, floats=True)
    if result.differing or result.nan:
        raise InputError(f"int8 kernel {chosen} differs from the reference: {result}; not timed")
    what = "int8 weights, 16-bit activations, exact sums"
    return [Call("crucible int8", what, run, True, timer, {"kernel": chosen})]


def torch_calls(layer: Layer, timer: Torch) -> list[Call]:
    """torch's f32 layer without TF32 and, labelled, its other arithmetics."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.from_numpy(layer.host_x).cuda()
    w = torch.from_numpy(layer.bank.host_w).cuda()
    n, k = w.shape
    product = torch.nn.functional.linear

    def call(name, arithmetic, run, made):
        turn = itertools.cycle(made)
        return Call(name, arithmetic, lambda: run(next(turn)), False, timer)

    full = [w.clone() for _ in range(copies(n, k, 4))]
    halves = [w.bfloat16() for _ in range(copies(n, k, 2))]
    half_x = x.bfloat16()
    calls = [
        call("torch f32", "f32, order of the library, TF32 off", lambda w: product(x, w), full),
        call(
            "torch bf16",
            "other arithmetic: bf16 weights and activations",
            lambda w: product(half_x, w),
            halves,
        ),
    ]
    if x.shape[0] > 16 and n % 8 == 0 and k % 8 == 0:  # what the library's integer product takes
        bytes_x = torch.randint(-127, 128, tuple(x.shape), device="cuda", dtype=torch.int8)
        bytes_w = [
            torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8) for _ in range(copies(n, k, 1))
        ]
        what = "other arithmetic: int8 product alone, 8-bit activations, no scales"
        calls.append(call("torch._int_mm", what, lambda w: torch._int_mm(bytes_x, w.t()), bytes_w))
        digits = torch.cat([bytes_x, bytes_x])
        what = "int8 product of both digits alone, no quantization, no scales"
        calls.append(call("torch._int_mm x2", what, lambda w: torch._int_mm(digits, w.t()), bytes_w))
    return calls


def cases(models: Sequence[str] = (), rows: Sequence[int] = ()) -> list[tuple[Shape, list[int]]]:
    """The layers of `models` (none: of the two real ones) and the rows that each is timed at.

    `rows` none: those of ROWS, or of MORE where the layer stands there. InputError for a model without layers
    here and for rows below 1.
    """
    known = (*SHAPES, *MORE)
    if unknown := set(models) - {s.model for s in known}:
        names = ", ".join(dict.fromkeys(s.model for s in known))
        raise InputError(f"no linear shapes for model {min(unknown)!r}; choose from {names}")
    if bad := [t for t in rows if t < 1]:
        raise InputError(f"rows must be at least 1, got {bad[0]}")
    chosen = [s for s in known if s.model in models] if models else SHAPES
    return [(s, [t for t in rows or MORE.get(s, ROWS) if t <= s.most_rows]) for s in chosen]


def run(
    models: Sequence[str] = (),
    rows: Sequence[int] = (),
    against: Sequence[str] = (),
    rounds: int = 5,
    kinds: Sequence[str] = KINDS,
    say: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """One Outcome a layer and row count of `cases`, times in microseconds; InputError for an unknown kind."""
    from crucible import device as devices

    chosen = cases(models, rows)
    if unknown := set(kinds) - set(KINDS):
        raise InputError(f"unknown kind {min(unknown)!r} of linear layers; choose from {', '.join(KINDS)}")
    device, ours = devices.get("cuda"), Cupy()
    theirs = Torch() if "torch" in against else None
    outcomes = []
    for shape, counts in chosen:
        with ours.stream:
            bank = Bank(device, shape.n, shape.k, ("f32", "bf16") if "f32" in kinds else ())
        for t in counts:
            title = f"{shape.model} {shape.layer} {t}x{shape.k}x{shape.n}"
            if say:
                say(title)
            with ours.stream:
                layer = Layer(device, bank, t)
                calls = our_calls(device, layer, ours)
                calls += int8_calls(device, layer, ours) if "int8" in kinds else []
            calls += torch_calls(layer, theirs) if theirs else []
            outcomes.append(measure(title, calls, rounds, LAUNCHES))
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> str:
    """A line a layer: median microseconds of every contender, and torch f32 over ours where both ran."""
    names = list(dict.fromkeys(c.name for o in outcomes for c in o.contenders))
    rows = [("us", *names, "torch f32 / ours", "kernel")]
    for o in outcomes:
        by_name = {c.name: c for c in o.contenders}
        medians = {name: float(np.median(c.samples)) for name, c in by_name.items()}
        ratios = [r for a, b, r in o.speedups() if (a, b) == ("crucible f32", "torch f32")]
        ratio = f"{float(np.median(ratios[0])):.2f}" if ratios else ""
        kernel = str(by_name["crucible f32"].facts["kernel"]) if "crucible f32" in by_name else ""
        rows.append((o.title, *(f"{medians[n]:.1f}" if n in medians else "" for n in names), ratio, kernel))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(v.ljust(w) for v, w in zip(r, widths, strict=True)).rstrip() for r in rows)
