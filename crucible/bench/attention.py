"""Attention at the benchmark's shapes: our variants and torch's, graph replay and eager, in the same rounds."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from crucible.attention.plan import plan
from crucible.attention.run import attention, variants
from crucible.bench.attention_shapes import LAYER, SHAPES, Case, Segments, case
from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import interleave, order, seconds_per_call
from crucible.errors import InputError, UnsupportedError
from crucible.numerics.bits import compare

LAUNCHES = 50  # in a graph, and in an eager sample
GPU_VARIANTS = ("reference", "exact-q4-k64", "auto")
CPU_SHAPES = ("single-512", "4x256")
CONTRACT = "f32, contract order"
# FP32 instructions of one (head, row, key): D products and sums of the score tree, D of the value chain.
ISSUE_PER_PAIR = {64: 159, 128: 287}


@dataclass(frozen=True)
class Call:
    """A contender on the GPU: `run` enqueues one launch on the stream of the library that owns it."""

    name: str
    arithmetic: str
    run: Callable[[], object]
    ours: bool
    library: object  # a Cupy or Torch timer
    facts: dict = field(default_factory=dict)


class Recorder:
    """A device that notes the launches of its kernels: (entry, resources, blocks a multiprocessor, shared)."""

    def __init__(self, device):
        self._device, self.launches = device, []

    def __getattr__(self, name):
        return getattr(self._device, name)

    def kernel(self, stem, entry=None, **defines):
        kernel, noted = self._device.kernel(stem, entry, **defines), self.launches

        class Noting:
            @staticmethod
            def launch(grid, block, args, shared=0):
                kernel.launch(grid, block, args, shared)
                noted.append((kernel, int(np.prod(block)), shared))

        return Noting


def resources(launches) -> dict[str, str]:
    """Registers, shared and local bytes and calculated blocks a multiprocessor of noted launches, as text."""
    from cupy.cuda import driver

    columns = {"registers": [], "static B": [], "dynamic B": [], "local B": [], "blocks/SM": []}
    for kernel, block, shared in launches:
        r = kernel.resources
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel._function.ptr, block, shared)
        for name, value in zip(
            columns, (r.registers, r.static_shared, shared, r.local_bytes, blocks), strict=True
        ):
            columns[name].append(str(value))
    return {name: "+".join(values) for name, values in columns.items()}


class Cupy:
    """Graph capture and event timing on a CuPy stream."""

    def __init__(self):
        import cupy

        self.cuda = cupy.cuda
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def capture(self, run, launches: int) -> Callable[[], None]:
        with self.stream:
            run()
            self.stream.begin_capture()
            for _ in range(launches):
                run()
            graph = self.stream.end_capture()
        self.stream.synchronize()
        return lambda: graph.launch(self.stream)

    def microseconds(self, work) -> float:
        start, stop = self.cuda.Event(), self.cuda.Event()
        with self.stream:
            start.record(self.stream)
            work()
            stop.record(self.stream)
        stop.synchronize()
        return 1000.0 * self.cuda.get_elapsed_time(start, stop)

    def synchronize(self):
        self.stream.synchronize()


class Torch:
    """The same on a torch stream."""

    def __init__(self):
        import torch

        self.torch = torch
        self.stream = torch.cuda.Stream()

    def capture(self, run, launches: int) -> Callable[[], None]:
        with self.torch.cuda.stream(self.stream):
            for _ in range(3):
                run()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream):
            for _ in range(launches):
                run()

        def replay():
            with self.torch.cuda.stream(self.stream):
                graph.replay()

        return replay

    def microseconds(self, work) -> float:
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            start.record()
            work()
            stop.record()
        stop.synchronize()
        return 1000.0 * start.elapsed_time(stop)

    def synchronize(self):
        self.stream.synchronize()


def contiguous(c: Case, repeat: bool):
    """q [B][Hq][t][D], k, v [B][H][L][D] of a shape whose segments are alike, gathered from the pages.

    H is Hq with `repeat` (each KV head G times, what a library without grouped heads needs), else Hkv.
    UnsupportedError where the segments differ: one dense batch cannot hold them.
    """
    if len(set(c.segments)) != 1:
        raise UnsupportedError("segments of different lengths do not form one dense batch")
    (p, t), B = c.segments[0], len(c.segments)
    position = np.arange(p + t)
    rows = c.tables[:, position >> 4], LAYER, position & 15
    k, v = (pool[rows].reshape(B, p + t, c.Hkv, c.D).transpose(0, 2, 1, 3) for pool in (c.kpool, c.vpool))
    if repeat:
        k, v = (np.repeat(x, c.Hq // c.Hkv, axis=1) for x in (k, v))
    q = c.q.reshape(B, t, c.Hq, c.D).transpose(0, 2, 1, 3)
    return tuple(np.ascontiguousarray(x) for x in (q, k, v))


def _held(result, expected: np.ndarray, c: Case, tolerance: float, name: str) -> None:
    B, t = len(c.segments), c.segments[0][1]
    got = result.float().cpu().numpy().transpose(0, 2, 1, 3).reshape(expected.shape)
    worst = float(np.abs(got - expected).max())
    if not (worst <= tolerance and B * t == len(expected)):
        raise InputError(f"{name} is off by {worst:.3g}, more than {tolerance:.3g}: not timed")


def torch_calls(c: Case, expected: np.ndarray, timer: Torch, flex: bool) -> list[Call]:
    """torch's attentions on the same problem, each held to ours first; empty where no dense batch exists."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    try:
        q, k, v = (torch.from_numpy(x).cuda() for x in contiguous(c, repeat=True))
    except UnsupportedError:
        return []
    torch.backends.cuda.matmul.allow_tf32 = False
    (p, t) = c.segments[0]
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def with_backend(backend, *arrays):
        masked = {"is_causal": True} if p == 0 else {"attn_mask": causal_lower_right(t, p + t)}

        def run():
            with sdpa_kernel(backend):
                return sdpa(*arrays, **masked)

        return run

    dense = "K/V dense, heads repeated"
    halves = tuple(x.bfloat16() for x in (q, k, v))
    planned = [
        ("torch SDPA efficient", f"f32, {dense}", with_backend(SDPBackend.EFFICIENT_ATTENTION, q, k, v), 1e-4),
        ("torch SDPA math", f"f32, TF32 off, {dense}", with_backend(SDPBackend.MATH, q, k, v), 1e-4),
        (
            "torch flash bf16",
            f"other arithmetic: bf16, {dense}",
            with_backend(SDPBackend.FLASH_ATTENTION, *halves),
            5e-2,
        ),
    ]
    if flex:
        planned.append(("torch FlexAttention", f"f32, {dense}", _flex(torch, q, k, v, p), 1e-4))
    calls = []
    for name, arithmetic, run, tolerance in planned:
        try:
            with torch.inference_mode(), torch.cuda.stream(timer.stream):
                result = run()
            timer.synchronize()
        except RuntimeError:  # a backend that this build or shape lacks
            continue
        _held(result, expected, c, tolerance, name)
        calls.append(Call(name, arithmetic, torch.inference_mode()(run), False, timer))
    return calls


