"""Tables of README.md from committed records; `python -m crucible.report.readme` writes them there."""

import re
from pathlib import Path

from crucible.errors import InputError
from crucible.evidence import record
from crucible.evidence.statistics import bracket

PAIRS = (("crucible f32", "torch f32"), ("crucible int8", "torch int8"))
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


def linear(path: Path | str) -> str:
    """Markdown: by rows of a linear layer, the range over all layers of our speed over torch's.

    Each ratio is the median over the rounds; above 1 ours is faster. Raises InputError without a record.
    """
    facts = next((r.facts for r in record.load(path) if r.kind == "bench.linear"), None)
    if facts is None:
        raise InputError(f"{path} holds no record bench.linear; run: crucible bench linear --against torch")
    rows = [("rows", *(f"{a} / {b}" for a, b in PAIRS)), ("---:",) * (len(PAIRS) + 1)]
    ratios: dict[tuple[int, tuple[str, str]], list[float]] = {}
    for name, value in facts.items():
        if found := re.fullmatch(r"\S+ \S+ (\d+)x\d+x\d+: (.+) / (.+), median ratio", name):
            ratios.setdefault((int(found[1]), (found[2], found[3])), []).append(float(value))
    for count in sorted({count for count, _ in ratios}):
        spans = (ratios.get((count, pair), []) for pair in PAIRS)
        rows.append((str(count), *(f"{min(s):.2f} to {max(s):.2f}" if s else "not measured" for s in spans)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


SHAPES = ("single-64", "single-256", "4x256", "2x512", "single-1024", "scheduled-4x512-second")
MORE = {
    "bench.attention-geometry": ("2x512 at 9/3/64", "2x512 at 24/3/64", "2x512 at 12/3/128"),
    "bench.attention-decode": ("decode-16x1000 at 12/3/64", "decode-64x1000 at 12/3/64"),
}
AGAINST = ("reference", "exact-q4-k64", "torch SDPA efficient")


def attention(path: Path | str) -> str:
    """Markdown: a line a shape with microseconds of auto and how many times longer the others take.

    Rows of parts that the file does not hold are left out. Raises InputError without bench.attention.
    """
    kinds = {r.kind: r for r in record.load(path)}
    if "bench.attention" not in kinds:
        raise InputError(
            f"{path} holds no record bench.attention; run: crucible bench attention --device cuda --full"
        )
    rows = [("shape", "auto, us", *AGAINST), ("---", *("---:" for _ in range(1 + len(AGAINST))))]
    for kind, shapes in {"bench.attention": SHAPES, **MORE}.items():
        facts = kinds[kind].facts if kind in kinds else {}
        for shape in shapes:
            median = {n: facts.get(f"{shape}: {n}, median us") for n in ("auto", *AGAINST)}
            if median["auto"] is None:
                continue
            ratios = (f"{t / median['auto']:.1f}x" if (t := median[n]) else "-" for n in AGAINST)
            rows.append((shape, f"{median['auto']:.1f}", *ratios))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _bracket(values, digits: int = 1) -> str:
    """Whole numbers, or as many digits as small numbers need."""
    b = bracket(values)
    median, low, high = (
        f"{x:.{digits}g}" if x < 10 ** (digits - 1) else f"{x:.0f}" for x in (b.median, b.low, b.high)
    )
    return f"{median} [{low}, {high}]"


_MODEL = "prefill 4x256, device", "decode of 16 requests, 16 + 16 tokens, wall"
_PEERS = {
    "crucible f32": ("crucible f32",),
    "crucible int8": ("crucible int8",),
    "transformers f32": ("transformers f32", "transformers f32 generate", "transformers"),
    "transformers f32, static cache, compiled": (
        "transformers f32, static cache, compiled step in a loop of ours",
    ),
}


def model_gpu(model: Path | str, engine: Path | str) -> str:
    """Markdown: a pass, a decode loop and the engine on a GPU beside transformers, median [minimum, maximum].

    From the records bench.model-cuda and bench.engine; raises InputError where one is missing.
    """
    rows = [("", *_PEERS), ("---", *("---:",) * len(_PEERS))]
    for path, kind in ((model, "bench.model-cuda"), (engine, "bench.engine")):
        found = next((r for r in record.load(path) if r.kind == kind), None)
        if found is None:
            raise InputError(f"{path} holds no record {kind}; run: crucible {kind[:12].replace('.', ' ')}")
        series = {tuple(one.name.rsplit(": ", 1)): one for one in found.samples}
        titles = _MODEL if kind == "bench.model-cuda" else dict.fromkeys(title for title, _ in series)
        for title in titles:
            cells = [
                next((series[title, name] for name in names if (title, name) in series), None)
                for names in _PEERS.values()
            ]
            unit = next(one.unit for one in cells if one)
            label = title if kind == "bench.model-cuda" else f"engine, {title}"
            label = label.replace(" on cuda, synthetic-12x768", "")
            rows.append((f"{label}, {unit}", *(_bracket(c.values, 3) if c else "" for c in cells)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


SAMPLERS = ("inverse-cdf", "gumbel-id")
_CHANGED, _MASS = "sequences that change", "flip mass a token, "


def drift(path: Path | str) -> str:
    """Markdown: a line a candidate that differs: sequences that change and flip mass, by sampler.

    Candidates of equal masses (the online tiles of the same keys) share a line. Raises InputError without
    the drift gate's records.
    """
    found: dict[str, dict[str, dict]] = {}
    for one in record.load(path):
        candidate, comma, sampler = one.kind.removeprefix("drift: ").rpartition(", ")
        if comma and one.differing:
            found.setdefault(candidate, {})[sampler] = one.facts
    if not found:
        raise InputError(f"{path} holds no record of the drift gate; run: crucible gate drift --json FILE")
    rows = [
        (
            "candidate",
            *(f"sequences that change, {s}" for s in SAMPLERS),
            *(f"flip mass a token, {s}" for s in SAMPLERS),
        )
    ]
    rows.append(("---", *("---:",) * 4))
    alike: dict[tuple, list[str]] = {}
    for candidate, by in found.items():
        changed = (f"{by[s][_CHANGED]} of {by[s]['sequences']}" if s in by else "" for s in SAMPLERS)
        first = next(iter(by.values()))
        masses = (f"{float(str(first[_MASS + s]).split(',')[0]):.2g}" for s in SAMPLERS)
        alike.setdefault((*changed, *masses), []).append(candidate)
    rows += [(_together(names), *cells) for cells, names in alike.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _together(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more of the same bits"


def service_ab(f32: Path | str, int8: Path | str) -> str:
    """Markdown: a line a workload with what `auto` changes beside the reference, in f32 and in int8.

    Medians of the pairs' changes in per cent with their interval, and whether they are resolved; a cell is
    empty where a workload was not run.
    InputError where a file holds no record service-ab.
    """
    columns = [(mode, metric) for mode in ("f32", "int8") for metric in ("TTFT p50", "throughput")]
    rows = [
        ("at once", *(f"{metric}, {mode}" for mode, metric in columns)),
        ("---",) + ("---:",) * len(columns),
    ]
    facts = {}
    for mode, path in (("f32", f32), ("int8", int8)):
        found = [r.facts for r in record.load(path) if r.kind == "service-ab" and r.facts.get("mode") == mode]
        if not found:
            raise InputError(f"{path} holds no record service-ab in {mode}; run: crucible ab --mode {mode}")
        facts[mode] = found[-1]
    names = [name.partition(", TTFT p50, change")[0] for name in facts["f32"] if ", TTFT p50, change" in name]
    for name in names:
        cells = [_change(facts[mode], f"{name}, {metric}") for mode, metric in columns]
        rows.append((name, *cells))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _change(facts: dict, metric: str) -> str:
    if f"{metric}, change %" not in facts:
        return ""
    low, high = re.findall(r"[-+.\d]+", facts[f"{metric}, interval %"])
    change = f"{float(facts[f'{metric}, change %']):+.0f} % [{float(low):+.0f}, {float(high):+.0f}]"
    return f"{change}, not resolved" if facts[f"{metric}, outcome"] == "not resolved" else change
