"""The model gate's evidence: a record per model and mode, one for the controls, and lines for a terminal."""

from crucible.evidence.environment import capture
from crucible.evidence.record import Record
from crucible.gates.model import ModelGate
from crucible.gates.model_devices import DevicesGate
from crucible.gates.model_results import Count
from crucible.gates.tensor_tally import Tally

KIND = "model gate"
CLAIM = (
    "sequences in packed company, chunked, replayed, cancelled around and on reused pages have the tokens, "
    "random state, logits, keys and values of the same request alone, eager, by reference attention"
)
NOT_CLAIMED = (
    "anything about speed",
    "a scheduler, a service or text: the plans are fixed before a token is known",
)


def _named(count: Count) -> str:
    wrong = ", ".join(f"{name} {n}" for name, n in sorted(count.fields.items()))
    text = f"{count.workloads} workloads, {count.sequences} sequences, {count.calls} calls, "
    return text + f"{count.tokens} tokens, {count.failed} differ{f' ({wrong})' if wrong else ''}"


def records(gate: ModelGate) -> list[Record]:
    """Records of what ran; one of an interrupted run is `measured`, never a pass."""
    environment, made, found = capture(gate.device.name), [], gate.found
    for part in gate.parts:
        sections, total = found.counts.get(part.name, {}), found.total(part.name)
        if not sections:
            continue
        tally: Tally = total.logits
        verdict = "fail" if total.failed else "pass" if gate.finished else "measured"
        facts = {
            "model": part.model,
            "mode": part.mode,
            "seed": gate.seed,
            "steps at most": part.steps,
            "longest prompt": part.limit,
            "finished": gate.finished,
            "sequences": total.sequences,
            "calls": total.calls,
            "tokens": total.tokens,
            "requests alone": found.alone.get(part.name, 0),
            "sequences that differ": total.failed,
            "seconds": round(found.seconds.get(part.name, 0.0), 2),
            **{f"graphs: {name}": n for name, n in found.graphs.get(part.name, {}).items()},
            **{f"section: {name}": _named(count) for name, count in sections.items()},
        }
        made.append(
            Record(
                kind=f"{KIND}: {part.name}",
                claim=CLAIM,
                compared="tokens, draws, every step's logits, K and V by digest; final logits by element",
                verdict=verdict,
                elements=tally.elements,
                finite=tally.finite,
                nonzero=tally.nonzero,
                differing=tally.differing,
                facts=facts,
                not_claimed=NOT_CLAIMED,
                environment=environment,
            )
        )
    return made + _controls(gate, environment)


def _controls(gate: ModelGate, environment) -> list[Record]:
    seen = {
        f"{part}: {name}": what for part, found in gate.found.controls.items() for name, what in found.items()
    }
    if not seen:
        return []
    return [
        Record(
            kind=f"{KIND}: controls",
            claim="each broken run is seen by the comparison",
            compared=f"{len(seen)} runs of four requests, each broken in one way",
            verdict="pass" if all(seen.values()) else "fail",
            facts={name: what or "not caught" for name, what in seen.items()},
            not_claimed=("that no other mistake could pass",),
            environment=environment,
        )
    ]


def summary(gate: ModelGate) -> list[str]:
    """Lines for the terminal."""
    lines, found = [], gate.found
    for part in gate.parts:
        sections = found.counts.get(part.name, {})
        for name, count in sections.items():
            lines.append(f"{part.name}: {name:<13} {_named(count)}")
        if sections:
            total, alone = found.total(part.name), found.alone.get(part.name, 0)
            t = total.logits
            lines.append(
                f"{part.name}: {total.sequences} sequences in {total.calls} calls against {alone} alone, "
                f"{total.failed} differ; final logits: {t.elements} elements, {t.differing} differing, "
                f"{t.elements - t.finite} not finite, {t.nonzero} non-zero; {found.seconds[part.name]:.1f} s"
            )
    for part, seen in found.controls.items():
        lines.append(f"{part}: {sum(map(bool, seen.values()))} of {len(seen)} controls caught")
        lines += [f"  not caught: {name}" for name, what in seen.items() if not what]
    return lines + [f"  failed: {text}" for text in gate.found.failures[:10]]


def device_records(gate: DevicesGate) -> list[Record]:
    """A record per model and mode that both devices ran."""
    environment, made = capture(gate.device.name), []
    for one in gate.compared:
        whole = Tally()
        whole.add(one.text)
        whole.add(one.count.logits)
        ran = bool(one.count.sequences)
        facts = {
            "model": one.model,
            "mode": one.mode,
            "tokens of text": one.text_tokens,
            **{f"text {name} digest": value for name, value in one.digests.items()},
            "text equal": one.text_equal,
            "sequences": one.count.sequences,
            "tokens": one.count.tokens,
            "sequences that differ": one.count.failed,
            **{f"seconds, {name}": round(value, 3) for name, value in one.seconds.items()},
        }
        made.append(
            Record(
                kind=f"cpu and {gate.device.name}: {one.model} {one.mode}",
                claim=f"{gate.device.name} gives the bits of the cpu device",
                compared="a text's logits, K and V, every row; packed sequences' tokens, draws, logits, K, V",
                verdict=("fail" if one.bad else "pass") if ran else "measured",
                elements=whole.elements,
                finite=whole.finite,
                nonzero=whole.nonzero,
                differing=whole.differing,
                facts=facts,
                not_claimed=NOT_CLAIMED[:1],
                environment=environment,
            )
        )
    return made


def device_summary(gate: DevicesGate) -> list[str]:
    """Lines for the terminal."""
    lines = []
    for one in gate.compared:
        spent = ", ".join(f"{name} {value:.2f} s" for name, value in one.seconds.items())
        lines.append(
            f"{one.model} {one.mode}: {one.text_tokens} tokens of text, {one.text.elements} logits, "
            f"{one.text.differing} differing, K and V {'equal' if one.text_equal else 'or logits DIFFER'}; "
            f"{one.count.sequences} sequences, {one.count.failed} differ ({spent})"
        )
    return lines + [f"  failed: {text}" for text in gate.found.failures[:10]]
