"""What `auto` means: a small table of exact variants by device and shape, kept as data with its provenance.

A rule applies when every extent in its `when` lies in the given closed range (null is open):
rows (T), segments (S), longest (rows of the longest segment), history (capacity), G, Hkv, D. The
first rule that applies gives the variants to try in order; the first that covers the problem runs.
"""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crucible.attention.base import Problem
from crucible.attention.variants import VARIANTS
from crucible.errors import InputError

TABLE = Path(__file__).with_name("dispatch.json")
FORMAT = 1
EXTENTS = ("rows", "segments", "longest", "history", "G", "Hkv", "D")


@dataclass(frozen=True)
class Rule:
    """Ranges of extents, and the exact variants to try there."""

    variants: tuple[str, ...]
    when: dict[str, tuple[int | None, int | None]]

    def applies(self, extents: dict[str, int]) -> bool:
        return all(
            (low is None or extents[name] >= low) and (high is None or extents[name] <= high)
            for name, (low, high) in self.when.items()
        )


@dataclass(frozen=True)
class Table:
    """Rules per device name, and where they come from."""

    provenance: dict[str, str]
    rules: dict[str, tuple[Rule, ...]]


def parse(text: str, where: str = TABLE.name) -> Table:
    """A table from its JSON; InputError for anything that is not an exact variant or not an extent."""
    body = json.loads(text)
    if body.get("format") != FORMAT:
        raise InputError(f"{where} has format {body.get('format')!r}; this Crucible reads {FORMAT}")
    rules = {}
    for device, entries in body["rules"].items():
        rules[device] = tuple(_rule(entry, device, where) for entry in entries)
        if not rules[device] or rules[device][-1].when:
            raise InputError(f"{where}: the last rule of {device} must apply to everything")
    return Table(body["provenance"], rules)


def _rule(entry: dict, device: str, where: str) -> Rule:
    for name in entry["variants"]:
        if name not in VARIANTS or not VARIANTS[name].exact or device not in VARIANTS[name].launchers:
            raise InputError(f"{where}: {name!r} is not an exact variant of {device}")
    for extent in entry.get("when", {}):
        if extent not in EXTENTS:
            raise InputError(f"{where}: unknown extent {extent!r}; known: {', '.join(EXTENTS)}")
    return Rule(tuple(entry["variants"]), {k: tuple(v) for k, v in entry.get("when", {}).items()})


@functools.cache
def table() -> Table:
    """The committed table."""
    return parse(TABLE.read_text())


def candidates(device_name: str, p: Problem, rules: Table | None = None) -> Iterator[str]:
    """The variants to try for a problem, best first; `longest` counts as T where it is not known."""
    extents = {
        "rows": p.T,
        "segments": p.S,
        "longest": p.T - p.S + 1 if p.longest is None else p.longest,
        "history": p.tables.shape[1] * p.kpool.shape[2] if p.capacity is None else p.capacity,
        "G": p.G,
        "Hkv": p.Hkv,
        "D": p.D,
    }
    for rule in (rules or table()).rules[device_name]:
        if rule.applies(extents):
            yield from rule.variants
            return
