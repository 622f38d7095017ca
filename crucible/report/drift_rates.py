"""How often candidates flip a token, from the drift gate's records, as a table."""

from collections.abc import Sequence

from crucible.report.gathered import Kept, of_kind
from crucible.report.tables import Table, table

_FACTS = {
    "sequences": "sequences",
    "tokens": "tokens",
    "tokens that flip, teacher-forced": "tokens flip",
    "sequences that change": "sequences change",
    "flip mass a token, inverse-cdf": "flip mass a token, inverse-cdf",
    "flip mass a token, gumbel-id": "flip mass a token, gumbel-id",
}
_DIAGNOSIS = "flip mass a token, "


def rates_table(kept: Sequence[Kept]) -> Table:
    """One row a candidate, sampler and machine; the masses with their intervals."""
    rows = []
    for one in of_kind(kept, "drift"):
        _, _, what = one.record.kind.partition(": ")
        candidate, comma, sampler = what.rpartition(", ")
        if comma:
            facts = (one.record.facts.get(name, "") for name in _FACTS)
            rows.append((one.where, candidate, sampler, *facts))
    return table(("device, folder", "candidate", "sampler", *_FACTS.values()), rows)


def masses_table(kept: Sequence[Kept]) -> Table:
    """Flip masses of the run's own diagnosis: one row a candidate, one column a sampler."""
    found: dict[str, dict[str, float]] = {}
    for one in of_kind(kept, "drift-diagnosis"):
        for name, value in one.record.facts.items():
            candidate, _, sampler = name.removeprefix(_DIAGNOSIS).rpartition(", ")
            if name.startswith(_DIAGNOSIS):
                found.setdefault(candidate, {})[sampler] = value
    samplers = list(dict.fromkeys(sampler for row in found.values() for sampler in row))
    rows = [(name, *(row.get(s, "") for s in samplers)) for name, row in found.items()]
    return table(("candidate", *(f"flip mass a token, {s}" for s in samplers)), rows)
