"""Pictures of service measurements: changes with their intervals, and a sweep's trade-off."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from crucible.bench.ab_statistics import Row
from crucible.bench.sweep import Trade, labelled
from crucible.report.plots.style import BLUE, GREEN, INK, MUTED, RED, SERIES, new, styled, tint
from crucible.service.load.samples import Sample

_TONES = {"improved": GREEN, "worse": RED}


@styled
def arrivals(burst: Sequence[Sample]) -> Figure:
    """Every token of a burst as a mark when it came, a line a request; its bar ends at the first."""
    figure, axes = new(8.6, 0.9 + 0.45 * len(burst))
    zero = min(s.sent for s in burst)
    for line, (sample, tone) in enumerate(zip(burst, SERIES * len(burst), strict=False)):
        since = 1e3 * (sample.sent - zero)
        axes.barh(line, 1e3 * sample.ttft, left=since, height=0.3, color=tint(tone, 0.3), edgecolor="none")
        came = [1e3 * (at - zero) for at in sample.times]
        axes.plot(came, [line] * len(came), "|", markersize=9, color=tone)
    names = [f"{s.prompt_tokens} tokens" for s in burst]
    axes.set(yticks=range(len(burst)), yticklabels=names, xlabel="ms since the first request was sent")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


@styled
def changes(rows: Sequence[Row], candidate: str) -> Figure:
    """Every pair's gain as a dot, the median's interval as a bar, a line a workload and metric."""
    figure, axes = new(8.6, 1.0 + 0.32 * len(rows))
    for line, row in enumerate(rows):
        sign = 1 if row.metric.higher else -1
        low, high = sorted((sign * row.interval.low, sign * row.interval.high))
        tone = _TONES.get(row.outcome(), MUTED)
        axes.plot(row.gains, [line] * len(row.gains), "o", markersize=2.5, alpha=0.35, color=tone)
        reach = [[row.gain - low], [high - row.gain]]
        axes.errorbar(row.gain, line, xerr=reach, fmt="o", color=tone, capsize=3)
    axes.axvline(0, color=INK, linewidth=0.8)
    names = [f"{row.workload}  {row.metric.name}" for row in rows]
    axes.set(yticks=range(len(rows)), yticklabels=names, xlabel=f"gain of {candidate}, % (right is better)")
    axes.invert_yaxis()
    return figure


@styled
def tradeoff(found: Sequence[Trade], workload: str) -> Figure:
    """Arrival TTFT against the running stream's worst gap, a point a policy with the range of its rounds.

    A policy in whose bursts no gap was left to measure has no point.
    """
    figure, axes = new(8.6, 4.2)
    found = [trade for trade in found if (workload, "stream gap worst") in trade.own]
    shapes = "osD^vP*X"
    for i, trade in enumerate(found):
        x, y = (trade.own[workload, name] for name in ("TTFT p50", "stream gap worst"))
        axes.errorbar(
            x.median,
            y.median,
            xerr=[[x.median - x.low], [x.high - x.median]],
            yerr=[[y.median - y.low], [y.high - y.median]],
            fmt=shapes[i % len(shapes)],
            color=BLUE if i == 0 else SERIES[1:][i % (len(SERIES) - 1)],
            markersize=9 if i == 0 else 6,
            capsize=2,
            label=labelled(trade.policy),
        )
    axes.set(xlabel="TTFT p50 of those who arrive, ms", ylabel="worst gap of the running stream, ms")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if found:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
