"""Pictures of drift: the CDF around a draw, flip mass against gaps, growth by layer, rates with intervals."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from crucible.drift.cdf import DRAWS, Ladder
from crucible.drift.tensors import Growth
from crucible.evidence.statistics import Interval
from crucible.report.plots.style import BLUE, INK, MUTED, ORANGE, RED, SERIES, new, styled, tint


@styled
def around(a: Ladder, b: Ladder, u: float, label, ranks: int = 3) -> Figure:
    """The tokens of both paths' CDFs around the draw u; `label(token)` names a token."""
    figure, axes = new(8.6, 2.4)
    centre = a.rank_at(u)
    first, last = max(centre - ranks, 0), min(centre + ranks, a.edges.size - 1)
    low, high = a.interval(first)[0], a.interval(last)[1]
    for row, (one, tone) in enumerate(((b, ORANGE), (a, BLUE))):
        starts = np.concatenate(([0], one.edges[:-1])) / DRAWS
        for token, x, end in zip(one.ids.tolist(), starts, one.edges / DRAWS, strict=True):
            x, end = max(x, low), min(end, high)
            if end <= x:
                continue
            hit = x <= u < end
            axes.barh(
                row, end - x, left=x, height=0.7, color=tint(tone, 0.6 if hit else 0.2), edgecolor="white"
            )
            if end - x > (high - low) / 40:
                axes.text((x + end) / 2, row, label(token), ha="center", va="center", fontsize=8, color=INK)
    axes.axvline(u, color=RED, linewidth=1.4)
    axes.set(xlim=(low, high), xlabel="u", yticks=(0, 1), yticklabels=("candidate", "reference"))
    axes.grid(False)
    axes.set_title(f"the draw {u:.6f} (red) and the tokens around it")
    return figure


@styled
def gaps(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Flip mass of each step against the smallest gap between neighbouring kept logits, per candidate."""
    figure, axes = new(8.6, 3.0)
    for (name, points), tone in zip(pairs.items(), SERIES, strict=False):
        x, y = np.array(points, float).reshape(-1, 2).T
        axes.loglog(
            np.maximum(x, 1e-7), np.maximum(y, 1e-9), "o", markersize=3, alpha=0.6, color=tone, label=name
        )
    axes.set(xlabel="smallest gap of neighbouring ranks (logits)", ylabel="flip mass of the step")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_title("a step flips easily where two ranks nearly tie")
    return figure


@styled
def growth(grown: Growth) -> Figure:
    """Relative norm of the difference after each layer of one step."""
    figure, axes = new(8.6, 2.8)
    for op, tone in (("attn", BLUE), ("after_attn", ORANGE), ("after_ffn", RED)):
        rows = [(layer, norm) for layer, _, norm in grown.of(op) if norm > 0]
        if rows:
            x, y = zip(*rows, strict=True)
            axes.semilogy(x, y, "o-", markersize=3, color=tone, label=op)
    axes.set(xlabel="layer", ylabel="|difference| / |reference|")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_title("the difference through the layers")
    return figure


@styled
def rates(found: Mapping[str, Mapping[str, Interval]]) -> Figure:
    """{candidate: {sampler: flip mass a token with its interval}} as points with bars."""
    figure, axes = new(8.6, 0.9 + 0.5 * len(found))
    for row, samplers in enumerate(found.values()):
        for (name, at), tone, shift in zip(samplers.items(), (BLUE, ORANGE), (0.13, -0.13), strict=False):
            error = [[max(at.estimate - at.low, 0)], [max(at.high - at.estimate, 0)]]
            text = name if row == 0 else None
            axes.errorbar(at.estimate, row + shift, xerr=error, fmt="o", color=tone, capsize=3, label=text)
    axes.set_xscale("log")
    axes.set(yticks=range(len(found)), yticklabels=list(found), xlabel="flip mass a token, 95 % interval")
    axes.set_ylim(-0.5, len(found) - 0.5)
    axes.tick_params(axis="y", color=MUTED)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
