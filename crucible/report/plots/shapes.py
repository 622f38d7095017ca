"""Pictures of the benchmark's shapes: bytes that each kernel asks for, and measured times."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from crucible.evidence.statistics import bracket
from crucible.report.plots.style import BLUE, FAINT, GREEN, MUTED, ORANGE, RED, new, styled

_LOOKS = (
    (BLUE, "o"),
    (ORANGE, "s"),
    (GREEN, "D"),
    (RED, "^"),
    (MUTED, "|"),
)  # colour and marker: told apart without colour


def _rows(axes, names: Sequence[str], unit: str, columns: int) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=9.5)
    axes.set(xscale="log", xlabel=unit, ylim=(len(names) - 0.4, -0.7))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    figure = axes.get_figure()
    figure.legend(
        loc="outside upper center", ncols=columns, fontsize=9.5, handletextpad=0.3, columnspacing=1.2
    )


@styled
def bytes_read(found: Mapping[str, Mapping[str, int]]) -> Figure:
    """`found[shape][who]` bytes as dots on a log scale, one line a shape."""
    figure, axes = new(7.2, 0.27 * len(found) + 1.2)
    whos = list(next(iter(found.values())))
    for y, values in enumerate(found.values()):
        axes.plot([min(values.values()) / 1e6, max(values.values()) / 1e6], [y, y], color=FAINT, linewidth=3)
    for (tone, marker), who in zip(_LOOKS, whos, strict=False):
        axes.plot(
            [values[who] / 1e6 for values in found.values()],
            range(len(found)),
            marker,
            color=tone,
            markersize=6,
            label=who,
        )
    _rows(axes, list(found), "K and V asked for by one launch (MB, log scale)", 2)
    return figure


@styled
def times(found: Mapping[str, Mapping[str, Sequence[float]]], unit: str = "µs") -> Figure:
    """`found[shape][who]` samples: the median as a marker, minimum to maximum as a bar, log scale."""
    whos = list(dict.fromkeys(who for values in found.values() for who in values))
    figure, axes = new(7.2, 0.27 * len(found) + 1.2)
    for y, values in enumerate(found.values()):
        medians = [bracket(v).median for v in values.values()]
        axes.plot([min(medians), max(medians)], [y, y], color=FAINT, linewidth=3, zorder=1)
    for (tone, marker), who in zip(_LOOKS, whos, strict=False):
        held = [(y, bracket(values[who])) for y, values in enumerate(found.values()) if who in values]
        for y, b in held:
            axes.plot([b.low, b.high], [y, y], color=MUTED, linewidth=1.2, zorder=2)
        axes.plot(
            [b.median for _, b in held],
            [y for y, _ in held],
            marker,
            color=tone,
            markersize=6,
            label=who,
            zorder=3,
            linestyle="",
        )
    _rows(axes, list(found), f"one launch ({unit}, log scale; bars: minimum to maximum)", 2)
    return figure
