"""Attention on the GPU: our variants and torch's, graph replay and eager, in the same rounds."""

import functools
import time
from collections.abc import Callable, Sequence

import numpy as np

from crucible.attention.plan import plan_of
from crucible.attention.run import run as attend
from crucible.attention.shapes import LAYER, Case, Segments, case
from crucible.attention.variants import AUTO
from crucible.attention.variants import VARIANTS as REGISTRY
from crucible.bench.attention_peers import EFFICIENT, torch_calls
from crucible.bench.attention_timers import Call, Cupy, Recorder, Torch, resources
from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import order
from crucible.errors import InputError, UnsupportedError
from crucible.numerics.bits import compare

LAUNCHES = 50  # in a graph, and in an eager sample
VARIANTS = ("reference", "exact-q4-k64", "auto")
CONTRACT, OTHER = "f32, contract order", "other arithmetic: f32, online softmax"
# FP32 instructions of one (head, row, key): D products and sums of the score tree, D of the value chain.
ISSUE_PER_PAIR = {64: 159, 128: 287}


def prepare(device, c: Case) -> tuple[Callable, object]:
    """(run, out): `run(name, on=device)` enqueues a variant on the case's arrays, its result into `out`."""
    arrays = [device.upload(x) for x in (c.q, c.kpool, c.vpool, c.tables, c.packed.desc)]
    k, v = (device.upload(x) for x in c.own())
    made = plan_of(device, c.packed.desc, c.Hkv)
    out = device.empty(c.q.shape)
    options = {"out": out, "k": k, "v": v, "plan": made}
    options |= {"capacity": c.packed.max_end, "longest": made.longest_chunk}

    def run(name, on=device):
        return attend(on, *arrays, LAYER, c.Hkv, c.D, name, **options)

    return run, out


def our_calls(device, c: Case, names: Sequence[str], timer: Cupy) -> tuple[list[Call], np.ndarray]:
    """Our variants that run this shape, each held to the reference's bits, and the reference's output."""
    run, out = prepare(device, c)
    poison = device.upload(np.full(c.q.shape, np.nan, np.float32))
    expected = device.download(run("reference").out).copy()
    calls = []
    for name in (n for n in names if n == AUTO or "cuda" in REGISTRY[n].launchers):
        exact = name == AUTO or REGISTRY[name].exact
        out[...] = poison
        recorder = Recorder(device)
        try:
            done = run(name, recorder)
        except UnsupportedError:
            continue
        result = compare(expected, device.download(done.out))
        if exact and (result.differing or result.nan):
            raise InputError(f"attention variant {name} differs from the reference: {result}; not timed")
        facts = resources(recorder.launches)
        if name == AUTO:
            facts = {"runs": done.launch.variant, **facts}
        calls.append(
            Call(name, CONTRACT if exact else OTHER, functools.partial(run, name), True, timer, facts)
        )
    return calls, expected


def measure(
    title: str, calls: Sequence[Call], rounds: int, launches: int = LAUNCHES, eager: bool = True
) -> Outcome:
    """`rounds` trials in alternating order, microseconds a launch: graph replay, and eager as facts."""
    replays = {call.name: call.library.capture(call.run, launches) for call in calls}
    samples = {call.name: [] for call in calls}
    events = {call.name: [] for call in calls}
    walls = {call.name: [] for call in calls}
    by_name = {call.name: call for call in calls}

    def launch(call):
        for _ in range(launches):
            call.run()

    for number in range(-1, rounds):  # the first round is thrown away
        for name in order(list(by_name), number):
            call = by_name[name]
            replayed = call.library.microseconds(replays[name]) / launches
            if number >= 0:
                samples[name].append(replayed)
            if not eager:
                continue
            event = call.library.microseconds(functools.partial(launch, call)) / launches
            call.library.synchronize()
            start = time.perf_counter()
            call.library.microseconds(functools.partial(launch, call))
            wall = (time.perf_counter() - start) * 1e6 / launches
            if number >= 0:
                events[name].append(event)
                walls[name].append(wall)
    contenders = []
    for call in calls:
        timed = (("eager event us", events), ("eager wall us", walls)) if eager else ()
        facts = {**{fact: float(np.median(by[call.name])) for fact, by in timed}, **call.facts}
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


def run(
    shapes: dict[str, Segments],
    names: Sequence[str] = VARIANTS,
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
        outcomes.append(with_share(measure(title, calls, rounds), c))
    return outcomes


def with_share(outcome: Outcome, c: Case) -> Outcome:
    """`outcome` with our lines' share of the FP32 issue limit among their facts."""
    for contender in outcome.contenders:
        if contender.ours:
            contender.facts["issue share"] = share_of_issue_limit(c, float(np.median(contender.samples)))
    return outcome


def summary(outcomes: Sequence[Outcome]) -> str:
    """A line a shape: medians of every contender, then how many times slower than `auto` the others are."""
    names = list(dict.fromkeys(c.name for o in outcomes for c in o.contenders))
    against = [n for n in ("reference", EFFICIENT) if n in names and "auto" in names]
    reads = any("K/V reads" in c.facts for o in outcomes for c in o.contenders)
    head = ("us", *names, *(f"{n} / auto" for n in against), "auto runs", "issue share")
    rows = [(*head, "K/V reads") if reads else head]
    for outcome in outcomes:
        found = {c.name: c for c in outcome.contenders}
        median = {name: float(np.median(c.samples)) for name, c in found.items()}
        auto = found.get("auto")
        rows.append(
            (
                outcome.title,
                *(f"{median[n]:.2f}" if n in median else "-" for n in names),
                *(f"{median[n] / median['auto']:.2f}x" if n in median and auto else "-" for n in against),
                str(auto.facts["runs"]) if auto else "-",
                f"{auto.facts['issue share']:.1%}" if auto else "-",
                *((f"{auto.facts['K/V reads']:.2f}" if auto else "-",) if reads else ()),
            )
        )
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Lines of padded columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in rows)
