"""What a benchmark found: contenders with their samples, as a table, paired ratios and one record."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crucible.evidence import record
from crucible.evidence.statistics import bracket, paired_ratios

NOT_CLAIMED = (
    "other machines, other loads and other versions of the peers",
    "that a contender with another arithmetic computes the same result",
)


@dataclass(frozen=True)
class Contender:
    """One line of a benchmark: samples in `unit`, taken in the same rounds as its neighbours'.

    `ours` marks Crucible's own lines; `arithmetic` says what is computed, since a peer may compute
    something else; `facts` are named scalars beside the samples.
    """

    name: str
    arithmetic: str
    unit: str
    samples: tuple[float, ...]
    ours: bool = False
    facts: dict[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """One comparison. `higher_is_better` is true for rates and false for times.

    `absent` holds (peer, why) of those asked for and not measured; `stopped` says that Ctrl-C ended
    the measurement before all rounds were taken.
    """

    title: str
    contenders: tuple[Contender, ...]
    higher_is_better: bool = True
    absent: tuple[tuple[str, str], ...] = ()
    stopped: bool = False

    def speedups(self) -> list[tuple[str, str, tuple[float, ...]]]:
        """(ours, peer, speed of ours over the peer's, one a round) for each pair."""
        found = []
        for a in (c for c in self.contenders if c.ours):
            for b in (c for c in self.contenders if not c.ours):
                pair = (a.samples, b.samples) if self.higher_is_better else (b.samples, a.samples)
                found.append((a.name, b.name, tuple(float(r) for r in paired_ratios(*pair))))
        return found

    def text(self) -> str:
        """The side-by-side: median [minimum, maximum] of every contender, then the paired ratios."""
        rows = [("", "what", self.contenders[0].unit, "")]
        for c in self.contenders:
            shown = ", ".join(f"{k} {_number(v)}" for k, v in c.facts.items())
            rows.append((c.name, c.arithmetic, _bracket(c.samples), shown))
        lines = [self.title, *_columns(rows)]
        lines += [f"  {name}: not measured ({why})" for name, why in self.absent]
        for a, b, ratios in self.speedups():
            lines.append(f"  {a} / {b}: {_bracket(ratios)}x")
        return "\n".join(lines)


def matrix(outcomes: Sequence[Outcome]) -> str:
    """Many outcomes of the same contenders: a line each with medians, then ours over the first peer."""
    contenders = outcomes[0].contenders
    pairs = outcomes[0].speedups()
    first_peer = pairs[0][1] if pairs else None
    shown = [(a, b) for a, b, _ in pairs if b == first_peer]
    rows = [(contenders[0].unit, *(c.name for c in contenders), *(f"{a} / {b}" for a, b in shown))]
    for each in outcomes:
        ratios = {(a, b): r for a, b, r in each.speedups()}
        medians = (_number(bracket(c.samples).median) for c in each.contenders)
        rows.append((each.title, *medians, *(_bracket(ratios[pair]) for pair in shown)))
    arithmetic = [f"  {c.name}: {c.arithmetic}" for c in contenders]
    return "\n".join([*_columns(rows), *arithmetic])


def _number(value) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def _bracket(values: Sequence[float]) -> str:
    b = bracket(values)
    return f"{_number(b.median)} [{_number(b.low)}, {_number(b.high)}]"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def to_record(kind: str, claim: str, outcomes: Sequence[Outcome], facts: dict) -> record.Record:
    """One evidence record of kind `bench.<kind>`: every sample kept, medians and ratios as facts."""
    from crucible.evidence.environment import capture

    facts, samples, compared = dict(facts), [], []
    many = len(outcomes) > 1
    for outcome in outcomes:
        prefix = f"{outcome.title}: " if many else ""
        for c in outcome.contenders:
            samples.append(record.Series(f"{prefix}{c.name}", c.unit, tuple(c.samples)))
            facts[f"{prefix}{c.name}, median {c.unit}"] = bracket(c.samples).median
            facts |= {f"{prefix}{c.name}, {name}": value for name, value in c.facts.items()}
            compared.append(f"{c.name} ({c.arithmetic})")
        facts |= {f"{prefix}{name}, not measured": why for name, why in outcome.absent}
        if outcome.stopped:
            facts["interrupted"] = f"{outcome.title}, after {len(outcome.contenders[0].samples)} rounds"
        for a, b, ratios in outcome.speedups():
            facts[f"{prefix}{a} / {b}, median ratio"] = bracket(ratios).median
    return record.Record(
        kind=f"bench.{kind}",
        claim=claim,
        compared="; ".join(dict.fromkeys(compared)),
        verdict="measured",
        facts=facts,
        samples=tuple(samples),
        not_claimed=NOT_CLAIMED,
        environment=capture("cpu"),
    )


def save(path: Path, records: Iterable[record.Record]) -> Path:
    """Write records into an evidence file; a record of the same kind in it is replaced, others stay."""
    records = list(records)
    kinds = {r.kind for r in records}
    kept = [r for r in record.load(path) if r.kind not in kinds] if Path(path).exists() else []
    return record.save(path, [*kept, *records])
