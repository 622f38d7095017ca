"""The engine gate's evidence: a record per model, one of the controls, and a summary for the terminal."""

from collections.abc import Sequence

from crucible.evidence.environment import capture
from crucible.evidence.record import Record, Series
from crucible.gates.engine import EngineGate
from crucible.gates.engine_controls import Control
from crucible.model.model import TINY, Model

KIND = "engine gate"
CLAIM = "what a request returns in any company equals its run alone, and every page comes back"
NOT_CLAIMED = ("anything about speed", "devices, modes and models other than those named")


def tiny_model(device: str = "cpu") -> Model:
    """A two-layer random model on which the whole gate takes seconds."""
    return Model.load(TINY, device)


def records(gates: Sequence[EngineGate], controls: Sequence[Control] = (), seed: int = 0) -> list[Record]:
    """Records of what ran; one of an interrupted run is `measured`, never a pass."""
    made = [_of(gate, seed) for gate in gates if gate.runs]
    if controls:
        alive = [c.name for c in controls if not c.fault]
        made.append(
            Record(
                kind=f"{KIND}: controls",
                claim="each wrong engine is caught",
                compared=f"{len(controls)} wrong engines on {gates[0].model.name}, by the gate's comparison",
                verdict="fail" if alive else "pass",
                facts={c.name: c.fault or "not caught" for c in controls},
                not_claimed=("that no other mistake could pass",),
                environment=capture(gates[0].model.device.name),
            )
        )
    return made


def _of(gate: EngineGate, seed: int) -> Record:
    total = gate.total
    bad = bool(total.faults or gate.idle)
    facts = {
        "seed": seed,
        "runs": gate.runs,
        "sequences": total.sequences,
        "cancelled sequences": total.cancelled,
        **{f"{kind}: sequences": tally.sequences for kind, tally in gate.tallies.items()},
        **{f"{kind}: compared": tally.compared for kind, tally in gate.tallies.items()},
        **gate.counters,
        "decode passes": _passes(gate),
        **{f"fault {number}": text for number, text in enumerate(total.faults[:5])},
    }
    return Record(
        kind=f"{KIND}: {label(gate)}",
        claim=CLAIM,
        compared="tokens, random state, "
        + "logits digest of every step, " * (not gate.ahead)
        + "final K and V digests, text, end",
        verdict="fail" if bad else ("pass" if gate.finished else "measured"),
        elements=total.compared,
        finite=total.compared,
        nonzero=total.nonzero,
        differing=total.differing,
        facts=facts,
        samples=_timeline(gate),
        not_claimed=NOT_CLAIMED,
        environment=capture(gate.model.device.name),
    )


def label(gate: EngineGate) -> str:
    """Model, mode and device of a gate, and how its decode passes ran where that was fixed."""
    how = {None: "", True: ", recorded", False: ", call by call"}[gate.recorded] + ", ahead" * gate.ahead
    return f"{gate.model.name} {gate.model.mode} on {gate.model.device.name}{how}"


def _passes(gate: EngineGate) -> str:
    return {None: "recorded and call by call in turn", True: "recorded", False: "call by call"}[gate.recorded]


def _timeline(gate: EngineGate) -> tuple[Series, ...]:
    """The steps of the run under page pressure, for the picture of a step timeline."""
    if not gate.timeline:
        return ()
    steps = gate.timeline
    return (
        Series("prefill rows a step", "rows", tuple(float(s.prefill_rows) for s in steps)),
        Series("decode rows a step", "rows", tuple(float(s.decode_rows) for s in steps)),
        Series("pages in use", "pages", tuple(float(s.pages_used) for s in steps)),
        Series("pages cached", "pages", tuple(float(s.pages_cached) for s in steps)),
        Series("requests waiting", "requests", tuple(float(s.waiting) for s in steps)),
    )


def summary(gate: EngineGate) -> list[str]:
    """Lines for the terminal."""
    lines = [label(gate)]
    for kind, t in gate.tallies.items():
        lines.append(
            f"  {kind:<9} {t.sequences:>4} sequences {t.compared:>7} compared {t.differing:>5} differing"
            + (f", {t.cancelled} cancelled" if t.cancelled else "")
        )
    counts = ", ".join(f"{value} {name}" for name, value in gate.counters.items())
    total = gate.total
    lines.append(f"  {gate.runs} runs, {total.sequences} sequences: {total.differing} differences; {counts}")
    lines += [f"  never happened: {name}" for name in gate.idle]
    lines += [f"  fault: {text}" for text in total.faults[:10]]
    return lines
