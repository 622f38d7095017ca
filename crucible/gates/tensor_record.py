"""The tensor gate's evidence: one record per section, and a summary for the terminal."""

from collections.abc import Sequence

from crucible.evidence.environment import capture
from crucible.evidence.record import Record
from crucible.gates.mutants import MUTANTS, Caught
from crucible.gates.tensor import TensorGate
from crucible.gates.tensor_tally import ABSOLUTE, RELATIVE, Tally

KIND = "tensor gate"
CLAIMS = {
    "exact": "every exact attention variant gives the reference's bits",
    "online": f"every online diagnostic stays within {ABSOLUTE:g} + {RELATIVE:g}*|reference|",
    "invariance": "packing order, neighbours, chunking, physical pages and contiguous storage move no bit",
    "poison": "NaN in later keys, unused slots, foreign pages and other layers reaches no row",
    "float64 oracle": "sampled rows of the reference agree with attention in float64",
    "cpu device": "the reference gives the bits of the cpu device",
}
NOT_CLAIMED = (
    "anything about speed",
    "inputs outside the contract: NaN or infinite q, k, v of visible keys",
)


def groups(gate: TensorGate) -> dict[str, Tally]:
    """One tally per claim, over all variants and sections that it covers."""
    found = {name: Tally() for name in CLAIMS}
    for (section, variant), tally in gate.tallies.items():
        kind = section.split()[0]
        if kind in ("cases", "geometry"):
            kind = "online" if variant in gate.online else "exact"
        found[kind if kind in found else section].add(tally)
    return {name: tally for name, tally in found.items() if tally.comparisons}


def records(gate: TensorGate, mutants: Sequence[Caught] = ()) -> list[Record]:
    """Records of what ran; one of an interrupted run is `measured`, never a pass."""
    environment = capture(gate.device.name)
    base = {"seed": gate.seed, "part": "quick" if gate.quick else "whole", "finished": gate.finished}
    made = []
    for name, tally in groups(gate).items():
        tolerant = name in ("online", "float64 oracle")
        verdict = ("fail" if tally.bad else "pass") if gate.finished or tally.bad else "measured"
        facts = {
            **base,
            "comparisons": tally.comparisons,
            "failed comparisons": tally.bad,
            "differing elements": tally.differing,
            "elements whose half-precision rounding differs": tally.halves,
            "worst absolute error": min(tally.max_absolute, 3.4e38),
            "worst relative error": min(tally.max_relative, 3.4e38),
            **_per_variant(gate, name),
        }
        made.append(
            Record(
                kind=f"{KIND}: {name}",
                claim=CLAIMS[name],
                compared=_compared(gate, name),
                verdict=verdict,
                elements=tally.elements,
                finite=tally.finite,
                nonzero=tally.nonzero,
                differing=tally.outside if tolerant else tally.differing,
                facts=facts,
                not_claimed=NOT_CLAIMED,
                environment=environment,
            )
        )
    if mutants:
        made.append(_mutants(mutants, environment))
    return made


def _compared(gate: TensorGate, name: str) -> str:
    counts = {section: len(plans) for section, plans, _ in gate.sections}
    if name in ("exact", "online"):
        some = gate.exact if name == "exact" else gate.online
        return f"{len(some)} variants, {counts['cases']} cases and {counts['geometry']} of random geometry"
    if name in ("invariance", "poison"):
        return f"{len(gate.variants)} variants, {counts[name]} cases, each changed in several ways"
    return f"the reference on {gate.device.name}, every case"


def _per_variant(gate: TensorGate, name: str) -> dict[str, str]:
    lines = {}
    for (section, variant), t in sorted(gate.tallies.items()):
        kind = section.split()[0]
        ours = "online" if variant in gate.online else "exact"
        if (kind in ("cases", "geometry") and name == ours) or section.startswith(name):
            many = f"{t.comparisons} comparison{'s' * (t.comparisons != 1)}"
            text = f"{many}, {t.elements} elements, {t.bad} failed"
            text += f", {t.differing} differing"
            if variant in gate.online and name == "online":
                text += f", {t.halves} halves, abs {t.max_absolute:.3g}, rel {t.max_relative:.3g}"
            lines[f"{section}: {variant}"] = text
    for variant, count in sorted(gate.uncovered.items()):
        lines[f"not covered: {variant}"] = f"{count} launches"
    return lines


def _mutants(mutants: Sequence[Caught], environment) -> Record:
    alive = [m.mutant for m in mutants if not m.checks]
    kinds = len({MUTANTS[m.mutant].variant for m in mutants})
    return Record(
        kind=f"{KIND}: mutants",
        claim="each wrong version of an exact kernel is caught",
        compared=f"{len(mutants)} mutants of {kinds} exact variants on simt, by the checks of the gate",
        verdict="fail" if alive else "pass",
        facts={m.mutant: "; ".join(m.checks) or "not caught" for m in mutants},
        not_claimed=("that no other mistake could pass",),
        environment=environment,
    )


def summary(gate: TensorGate, mutants: Sequence[Caught] = ()) -> list[str]:
    """Lines for the terminal."""
    lines = []
    for name, t in groups(gate).items():
        tolerant = name in ("online", "float64 oracle")
        wrong = f"{t.outside} outside" if tolerant else f"{t.differing} differing"
        lines.append(
            f"{name:<15} {t.comparisons:>6} comparisons {t.elements:>12} elements {wrong:>12}"
            f"  {t.nonzero} non-zero, {t.elements - t.finite} not finite, {t.bad} failed"
        )
        if name == "online":
            lines[-1] += f", worst absolute {t.max_absolute:.2g}, {t.halves} change when rounded to half"
    if mutants:
        caught = sum(bool(m.checks) for m in mutants)
        lines.append(f"{'mutants':<15} {caught} of {len(mutants)} caught")
        lines += [f"  not caught: {m.mutant}" for m in mutants if not m.checks]
    lines += [f"  not covered: {name}, {count} launches" for name, count in sorted(gate.uncovered.items())]
    lines += [f"  failed: {text}" for text in gate.failures[:10]]
    return lines
