"""A comparison as a record, and the raw samples beside it."""

from collections.abc import Sequence
from pathlib import Path

from crucible.attention import user
from crucible.bench.ab_runs import Campaign, Run
from crucible.bench.ab_statistics import METRICS, TOLERANCE, Row, values
from crucible.bench.ab_verdict import Demand, marked, verdict
from crucible.evidence.environment import capture
from crucible.evidence.record import Record, Series
from crucible.evidence.watch import BOUNDS
from crucible.service.load import samples
from crucible.service.load.samples import FORMULAS
from crucible.service.started import Side

NOT_CLAIMED = (
    "times of kernels, stages, replays or the engine: these are arrivals at a client, over HTTP",
    "models, devices, prompts and limits other than those named",
)


def series(campaign: Campaign) -> tuple[Series, ...]:
    """A value a burst for every workload, metric and side; groups are rounds."""
    made = []
    for side in campaign.sides:
        runs = campaign.of(side.name)
        for workload in campaign.workloads:
            for metric in METRICS:
                per_run = [(run.round, values(run, workload.name, metric)) for run in runs]
                flat = tuple(v for _, some in per_run for v in some)
                if flat:
                    groups = tuple(str(number) for number, some in per_run for _ in some)
                    made.append(
                        Series(f"{workload.name}, {metric.name}, {side.name}", metric.unit, flat, groups)
                    )
    return tuple(made)


def side_facts(side: Side, which: str) -> dict[str, object]:
    """What a side is, and the build that ran it."""
    build = side.build.identity()
    shown = (Path(one).name if Path(one).is_absolute() else one for one in side.arguments)
    facts: dict[str, object] = {which: side.name, f"{which}, arguments": " ".join(shown)}
    if any(user.is_file(one) for one in side.arguments):
        facts[f"{which}, promise"] = "none: a user's kernel"
    return facts | {f"{which}, {name}": value for name, value in build.items()}


def asked(campaign: Campaign) -> dict[str, object]:
    """What each workload was: tokens a request, timed bursts and warmups (several where they differ)."""
    names = ("tokens", "bursts", "warmups")
    found = {name: list(dict.fromkeys(getattr(w, name) for w in campaign.workloads)) for name in names}
    return {name: some[0] if len(some) == 1 else ", ".join(map(str, some)) for name, some in found.items()}


def machine_facts(campaign: Campaign) -> dict[str, object]:
    """Envelope medians of every run, and the marks."""
    facts: dict[str, object] = {"envelope bounds": BOUNDS}
    for run in campaign.runs:
        who = f"round {run.round + 1} {run.side}"
        facts |= {f"envelope, {who}, {n}": round(b.median, 3) for n, b in run.envelope.brackets().items()}
    facts |= {f"envelope, {who}, marked": "; ".join(said) for who, said in marked(campaign).items()}
    return facts


def to_record(
    campaign: Campaign,
    rows: Sequence[Row],
    rounds: int,
    device: str,
    demands: Sequence[Demand] = (),
    tolerance: float = TOLERANCE,
    facts: dict | None = None,
) -> Record:
    """Kind `service-ab`. pass: accepted; fail: an output differs; measured: refused for its times.

    Counts are of compared tokens."""
    found = verdict(campaign, rows, rounds, demands, tolerance)
    baseline, candidate = campaign.sides
    own: dict[str, object] = {"verdict": str(found), "rounds": len(campaign.runs) // 2} | dict(facts or {})
    own |= asked(campaign) | {"tolerance, %": tolerance}
    own |= {f"demand {i}": str(one) for i, one in enumerate(demands)}
    for side, which in ((baseline, "baseline"), (candidate, "candidate")):
        own |= side_facts(side, which)
    for row in rows:
        name = f"{row.workload}, {row.metric.name}"
        own |= {
            f"{name}, change %": round(row.interval.estimate, 3),
            f"{name}, interval %": f"[{row.interval.low:.3f}, {row.interval.high:.3f}]",
            f"{name}, every pair improved": row.every_pair,
            f"{name}, outcome": row.outcome(tolerance),
        }
    own |= machine_facts(campaign) | {f"formula of {name}": what for name, what in FORMULAS.items()}
    compared = campaign.oracle.compared
    changed = bool(campaign.broken)
    return Record(
        kind="service-ab",
        claim=f"{candidate.name} may replace {baseline.name} in the service",
        compared=f"{candidate.name} with {baseline.name}: fresh processes, equal requests, rounds in turn",
        verdict="fail" if changed else "pass" if found.accepted else "measured",
        elements=compared + changed,
        finite=compared + changed,
        nonzero=compared + changed,
        differing=int(changed),
        facts=own,
        samples=series(campaign),
        not_claimed=NOT_CLAIMED,
        environment=capture(device),
    )


def save_raw(path: Path, campaign: Campaign) -> Path:
    """Every sample of every run; the facts' `runs` say which belong to which, in order."""
    taken, index = [], []
    for run in campaign.runs:
        for workload in campaign.workloads:
            found = _flat(run, workload.name)
            taken += found
            index.append([run.round, run.side, workload.name, len(found)])
    return samples.save(path, taken, {"runs": index})


def _flat(run: Run, workload: str) -> list[samples.Sample]:
    return [sample for burst in run.bursts[workload] for sample in burst]
