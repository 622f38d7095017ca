"""Where a pass spends its time on the GPU: CUDA events around every stage, beside host wall and replay."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from crucible.errors import UnavailableError
from crucible.evidence import record
from crucible.evidence.statistics import bracket
from crucible.kv.slices import Slice
from crucible.model.cache import pages_for
from crucible.model.model import Model
from crucible.numerics import inputs
from crucible.sampling.params import SamplingParams

# Segments, rows of each, and the history before them: two prefills and a decode step.
SHAPES = ((16, 16, 0), (4, 256, 0), (16, 1, 31))
EMPTY = "empty interval"
_REPLAYS = 20
_FILL_BYTES = 1 << 30


@dataclass
class Profile:
    """One shape of one model.

    `stages`: microseconds between the events around a stage, summed over the layers, a sample a round; a name
    with + is a fused step of both. `empty interval` is what two events with nothing between them show; every
    interval pays about as much. `replay`: a captured pass between two events, one of many. `wall`: from the
    call to the tokens on the host.
    """

    model: str
    mode: str
    segments: int
    length: int
    history: int
    fused: bool
    intervals: dict[str, int] = field(default_factory=dict)
    stages: dict[str, list[float]] = field(default_factory=dict)
    replay: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @property
    def title(self) -> str:
        after = f" after {self.history}" if self.history else ""
        return f"{self.mode} {self.segments}x{self.length}{after}{'' if self.fused else ', unfused'}"


def profile(
    model: Model, segments: int, length: int, history: int = 0, fused: bool = True, rounds: int = 5
) -> Profile:
    """`segments` slices of `length` tokens with a greedy token each. UnavailableError off cuda."""
    if model.device.name != "cuda":
        raise UnavailableError("a stage profile needs CUDA events; load the model on device cuda")
    cache = model.new_cache(pages_for(history + length) * segments, segments)
    for request in range(segments):
        cache.reserve(request, history + length)
    vocab = np.uint32(model.config.vocab)
    ids = (inputs.bits(11, 0, segments * (history + length)) % vocab).astype(np.int64)
    if history:
        before = [Slice(request, 0, history) for request in range(segments)]
        model.transformer.forward(ids[: segments * history], before, cache, rows=())
    ids = ids[segments * history :]
    slices = [Slice(request, history, length) for request in range(segments)]
    params = [SamplingParams()] * segments
    transformer, draws = model.transformer, [0] * segments

    def choose() -> None:
        transformer.choose(ids, slices, cache, params, draws)

    for _ in range(3):  # eager, captured, replayed
        choose()
    kind = "decode" if length == 1 else "packed" if segments > 1 else "single"
    entry = transformer.captures(cache).entries(kind)[-1]
    found = Profile(model.name, model.mode, segments, length, history, fused)

    def pass_(mark: Callable[[str], None]) -> None:
        transformer.profiled(ids, slices, cache, params, mark, fused)

    pass_(lambda stage: None)  # compiles what only the unfused steps launch
    for _ in range(rounds):
        _stages(found, pass_)
        found.replay.append(elapsed(entry.graph.launch, _REPLAYS))
        model.device.synchronize()
        started = time.perf_counter()
        choose()
        found.wall.append((time.perf_counter() - started) * 1e6)
    return found


def elapsed(run: Callable[[], object], times: int) -> float:
    """Microseconds of one of `times` runs enqueued after each other, between two events."""
    import cupy

    run()
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(times):
        run()
    stop.record()
    stop.synchronize()
    return 1000.0 * cupy.cuda.get_elapsed_time(start, stop) / times


def _stages(found: Profile, pass_: Callable[[Callable[[str], None]], None]) -> None:
    """One pass with an event at every mark, all enqueued while the GPU is busy with copies.

    So no gap of the host lies between two events; the copies are made more until that holds.
    """
    import cupy

    source = cupy.empty(_FILL_BYTES, np.uint8)
    target = cupy.empty_like(source)
    copies = 40
    while True:
        events: list[tuple[str, cupy.cuda.Event]] = []

        def mark(stage: str, events=events) -> None:
            event = cupy.cuda.Event()
            event.record()
            events.append((stage, event))

        for _ in range(copies):
            target[...] = source
        mark(EMPTY)
        pass_(mark)
        outrun = events[0][1].done
        events[-1][1].synchronize()
        if not outrun:
            break
        copies *= 2
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for (stage, start), (_, stop) in itertools.pairwise(events):
        sums[stage] = sums.get(stage, 0.0) + 1000.0 * cupy.cuda.get_elapsed_time(start, stop)
        counts[stage] = counts.get(stage, 0) + 1
    found.intervals = counts
    for stage, microseconds in sums.items():
        found.stages.setdefault(stage, []).append(microseconds)


def table(profiles: Sequence[Profile]) -> str:
    """Stages by profiles, medians in microseconds; under them their sum, the replay and the host's wall."""
    names = list(dict.fromkeys(stage for p in profiles for stage in p.stages))
    names = [*(n for n in names if n != EMPTY), EMPTY]
    rows = [("stage, us between events", *(p.title for p in profiles))]
    for name in names:
        cells = []
        for p in profiles:
            times = p.intervals.get(name, 0)
            cells.append(f"{_median(p.stages[name]):.1f} /{times}" if times else "")
        rows.append((name, *cells))
    sums = [sum(_median(v) for n, v in p.stages.items() if n != EMPTY) for p in profiles]
    rows.append(("sum of the stages", *(f"{s:.1f}" for s in sums)))
    rows.append(("synchronized replay of a graph", *(f"{_median(p.replay):.1f}" for p in profiles)))
    rows.append(("host wall, call to tokens", *(f"{_median(p.wall):.1f}" for p in profiles)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def to_record(profiles: Sequence[Profile], note: str = "") -> record.Record:
    """One evidence record of all profiles, every sample kept."""
    from crucible.evidence.environment import capture

    samples, facts = [], {"note": note} if note else {}
    for p in profiles:
        series = {**{f"stage {n}": v for n, v in p.stages.items()}}
        series |= {"synchronized replay": p.replay, "host wall": p.wall}
        for name, values in series.items():
            samples.append(record.Series(f"{p.title}: {name}", "us", tuple(values)))
            facts[f"{p.title}: {name}, median us"] = bracket(values).median
        facts |= {f"{p.title}: intervals of {n}": count for n, count in p.intervals.items()}
    return record.Record(
        kind="bench.stages",
        claim="microseconds of the stages of a packed pass with a greedy token for each segment",
        compared="stages between CUDA events (launches queued behind copies), a replayed graph, host wall",
        verdict="measured",
        facts=facts,
        samples=tuple(samples),
        not_claimed=("that a stage takes as long within a graph, where no event stands between launches",),
        environment=capture("cuda"),
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
