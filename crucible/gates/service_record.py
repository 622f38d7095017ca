"""What a run of the service gate says: lines for a terminal, and a record."""

import dataclasses

import numpy as np

from crucible.evidence.environment import capture
from crucible.evidence.record import Record, Series
from crucible.gates.service import OVER, Phase, ServiceGate

KIND = "service-gate"
_MIB = 1 << 20


def summary(gate: ServiceGate) -> list[str]:
    """Lines for the terminal."""
    lines = [_line(phase) for phase in gate.phases]
    if gate.capacity is not None:
        lines.insert(0, f"capacity: {gate.capacity:.2f} requests/s, {len(gate.alone)} at once")
    lines += [
        f"{phase.load.name}: the service kept up, its queue never filled, so nothing had to be refused"
        for phase in gate.phases
        if phase.load.name == OVER and not phase.count(429)
    ]
    return lines + [f"{'held' if ok else 'FAILED'}: {name}" for name, ok in gate.checks.items()]


def _line(phase: Phase) -> str:
    left = len(phase.answers) - len(phase.stayed)
    first = [a.first_token for a in phase.stayed if a.first_token is not None]
    ttft = f"{1000 * float(np.median(first)):.0f} ms" if first else "none"
    seen = phase.seen
    return (
        f"{phase.load.name}: {len(phase.answers)} requests at {phase.load.rate:g}/s, {phase.count(200)} "
        f"answered, {phase.count(429)} refused, {left} left; queue at most {_peak(phase)}, "
        f"pages at most {max(seen.pages, default=0)}, TTFT p50 {ttft}, memory {phase.memory / _MIB:.0f} MiB"
    )


def _peak(phase: Phase) -> int:
    """Most requests that ever waited, by the engine's own count."""
    return phase.settled["engine"]["queue_peak"] if phase.settled else -1


def record(gate: ServiceGate, device: str, about: dict[str, str | int | float | bool]) -> Record:
    """The record of a run; `about` says what was served and how."""
    whole = [a for phase in gate.phases for a in phase.stayed if a.status == 200 and not a.error]
    tokens = [token for answer in whole for token in answer.tokens]
    wrong = sum(not gate.equal(answer) for answer in whole)
    facts: dict[str, str | int | float | bool] = {**about, "seed": gate.seed}
    for phase in gate.phases:
        name = phase.load.name
        facts |= {
            f"{name}: requests a second": phase.load.rate,
            f"{name}: seconds until all had ended": round(phase.seconds, 3),
            f"{name}: sent": len(phase.answers),
            f"{name}: answered": phase.count(200),
            f"{name}: refused with 429": phase.count(429),
            f"{name}: left by the client": len(phase.answers) - len(phase.stayed),
            f"{name}: queue at most": _peak(phase),
            f"{name}: running at most": max(phase.seen.running, default=0),
            f"{name}: pages in use at most": max(phase.seen.pages, default=0),
            f"{name}: pages in use after": phase.settled["engine"]["pages"]["used"] if phase.settled else -1,
            f"{name}: memory after, bytes": phase.memory,
        }
    facts |= {f"check: {name}": ok for name, ok in gate.checks.items()}
    series = []
    for phase in gate.phases:
        first = tuple(a.first_token for a in phase.stayed if a.first_token is not None)
        series.append(Series(f"{phase.load.name}: TTFT", "s", tuple(round(t, 6) for t in first)))
        series.append(Series(f"{phase.load.name}: queue", "requests", tuple(map(float, phase.seen.queue))))
        series.append(Series(f"{phase.load.name}: memory", "bytes", tuple(map(float, phase.seen.memory))))
    made = Record(
        kind=KIND,
        claim="a service under load and in overload answers with the bits of each request alone",
        compared=f"tokens and random state of {len(whole)} answers with each request's run alone",
        verdict="fail",
        elements=len(tokens),
        finite=len(tokens),
        nonzero=sum(token != 0 for token in tokens),
        differing=min(wrong, len(tokens)),
        facts=facts,
        samples=tuple(series),
        not_claimed=(
            "times of another machine: client and service share this one",
            "that memory is flat over days",
        ),
        environment=capture(device),
    )
    return dataclasses.replace(made, verdict="pass") if gate.passed else made
