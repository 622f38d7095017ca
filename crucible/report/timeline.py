"""The picture of a step timeline: prompt rows, decode rows and pages of an engine, step by step."""

from pathlib import Path

from crucible.errors import InputError
from crucible.evidence.record import Record


def draw(record: Record, path: Path) -> Path:
    """Draw the timeline that an engine gate's record holds and write it (suffix: svg, png or pdf)."""
    from matplotlib.figure import Figure

    series = {s.name: s.values for s in record.samples}
    wanted = ("prefill rows a step", "decode rows a step", "pages in use", "pages cached", "requests waiting")
    missing = [name for name in wanted if name not in series]
    if missing:
        raise InputError(f"record {record.kind!r} holds no {missing[0]!r}; it has no step timeline")
    prefill, decode, used, cached, waiting = (series[name] for name in wanted)
    steps = range(len(prefill))
    figure = Figure(figsize=(9, 5), layout="constrained")
    rows, pages = figure.subplots(2, 1, sharex=True)
    rows.bar(steps, prefill, width=1.0, color="#4c72b0", label="prompt rows")
    rows.set_ylabel("prompt rows")
    beside = rows.twinx()
    beside.step(steps, decode, where="mid", color="#c44e52", label="decode rows")
    beside.step(steps, waiting, where="mid", color="#8c8c8c", linestyle=":", label="requests waiting")
    beside.set_ylabel("decode rows, requests")
    handles = [*rows.get_legend_handles_labels()[0], *beside.get_legend_handles_labels()[0]]
    rows.legend(handles=handles, loc="upper right")
    pages.stackplot(
        steps, used, cached, colors=["#55a868", "#cfe8d5"], labels=["in use", "cached"], step="mid"
    )
    pages.set_ylabel("pages")
    pages.set_xlabel("step")
    pages.legend(loc="lower right")
    rows.set_title(record.kind.removeprefix("engine gate: ") + ", requests under page pressure")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
