"""`crucible bench attention --full`: the 25 shapes, other geometries, decode and the ablation, in one run."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crucible.attention import exact
from crucible.attention.shapes import ALL, DECODE, SHAPES, Case, case
from crucible.bench import attention as bench
from crucible.bench.attention_peers import torch_calls
from crucible.bench.attention_timers import Cupy, Torch
from crucible.bench.outcome import Contender, Outcome
from crucible.device.dry import Dry
from crucible.errors import InputError, UnsupportedError

Heads = tuple[int, int, int]  # Hq, Hkv, D
STANDARD: Heads = (12, 3, 64)
FLEX = ("4x256", "2x512", "single-1024")
GEOMETRIES: tuple[Heads, ...] = (STANDARD, (9, 3, 64), (24, 3, 64), (9, 3, 128), (12, 3, 128), (24, 3, 128))
GEOMETRY_SHAPES = ("4x256", "2x512")
DECODE_HEADS: tuple[Heads, ...] = ((9, 3, 64), STANDARD)
ABLATION_SHAPES = ("16x16", "4x256", "2x512")
ONLINE = ("online-q2-k32", "online-q4-k64")
ABLATION = ("reference", *(f"exact-{tile}" for tile in exact.TILES), *ONLINE, "auto")


@dataclass(frozen=True)
class Part:
    """Rows of the run that share a question; `kind` names its record, `claim` says what the times are."""

    kind: str
    claim: str
    shapes: tuple[str, ...]
    heads: tuple[Heads, ...]
    variants: tuple[str, ...]
    peers: bool = True
    eager: bool = False  # eager launches beside the graph replay


PARTS = (
    Part("attention", "microseconds of attention launches, graph replay of 50", tuple(SHAPES), (STANDARD,),
         bench.VARIANTS, eager=True),
    Part("attention-geometry", "the same at other numbers of heads and head dimensions", GEOMETRY_SHAPES,
         GEOMETRIES, bench.VARIANTS),
    Part("attention-decode", "one new row a request over histories of 1,000", tuple(DECODE), DECODE_HEADS,
         bench.VARIANTS),
    Part("attention-ablation", "what rows, keys, hybrid and cache of the exact tiles are worth",
         ABLATION_SHAPES, (STANDARD,), ABLATION, peers=False),
)  # fmt: skip


def titles(part: Part) -> Iterator[tuple[str, str, Heads]]:
    """(title, shape, heads) of every row: the shape alone where all rows have the same heads."""
    for heads in part.heads:
        for shape in part.shapes:
            at = f" at {'/'.join(map(str, heads))}" if len(part.heads) > 1 else ""
            yield shape + at, shape, heads


def sources(device, cases: dict, parts: Sequence[Part]) -> list[tuple[str, dict[str, int]]]:
    """(stem, macros) of every kernel that the run will launch, to compile ahead."""
    dry = Dry(device)
    for part in parts:
        for _, shape, heads in titles(part):
            attend, _ = bench.prepare(device, cases[shape, heads])
            for name in ("reference", *part.variants):
                with contextlib.suppress(UnsupportedError):
                    attend(name, dry)
    return dry.sources


@dataclass(frozen=True)
class Full:
    """Outcomes of every part by its kind, and copy bandwidth in GB/s, one sample a round."""

    outcomes: dict[str, list[Outcome]]
    bandwidth: tuple[float, ...]


def run(
    rounds: int = 5,
    peers: bool = True,
    only: Sequence[str] = (),
    flex: Sequence[str] = FLEX,
    say: Callable[[str], None] | None = None,
) -> Full:
    """Every part on the current GPU; `only` keeps parts by kind, `flex` names FlexAttention's shapes."""
    from crucible import device as devices
    from crucible.bench.bandwidth import copies
    from crucible.device.precompile import precompile

    unknown = set(only) - {p.kind for p in PARTS}
    if unknown:
        raise InputError(f"no part {min(unknown)!r}; choose from {', '.join(p.kind for p in PARTS)}")
    parts = [p for p in PARTS if not only or p.kind in only]
    device, ours, begun = devices.get("cuda"), Cupy(), time.monotonic()
    cases = {}
    for part in parts:
        for _, shape, heads in titles(part):
            if (shape, heads) not in cases:
                cases[shape, heads] = case(ALL[shape], *heads)
    if say:
        say("compiling")
    with ours.stream:
        wanted = sources(device, cases, parts)
    count = precompile(device.arch, wanted)
    if say:
        say(f"compiled {count} kernels")
    theirs = Torch() if peers else None
    bandwidth = copies(ours, rounds)
    found: dict[str, list[Outcome]] = {}
    for part in parts:
        for title, shape, heads in titles(part):
            if say:
                say(f"{time.monotonic() - begun:4.0f} s  {part.kind}: {title}")
            c = cases[shape, heads]
            with ours.stream:
                calls, expected = bench.our_calls(device, c, part.variants, ours)
            if peers and part.peers:
                calls += torch_calls(c, expected, theirs, part.eager and shape in flex)
            outcome = bench.with_share(bench.measure(title, calls, rounds, eager=part.eager), c)
            if shape in DECODE:
                outcome = with_reads(outcome, c, float(np.median(bandwidth)))
            found.setdefault(part.kind, []).append(outcome)
    return Full(found, bandwidth)


def with_reads(outcome: Outcome, c: Case, bandwidth: float) -> Outcome:
    """`outcome` with every contender's time over one read of K and V at `bandwidth` GB/s."""
    once = c.kv_bytes / bandwidth * 1e-3  # microseconds

    def facts(contender: Contender) -> Contender:
        ratio = float(np.median(contender.samples)) / once
        return replace(contender, facts={**contender.facts, "K/V reads": ratio})

    return replace(outcome, contenders=tuple(map(facts, outcome.contenders)))


def records(full: Full) -> list:
    """One record a part, kinds `bench.<part>`; the copy bandwidth stands in each of them."""
    from crucible.bench.outcome import to_record
    from crucible.evidence.environment import capture
    from crucible.evidence.record import Series

    environment, bandwidth = capture("cuda"), Series("device copy", "GB/s", full.bandwidth)
    made = []
    for part in PARTS:
        if part.kind not in full.outcomes:
            continue
        facts = {
            "heads": ", ".join("/".join(map(str, h)) for h in part.heads),
            "copy bandwidth GB/s": float(np.median(full.bandwidth)),
        }
        record = to_record(part.kind, part.claim, full.outcomes[part.kind], facts)
        made.append(replace(record, environment=environment, samples=(bandwidth, *record.samples)))
    return made


def text(full: Full) -> str:
    """Every part as a table."""
    blocks = [f"copy bandwidth: {np.median(full.bandwidth):.0f} GB/s"]
    for part in PARTS:
        rows = full.outcomes.get(part.kind)
        if rows:
            table = ablation(rows) if part.kind == "attention-ablation" else bench.summary(rows)
            blocks.append(f"{part.kind}: {part.claim}\n{table}")
    return "\n\n".join(blocks)


def ablation(outcomes: Sequence[Outcome]) -> str:
    """A line a variant: microseconds at each shape."""
    names = list(dict.fromkeys(c.name for o in outcomes for c in o.contenders))
    found = [{c.name: float(np.median(c.samples)) for c in o.contenders} for o in outcomes]
    rows = [("us", *(o.title for o in outcomes))]
    rows += [(n, *(f"{by[n]:.2f}" if n in by else "-" for by in found)) for n in names]
    return bench.aligned(rows)