def _flex(torch, q, k, v, p: int):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    mask = create_block_mask(
        lambda b, h, row, key: key <= row + p, None, None, q.shape[2], k.shape[2], device="cuda"
    )
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask)


def our_calls(device, c: Case, names: Sequence[str], timer: Cupy) -> tuple[list[Call], np.ndarray]:
    """Our variants that run this shape, each held to the reference's bits, and the reference's output."""
    from crucible.attention.dispatch import choose

    arrays = [device.upload(x) for x in (c.q, c.kpool, c.vpool, c.tables, c.packed.desc)]
    made = plan(device, c.packed.desc, c.Hkv)
    out = device.empty(c.q.shape)
    poison = device.upload(np.full(c.q.shape, np.nan, np.float32))

    def run(name, on=device):
        return attention(
            *(on, *arrays, LAYER, c.Hkv, c.D, name), out=out, capacity=c.packed.max_end, plan=made
        )

    expected = device.download(run("reference")).copy()
    calls = []
    for name in (n for n in names if n in variants() and "cuda" in variants()[n].launchers):
        out[...] = poison
        recorder = Recorder(device)
        try:
            result = compare(expected, device.download(run(name, recorder)))
        except UnsupportedError:
            continue
        if variants()[name].exact and (result.differing or result.nan):
            raise InputError(f"attention variant {name} differs from the reference: {result}; not timed")
        facts = resources(recorder.launches)
        if name == "auto":
            facts = {"runs": choose(device, made, c.Hq, c.D).variant, **facts}
        calls.append(Call(name, CONTRACT, functools.partial(run, name), True, timer, facts))
    return calls, expected


