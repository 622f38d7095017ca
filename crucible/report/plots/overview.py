"""The README's picture: arrangements of one request as rows, devices as columns, digests in the cells."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from crucible.report.cases import Case
from crucible.report.plots.layout import owners_of
from crucible.report.plots.style import BLUE, FAINT, GREEN, INK, MUTED, PAPER, RED, bare, new, styled, tint

_OTHERS = ("#b9c2cc", "#cfd6dd", "#a5b0bb")
_ROWS_AT, _ROWS_WIDE, _PAGES_AT, _PAGES_WIDE, _CELLS_AT, _CELL_WIDE = 2.1, 3.3, 5.75, 2.0, 8.05, 1.25


def _shade(request: int) -> str:
    return BLUE if request == 0 else _OTHERS[(request - 1) % len(_OTHERS)]


def _packed_rows(axes, y: float, case: Case, longest: int) -> None:
    unit = _ROWS_WIDE / longest
    for start, count, _, request in case.desc.tolist():
        width = max(count * unit - 0.03, unit * 0.55)
        place = (_ROWS_AT + start * unit, y + 0.2)
        axes.add_patch(Rectangle(place, width, 0.4, facecolor=_shade(request), edgecolor="none"))


def _pages(axes, y: float, case: Case, lengths: Sequence[int], num_pages: int) -> None:
    unit = _PAGES_WIDE / num_pages
    for page, owner in enumerate(owners_of(case.tables, lengths, num_pages)):
        x = _PAGES_AT + page * unit
        axes.add_patch(
            Rectangle((x, y + 0.2), unit - 0.04, 0.4, facecolor=PAPER, edgecolor=FAINT, linewidth=1)
        )
        if owner is not None:
            request, logical, used = owner
            width = (unit - 0.04) * used / 16
            axes.add_patch(Rectangle((x, y + 0.2), width, 0.4, facecolor=_shade(request), edgecolor="none"))
            if request == 0:
                axes.text(
                    x + 0.035, y + 0.4, str(logical), va="center", color=PAPER, fontsize=7, weight="bold"
                )


@styled
def overview(
    arrangements: Mapping[str, Case],
    digests: Mapping[str, Mapping[str, str]],
    lengths: Sequence[int],
    num_pages: int,
) -> Figure:
    """`digests[device][arrangement]`; the followed request is number 0, drawn in blue."""
    wide = _CELLS_AT + _CELL_WIDE * len(digests)
    figure, axes = new(wide, 0.62 * len(arrangements) + 1.75)
    longest = max(len(case.positions) for case in arrangements.values())
    everything = {d for found in digests.values() for d in found.values()}
    tone = GREEN if len(everything) == 1 else RED
    top = float(len(arrangements))
    axes.text(0, top + 1.15, "One request, one set of bits", fontsize=15, weight="bold", va="center")
    subtitle = "digest of its attention output, whatever the batch, the chunking, the pages and the device"
    axes.text(0, top + 0.72, subtitle, fontsize=10.5, color=MUTED, va="center")
    heads = {_ROWS_AT: "packed rows", _PAGES_AT: "K/V pages in memory"}
    heads |= {_CELLS_AT + i * _CELL_WIDE: name for i, name in enumerate(digests)}
    for x, text in heads.items():
        axes.text(x, top + 0.2, text, fontsize=9.5, color=MUTED, va="center")
    for i, (name, case) in enumerate(arrangements.items()):
        y = top - 1 - i
        axes.plot([0, wide - 0.1], [y + 0.9, y + 0.9], color=FAINT, linewidth=0.8)
        axes.text(0, y + 0.4, name, va="center", fontsize=10.5)
        _packed_rows(axes, y, case, longest)
        _pages(axes, y, case, lengths, num_pages)
        for column, found in enumerate(digests.values()):
            x = _CELLS_AT + column * _CELL_WIDE
            text = found.get(name, "")
            axes.text(x, y + 0.4, text[:8], va="center", fontsize=10, family="DejaVu Sans Mono", color=INK)
    box = dict(boxstyle="round,pad=0.06,rounding_size=0.12", facecolor=tint(tone, 0.14), edgecolor=tone)
    axes.add_patch(FancyBboxPatch((0.05, -0.62), wide - 0.3, 0.42, linewidth=1.3, **box))
    total = len(arrangements) * len(digests)
    verdict = f"{total} runs, {len(everything)} digest{'s' * (len(everything) != 1)}: "
    axes.text(0.2, -0.41, verdict, va="center", fontsize=10.5, weight="bold", color=INK)
    shown = "  ".join(sorted(everything)[:2])
    axes.text(_ROWS_AT, -0.41, shown, va="center", fontsize=10.5, family="DejaVu Sans Mono", color=INK)
    axes.set(xlim=(-0.1, wide), ylim=(-0.8, top + 1.5))
    bare(axes)
    return figure
