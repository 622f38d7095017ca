"""A picture of where a pass spends its time: its stages as parts of a bar."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from crucible.evidence import record
from crucible.report.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    YELLOW,
    new,
    styled,
)
from crucible.report.speeds import STAGE, brackets

EMPTY = "empty interval"
# Part of the picture: its colour, and the stages that it holds, fused or not, in the order of a pass.
PARTS = {
    "norms": (SKY, ("norm", "norm+quantize")),
    "q, k, v": (BLUE, ("qkv", "norm+qkv")),
    "rope, K/V store": (PURPLE, ("rope", "kv_store", "rope+kv_store")),
    "attention": (RED, ("attention",)),
    "o": (YELLOW, ("o", "residual", "o+residual")),
    "gate, up": (GREEN, ("gate_up", "norm+gate_up")),
    "SwiGLU": (MUTED, ("swiglu", "swiglu+quantize")),
    "down": (ORANGE, ("down", "down+residual", "swiglu+down+residual")),
}
REST = "embedding, head, argmax"


def profiles(path: Path | str) -> dict[str, dict[str, float]]:
    """{profile: {stage: median microseconds}} of a record bench.stages; empty without one."""
    found: dict[str, dict[str, float]] = {}
    if not Path(path).is_file():
        return found
    for item in (r for r in record.load(path) if r.kind == "bench.stages"):
        for (title, name), taken in brackets(item).items():
            if name.startswith(STAGE):
                found.setdefault(title, {})[name.removeprefix(STAGE)] = taken.median
    return found


def parts(stages: Mapping[str, float]) -> dict[str, float]:
    """Microseconds of each of PARTS and of the rest; the empty interval belongs to none."""
    of = {stage: part for part, (_, names) in PARTS.items() for stage in names}
    sums = dict.fromkeys((*PARTS, REST), 0.0)
    for stage, spent in stages.items():
        if stage != EMPTY:
            sums[of.get(stage, REST)] += spent
    return sums


@styled
def stages(found: Mapping[str, Mapping[str, float]]) -> Figure:
    """One bar a profile, in shares of the sum of its stages, the sum in microseconds beside it."""
    figure, axes = new(7.2, 0.42 * len(found) + 1.3)
    sums = {title: parts(one) for title, one in found.items()}
    tones: Sequence[tuple[str, str]] = [(part, tone) for part, (tone, _) in PARTS.items()] + [(REST, FAINT)]
    left = dict.fromkeys(sums, 0.0)
    for part, tone in tones:
        shares = [100 * one[part] / sum(one.values()) for one in sums.values()]
        axes.barh(range(len(sums)), shares, left=list(left.values()), color=tone, height=0.62, label=part)
        for y, (title, share) in enumerate(zip(sums, shares, strict=True)):
            if share >= 7:
                axes.text(left[title] + share / 2, y, f"{share:.0f}", ha="center", va="center", fontsize=8.5)
            left[title] += share
    totals = [f"{title}\n{sum(one.values()):,.0f} µs" for title, one in sums.items()]
    axes.set_yticks(range(len(sums)), totals, fontsize=9)
    axes.set(xlim=(0, 100), ylim=(len(sums) - 0.5, -0.5), xlabel="share of the stages' sum (%)")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=5, fontsize=9, handlelength=1.1, columnspacing=1.2)
    return figure
