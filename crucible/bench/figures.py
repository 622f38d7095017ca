"""The table of figures in README.md, from a committed record: python -m crucible.bench.figures FILE."""

import sys
from pathlib import Path

from crucible.errors import InputError
from crucible.evidence import record
from crucible.evidence.statistics import bracket

HEAD = ("", "prefill, tok/s", "decode, tok/s", "peak memory")


def table(path: Path | str) -> str:
    """Markdown: a line an engine with median [minimum, maximum] of prefill and decode, and its peak."""
    kinds = {r.kind: r for r in record.load(path)}
    missing = [kind for kind in ("bench.prefill", "bench.decode") if kind not in kinds]
    if missing:
        raise InputError(f"{path} holds no record {missing[0]}; run: crucible {missing[0].replace('.', ' ')}")
    prefill, decode = kinds["bench.prefill"], kinds["bench.decode"]
    rows = [HEAD, tuple("---" if i == 0 else "---:" for i in range(len(HEAD)))]
    for series in prefill.samples:
        name = series.name
        peak = max(float(r.facts[f"{name}, peak GB"]) for r in (prefill, decode))
        other = next(s for s in decode.samples if s.name == name)
        rows.append((name, _bracket(series.values), _bracket(other.values), f"{peak:.2f} GB"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _bracket(values) -> str:
    b = bracket(values)
    return f"{b.median:.0f} [{b.low:.0f}, {b.high:.0f}]"


if __name__ == "__main__":
    print(table(sys.argv[1]))