def measure(title: str, calls: Sequence[Call], rounds: int, launches: int = LAUNCHES) -> Outcome:
    """`rounds` trials in alternating order, microseconds a launch: graph replay, and eager as facts."""
    replays = {call.name: call.library.capture(call.run, launches) for call in calls}
    samples = {call.name: [] for call in calls}
    events = {call.name: [] for call in calls}
    walls = {call.name: [] for call in calls}
    by_name = {call.name: call for call in calls}

    def eager(call):
        for _ in range(launches):
            call.run()

    for number in range(-1, rounds):  # the first round is thrown away
        for name in order(list(by_name), number):
            call = by_name[name]
            replayed = call.library.microseconds(replays[name]) / launches
            event = call.library.microseconds(functools.partial(eager, call)) / launches
            call.library.synchronize()
            start = time.perf_counter()
            call.library.microseconds(functools.partial(eager, call))
            wall = (time.perf_counter() - start) * 1e6 / launches
            if number >= 0:
                samples[name].append(replayed)
                events[name].append(event)
                walls[name].append(wall)
    contenders = []
    for call in calls:
        facts = {
            "eager event us": float(np.median(events[call.name])),
            "eager wall us": float(np.median(walls[call.name])),
            **call.facts,
        }
        contenders.append(
            Contender(call.name, call.arithmetic, "us", tuple(samples[call.name]), call.ours, facts)
        )
    return Outcome(title, tuple(contenders), higher_is_better=False)


def share_of_issue_limit(c: Case, us: float) -> float:
    """FP32 instructions of the shape over what the current GPU could issue in `us` at its top clock."""
    import cupy

    at = cupy.cuda.Device().attributes
    rate = at["MultiProcessorCount"] * 128 * at["ClockRate"] * 1e3
    return c.pairs * ISSUE_PER_PAIR[c.D] / rate / (us * 1e-6)


def run_cuda(
    shapes: dict[str, Segments],
    names: Sequence[str] = GPU_VARIANTS,
    rounds: int = 5,
    peers: bool = True,
    flex: Sequence[str] = (),
    heads: tuple[int, int, int] = (12, 3, 64),
    say: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """One Outcome a shape on the GPU, times in microseconds; `heads` is Hq, Hkv, D, `flex` names shapes."""
    from crucible import device as devices

    device, ours = devices.get("cuda"), Cupy()
    theirs = Torch() if peers else None
    outcomes = []
    for title, segments in shapes.items():
        if say:
            say(title)
        c = case(segments, *heads)
        with ours.stream:
            calls, expected = our_calls(device, c, names, ours)
        if peers:
            calls += torch_calls(c, expected, theirs, title in flex)
        outcomes.append(_with_share(measure(title, calls, rounds), c))
    return outcomes


def _with_share(outcome: Outcome, c: Case) -> Outcome:
    for contender in outcome.contenders:
        if contender.ours:
            contender.facts["issue share"] = share_of_issue_limit(c, float(np.median(contender.samples)))
    return outcome


def run_cpu(shapes: dict[str, Segments], rounds: int, threads: int, say=None) -> list[Outcome]:
    """Contract attention beside torch's f32 on the processor, milliseconds a call."""
    import torch

    from crucible import device as devices

    cpu = devices.get("cpu")
    cpu.call("crucible_set_threads", threads)
    torch.set_num_threads(threads)
    outcomes = []
    for title, segments in shapes.items():
        if say:
            say(title)
        c = case(segments)
        out = cpu.empty(c.q.shape)
        ours = functools.partial(
            attention, cpu, c.q, c.kpool, c.vpool, c.tables, c.packed.desc, LAYER, c.Hkv, c.D, "auto", out
        )
        q, k, v = (torch.from_numpy(x) for x in contiguous(c, repeat=True))
        mask = (
            {"is_causal": True}
            if segments[0][0] == 0
            else {"attn_mask": torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(segments[0][0])}
        )

        def theirs(arrays=(q, k, v), mask=mask):
            with torch.inference_mode():
                return torch.nn.functional.scaled_dot_product_attention(*arrays, **mask)

        _held(theirs(), ours(), c, 1e-4, "torch SDPA")
        timed = {
            "crucible auto": lambda call=ours: 1e3 * seconds_per_call(call, 0.05),
            "torch SDPA": lambda call=theirs: 1e3 * seconds_per_call(call, 0.05),
        }
        samples = interleave(timed, rounds)
        outcomes.append(
            Outcome(
                title,
                (
                    Contender("crucible auto", CONTRACT, "ms", tuple(samples["crucible auto"]), True),
                    Contender("torch SDPA", "f32, K/V dense, heads repeated", "ms", tuple(samples["torch SDPA"])),
                ),
                higher_is_better=False,
            )
        )
    return outcomes


def chosen(names: Sequence[str], known: dict[str, Segments]) -> dict[str, Segments]:
    """The named shapes, all of `known` where no name is given. InputError for an unknown one."""
    for name in names:
        if name not in known:
            raise InputError(f"no attention shape {name!r}; choose from {', '.join(known)}")
    return {name: known[name] for name in names} if names else known


def all_shapes() -> dict[str, Segments]:
    """The 25 shapes, and decode over long histories."""
    from crucible.bench.attention_shapes import DECODE

    return {**SHAPES, **DECODE}
