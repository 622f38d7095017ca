"""What the model gate counts: sequences against their references, section by section, mergeable."""

from dataclasses import dataclass, field

from crucible.gates.model_run import Outcome
from crucible.gates.tensor_tally import Tally, measure

KEPT_FAILURES = 50


@dataclass
class Count:
    """What some sequences came to: `failed` have any difference, `fields` counts by what differs."""

    workloads: int = 0
    sequences: int = 0
    calls: int = 0
    tokens: int = 0
    failed: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    logits: Tally = field(default_factory=Tally)  # the last step's, element by element

    def add(self, other: "Count") -> None:
        """Count another count into this one."""
        for name in ("workloads", "sequences", "calls", "tokens", "failed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, n in other.fields.items():
            self.fields[name] = self.fields.get(name, 0) + n
        self.logits.add(other.logits)


@dataclass
class Results:
    """What a run found, by part name and then by section or by what was counted.

    `alone` counts references; `seconds` is the time of comparisons, added over processes; `graphs` says how
    often captures served; `controls` holds what gave each negative control away ("" where nothing did);
    `failures` names the first differences in words.
    """

    counts: dict[str, dict[str, Count]] = field(default_factory=dict)
    alone: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    graphs: dict[str, dict[str, int]] = field(default_factory=dict)
    controls: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, part: str, section: str) -> Count:
        """The count of a section."""
        return self.counts.setdefault(part, {}).setdefault(section, Count())

    def total(self, part: str) -> Count:
        """All sections of a part."""
        whole = Count()
        for count in self.counts.get(part, {}).values():
            whole.add(count)
        return whole

    @property
    def clean(self) -> bool:
        """Whether sequences were compared, none differs and every control was seen."""
        counts = [count for sections in self.counts.values() for count in sections.values()]
        seen = [what for controls in self.controls.values() for what in controls.values()]
        return bool(counts) and not any(c.failed for c in counts) and not self.failures and all(seen)

    def add(self, other: "Results") -> None:
        """Count what another run over the same parts found."""
        for part, sections in other.counts.items():
            for section, count in sections.items():
                self.count(part, section).add(count)
        for mine, more in ((self.alone, other.alone), (self.seconds, other.seconds)):
            for part, value in more.items():
                mine[part] = mine.get(part, 0) + value
        for part, found in other.graphs.items():
            mine = self.graphs.setdefault(part, {})
            for name, n in found.items():
                mine[name] = mine.get(name, 0) + n
        for part, found in other.controls.items():
            self.controls.setdefault(part, {}).update(found)
        self.failures = (self.failures + other.failures)[:KEPT_FAILURES]

    def compare(self, count: Count, where: str, expected: Outcome, actual: Outcome) -> None:
        """Count one sequence against what it should be; where it differs it is named."""
        names, found = expected.differences(actual), measure(expected.final, actual.final)
        count.sequences += 1
        count.tokens += len(actual.tokens)
        count.logits.add(found)
        count.failed += bool(names or found.bad)
        for name in names:
            count.fields[name] = count.fields.get(name, 0) + 1
        if (names or found.bad) and len(self.failures) < KEPT_FAILURES:
            self.failures.append(f"{where}: {', '.join(names) or 'final logits'} differ; {found}")
