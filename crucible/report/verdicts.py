"""How a report speaks of the verdicts of its claims."""

from collections.abc import Sequence

from crucible.evidence import record
from crucible.evidence.record import Record

BY_TIMES = "by times"
# A pass or a refusal of these rests on times, unless an output differed: another run may say otherwise. The
# word itself stands where all times stand, in the section of the claim.
_TIMED = ("service-ab",)
SAID = (*record.VERDICTS, BY_TIMES)


def said(item: Record) -> str:
    """A record's verdict as a report gives it outside its times: one of SAID."""
    return BY_TIMES if item.kind in _TIMED and item.verdict != "fail" else item.verdict


def count(records: Sequence[Record]) -> dict[str, int]:
    """How many records say each of SAID."""
    return {name: sum(said(item) == name for item in records) for name in SAID}


def by_times(records: Sequence[Record]) -> list[str]:
    """A sentence for each claim that its times decided: what it says, and how they did."""
    return [f"{item.claim}: {item.facts['verdict']}." for item in records if said(item) == BY_TIMES]
