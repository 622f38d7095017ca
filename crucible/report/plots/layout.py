"""Pictures of paged K/V: physical pages, page tables, packed slices, and what each row may see."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle

from crucible.report.plots.style import FAINT, INK, MUTED, PAPER, SERIES, bare, new, styled, tint

PAGE_SIZE = 16


def colour(request: int) -> str:
    """The colour that request number `request` keeps in every picture."""
    return SERIES[request % len(SERIES)]


def _page(axes, x: float, y: float, width: float, request: int | None, label: str, fill: int, mark: int = -1):
    """One page as a strip of 16 slots, `fill` of them used; `mark` outlines one slot."""
    slot = width / PAGE_SIZE
    shade = colour(request) if request is not None else FAINT
    for i in range(PAGE_SIZE):
        face = shade if i < fill else (tint(shade, 0.22) if request is not None else PAPER)
        axes.add_patch(
            Rectangle((x + i * slot, y), slot, 0.62, facecolor=face, edgecolor=PAPER, linewidth=0.4)
        )
    axes.add_patch(Rectangle((x, y), width, 0.62, fill=False, edgecolor=shade, linewidth=1.1))
    if mark >= 0:
        axes.add_patch(
            Rectangle((x + mark * slot, y - 0.06), slot, 0.74, fill=False, edgecolor=INK, linewidth=2)
        )
    axes.text(x + width / 2, y + 0.68, label, ha="center", va="bottom", fontsize=8, color=MUTED)


def _pool(
    axes, owners: Sequence[tuple[int, int, int] | None], columns: int, mark=(-1, -1)
) -> dict[int, tuple]:
    """Draw a physical pool, owners[page] = (request, logical page, used slots) or None; page centres."""
    centres = {}
    rows = -(-len(owners) // columns)
    for page, owner in enumerate(owners):
        x, y = page % columns * 1.14, (rows - 1 - page // columns) * 1.15
        request, logical, fill = owner or (None, 0, 0)
        label = f"page {page}" if owner is None else f"page {page}: {name(request)}{logical}"
        _page(axes, x, y, 1.0, request, label, fill, mark[1] if mark[0] == page else -1)
        centres[page] = (x + 0.5, y + 0.31)
    axes.set(xlim=(-0.08, columns * 1.14), ylim=(-0.15, rows * 1.15))
    bare(axes)
    return centres


def name(request: int) -> str:
    """Requests are called A, B, C … in pictures and prose."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[request % 26]


def owners_of(
    tables: np.ndarray, lengths: Sequence[int], num_pages: int
) -> list[tuple[int, int, int] | None]:
    """Per physical page (request, logical page, used slots), or None for a free page.

    `tables` is int32 [requests][stride]; only the pages that `lengths` (positions) reach are read.
    """
    owners: list[tuple[int, int, int] | None] = [None] * num_pages
    for request, length in enumerate(lengths):
        for logical in range(-(-length // PAGE_SIZE)):
            used = min(PAGE_SIZE, length - logical * PAGE_SIZE)
            owners[int(tables[request, logical])] = (request, logical, used)
    return owners


@styled
def pools(maps: dict[str, np.ndarray], lengths: Sequence[int], num_pages: int, columns: int = 4) -> Figure:
    """Physical pools side by side, one per page map `{title: tables int32 [requests][stride]}`."""
    rows = -(-num_pages // columns)
    figure, axes = new(4.3 * len(maps), 0.55 * rows + 0.5, 1, len(maps), squeeze=False)
    for axis, (title, tables) in zip(axes[0], maps.items(), strict=True):
        _pool(axis, owners_of(tables, lengths, num_pages), columns)
        axis.set_title(title)
    return figure


@styled
def lookup(tables: np.ndarray, lengths: Sequence[int], num_pages: int, request: int, position: int) -> Figure:
    """From (request, position) through the page table to a physical page and slot."""
    columns = 4
    figure, (left, right) = new(8.6, 0.55 * -(-num_pages // columns) + 0.7, 1, 2, width_ratios=(1, 2))
    page_count = -(-lengths[request] // PAGE_SIZE)
    logical, slot = position >> 4, position & 15
    for i in range(page_count):
        y = page_count - 1 - i
        face = tint(colour(request), 0.5 if i == logical else 0.12)
        left.add_patch(Rectangle((0, y), 1, 0.86, facecolor=face, edgecolor=colour(request)))
        left.text(0.5, y + 0.43, f"table[{i}] = {int(tables[request, i])}", ha="center", va="center")
    left.set(xlim=(-0.1, 1.25), ylim=(-0.3, page_count + 0.1))
    left.set_title(f"Page table of request {name(request)}")
    bare(left)
    target = int(tables[request, logical])
    centres = _pool(right, owners_of(tables, lengths, num_pages), columns, (target, slot))
    right.set_title(
        f"position {position}: page table[{position} >> 4] = {target}, slot {position} & 15 = {slot}"
    )
    start, end = (1.0, page_count - 1 - logical + 0.43), (centres[target][0] - 0.5, centres[target][1])
    arrow = ConnectionPatch(
        start, end, "data", "data", axesA=left, axesB=right, arrowstyle="-|>", color=INK, lw=1.2
    )
    arrow.set_alpha(0.3)  # it may cross page labels, which must stay readable
    arrow.set_in_layout(False)  # the arrow must not change the layout it follows
    figure.add_artist(arrow)
    return figure


@styled
def packed(desc: np.ndarray, positions: np.ndarray, lengths: Sequence[int]) -> Figure:
    """Packed rows and their causal view: row t of the batch against the keys of its own request.

    `desc` int32 [S][4] (packed_start, chunk_len, absolute_start, table_index), `positions` int32 [T].
    """
    rows = len(positions)
    figure, (top, axes) = new(8.6, 4.3, 2, 1, height_ratios=(1, 4), sharex=True)
    for start, count, absolute, request in desc.tolist():
        last = absolute + count - 1
        top.add_patch(
            Rectangle((start, 0), count, 1, facecolor=colour(request), edgecolor=PAPER, linewidth=1.5)
        )
        text = f"{name(request)}  {absolute}…{last}" if count > 2 else name(request)
        white = dict(ha="center", va="center", color=PAPER, fontweight="bold", fontsize=8.5, clip_on=True)
        top.text(start + count / 2, 0.5, text, **white)
        for t in range(start, start + count):
            seen = int(positions[t]) + 1
            axes.bar(t + 0.5, seen, 0.92, color=tint(colour(request), 0.45))
            axes.bar(t + 0.5, 1, 0.92, bottom=seen - 1, color=colour(request))
        axes.hlines(lengths[request], start, start + count, color=INK, linewidth=1.0, linestyle=(0, (2, 2)))
    top.set(ylim=(0, 1))
    bare(top)
    top.set_title("One batch of packed rows: each segment is a slice of one request (absolute positions)")
    axes.set(xlim=(0, rows), xlabel="packed row t", ylabel="keys j the row attends to")
    axes.set_title(
        "Row at position P sees keys 0 … P of its own request, and nothing else (dotted: request length)"
    )
    axes.grid(axis="x", visible=False)
    return figure
