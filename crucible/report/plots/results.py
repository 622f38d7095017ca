"""Pictures of evidence: how much was compared with what verdict, and measured samples as brackets."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from crucible.evidence.record import Record, Series
from crucible.evidence.statistics import bracket
from crucible.report.plots.style import BLUE, GREEN, MUTED, RED, SERIES, new, styled
from crucible.report.verdicts import BY_TIMES, said

VERDICT_COLOURS = {"pass": GREEN, "fail": RED, "measured": BLUE, BY_TIMES: BLUE}
_MARKS = {"pass": "✓", "fail": "✗", "measured": "·", BY_TIMES: "·"}


def _folded(text: str, width: int = 46) -> str:
    """`text` on at most two lines."""
    return "\n".join(textwrap.wrap(text, width, max_lines=2, placeholder=" …"))


@styled
def compared(records: Sequence[Record]) -> Figure:
    """One bar a record: compared elements (log scale), coloured by verdict, differing elements beside it."""
    shown = [r for r in records if r.elements]
    figure, axes = new(8.6, 0.8 + 0.52 * max(len(shown), 1))
    for y, item in enumerate(reversed(shown)):
        word = said(item)
        tone = VERDICT_COLOURS[word]
        axes.barh(y, item.elements, color=tone, height=0.62)
        note = f" {_MARKS[word]} {item.elements:,} compared, {item.differing:,} differ"
        axes.text(item.elements, y, note, va="center", fontsize=8.5)
    axes.set_yticks(range(len(shown)), [_folded(r.claim) for r in reversed(shown)])
    axes.set(xscale="log", xlabel="compared elements (log scale)")
    top = max((r.elements for r in shown), default=10)
    axes.set_xlim(1, float(top) ** 1.8)  # room for the words beside the longest bar
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure


@styled
def brackets(series: Sequence[Series]) -> Figure:
    """Every raw sample of series of one unit, with the median and the minimum-maximum bracket."""
    figure, axes = new(8.6, 0.9 + 0.42 * len(series))
    for y, item in enumerate(reversed(series)):
        seen = bracket(item.values)
        axes.plot([seen.low, seen.high], [y, y], color=MUTED, linewidth=5, alpha=0.35, solid_capstyle="round")
        axes.plot(item.values, [y] * len(item.values), "o", color=BLUE, markersize=4, alpha=0.6)
        axes.plot([seen.median], [y], "|", color=RED, markersize=15, markeredgewidth=2.2)
        axes.annotate(
            f"{seen.median:.4g}",
            (seen.median, y),
            (0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(series)), [_folded(s.name) for s in reversed(series)])
    unit = series[0].unit
    axes.set(
        xlabel=f"{unit} (dots: samples; bar: minimum to maximum; tick: median)",
        ylim=(-0.6, len(series) - 0.3),
    )
    values = [v for one in series for v in one.values]
    if min(values) > 0 and max(values) > 30 * min(values):
        axes.set(xscale="log", xlabel=axes.get_xlabel() + ", log scale")
    else:
        axes.set_xlim(left=min(0, *values))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure


@styled
def trade_offs(found: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """{policy: (arrival TTFT, worst gap)} samples in ms: medians as points, minimum to maximum as bars."""
    figure, axes = new(8.6, 4.2)
    for (policy, both), tone in zip(found.items(), itertools.cycle(SERIES), strict=False):
        x, y = (bracket(values) for values in both)
        spans = [[[b.median - b.low], [b.high - b.median]] for b in (x, y)]
        look = dict(fmt="o", color=tone, capsize=3, label=policy)
        axes.errorbar(x.median, y.median, xerr=spans[0], yerr=spans[1], **look)
    axes.set(xlabel="TTFT of the arriving request (ms)", ylabel="worst gap of the running stream (ms)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
