"""Times of committed records as tables: the benchmark's shapes, the stages of a pass, whole models."""

import re
from collections.abc import Sequence

from crucible.evidence.record import Record
from crucible.evidence.statistics import Bracket, bracket
from crucible.report.gathered import Kept, of_kind
from crucible.report.tables import Table, cell, table

AGAINST = (
    "reference",
    "exact-q4-k64",
    "torch SDPA efficient",
    "torch SDPA math",
    "torch FlexAttention",
    "torch flash bf16",
)
STAGE = "stage "
MODELS = ("bench.prefill", "bench.decode", "bench.model-cuda", "bench.engine")
SERVICE = ("bench.service", "bench.service-apart")  # the service beside the bare engine
ATTENTION = "crucible bench attention --device cuda --full --json FILE"
STAGES = "crucible bench model --device cuda --stages --json FILE"
MODELS_GPU = "crucible bench model --device cuda --against transformers --json FILE"
MODELS_CPU = "crucible bench prefill --against torch --against llama.cpp --json FILE, and decode"
MODELS_HTTP = "crucible bench service --json FILE"
COMMANDS = (
    ("attention, shape by shape", ATTENTION),
    ("stages of a pass", STAGES),
    ("whole models on a GPU", MODELS_GPU),
    ("whole models on a CPU", MODELS_CPU),
    ("many requests at once", "crucible bench engine --json FILE"),
)


def brackets(item: Record) -> dict[tuple[str, str], Bracket]:
    """(title, series) -> median and range of a record whose series are named `title: series`."""
    split = ((one.name.partition(": "), one.values) for one in item.samples)
    return {(title, name): bracket(values) for (title, colon, name), values in split if colon}


def shapes_table(kept: Sequence[Kept], kind: str = "bench.attention") -> Table:
    """Each shape's time of `auto`, the variant that ran, and how many times longer the others take."""
    rows: list[tuple] = []
    names = [n for n in AGAINST if any(_has(one.record, n) for one in of_kind(kept, kind))]
    for one in of_kind(kept, kind):
        times, facts = brackets(one.record), one.record.facts
        for shape in dict.fromkeys(title for title, name in times if name == "auto"):
            ours = times[shape, "auto"]
            others = (times.get((shape, name)) for name in names)
            ratios = (f"{other.median / ours.median:.1f}x" if other else "-" for other in others)
            span = (f"{ours.median:.1f}", f"{ours.low:.1f} to {ours.high:.1f}")
            ran, registers = (facts.get(f"{shape}: auto, {fact}", "") for fact in ("runs", "registers"))
            rows.append((shape, ran, *span, *ratios, registers))
    return table(("shape", "auto runs", "auto (µs)", "range (µs)", *names, "registers"), rows)


def shape_samples(kept: Sequence[Kept], kind: str = "bench.attention") -> dict[str, dict[str, tuple]]:
    """{shape: {contender: samples in µs}} of `auto`, the exact ones and torch's f32, for a plot."""
    found: dict[str, dict[str, tuple]] = {}
    for one in of_kind(kept, kind):
        for series in one.record.samples:
            shape, colon, name = series.name.partition(": ")
            if colon and name in ("auto", *AGAINST[:3]):
                found.setdefault(shape, {})[name] = series.values
    return found


def _has(item: Record, contender: str) -> bool:
    return any(one.name.endswith(f": {contender}") for one in item.samples)


def stage_tables(kept: Sequence[Kept]) -> tuple[Table, Table, Table]:
    """Stages between their events, the replayed graph, the host's wall: three clocks, three tables."""
    return _stages(kept), _passes(kept, "synchronized replay"), _passes(kept, "host wall")


def _passes(kept: Sequence[Kept], series: str) -> Table:
    rows = [
        (title, f"{b.median:.1f}", f"{b.low:.1f} to {b.high:.1f}", b.samples)
        for one in of_kind(kept, "bench.stages")
        for (title, name), b in brackets(one.record).items()
        if name == series
    ]
    return table(("profile", f"{series} (µs)", "range (µs)", "samples"), rows)


def _stages(kept: Sequence[Kept]) -> Table:
    cells: dict[str, dict[str, float]] = {}
    for one in of_kind(kept, "bench.stages"):
        for (title, name), b in brackets(one.record).items():
            if name.startswith(STAGE):
                cells.setdefault(name.removeprefix(STAGE), {})[title] = b.median
    titles = list(dict.fromkeys(title for row in cells.values() for title in row))
    rows = [(n, *(f"{row[t]:.1f}" if t in row else "" for t in titles)) for n, row in cells.items()]
    return table(("stage, median µs between events", *titles), rows)


def models_table(
    kept: Sequence[Kept], units: Sequence[str], part: str = "", kinds: Sequence[str] = MODELS
) -> Table:
    """Whole models beside other engines: series in one of `units` whose name has `part`, ratios to each peer.

    A ratio above 1 says that the engine of the row is the faster one.
    """
    rows = []
    for one in of_kind(kept, *kinds):
        for series in (s for s in one.record.samples if s.unit in units and part in s.name):
            seen = bracket(series.values)
            ratio = re.compile(rf"{re.escape(series.name)} / (.+), median ratio")
            pairs = [(m[1], v) for name, v in one.record.facts.items() if (m := ratio.fullmatch(name))]
            against = ", ".join(f"{v:.2f}x {peer}" for peer, v in pairs)
            phase, _, engine = series.name.rpartition(": ")
            phase = phase or one.record.kind.removeprefix("bench.")
            span = f"{cell(seen.low)} to {cell(seen.high)}"
            rows.append((one.machine, phase, engine, f"{seen.median:.4g}", span, seen.samples, against))
    heads = ("folder", "phase", "engine", f"median ({units[0]})", "range", "samples", "median ratio")
    return table(heads, rows)
