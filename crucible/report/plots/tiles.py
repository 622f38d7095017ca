"""Pictures of the tiled kernels: who reads what, the tile, the virtual warps, the tree in one thread."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from crucible.report.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    SERIES,
    bare,
    new,
    styled,
    tint,
)
from crucible.report.tiles import leaf_order


@styled
def readers(rows: int, group: int, tile_rows: int) -> Figure:
    """Readers of one KV head as bars over the keys they read, rows from position 0: the area is the bytes."""
    tiles = range(0, rows, tile_rows)
    single = [(row + 1, head) for row in range(rows) for head in range(group)]
    shared = [min(first + tile_rows, rows) for first in tiles]
    figure, axes = new(7.2, 0.052 * (len(single) + len(shared)) + 1.25)
    for y, (keys, head) in enumerate(single):
        axes.barh(y, keys, 0.92, align="edge", color=tint(BLUE, (1.0, 0.55)[head % 2]))
    below = len(single) + 4
    for y, keys in enumerate(shared):
        axes.barh(below + y, keys, 0.92, align="edge", color=ORANGE)
    sums = sum(keys for keys, _ in single), sum(shared)
    notes = (
        (rows * 0.56, 8, f"reference: one reader for each row and head\n{sums[0]} positions read"),
        (rows * 1.03, below + len(shared) / 2, f"tiles of {tile_rows} rows x {group} heads:\n{sums[1]} read"),
    )
    for x, y, text in notes:
        axes.text(x, y, text, va="center", fontsize=10.5)
    axes.set(xlim=(0, rows * 1.45), ylim=(below + len(shared) + 0.5, -0.5), xlabel="key position j")
    axes.set_ylabel("reader")
    axes.set_xticks(range(0, rows + 1, 4))
    axes.tick_params(left=False, labelleft=False)
    axes.grid(False)
    return figure


@styled
def tile(rows: int, group: int, keys: int, history: int) -> Figure:
    """One tile: pages staged once in shared memory, and the scores each warp (row, head) takes from it.

    `history` is the number of keys that the first of the adjacent rows sees, less than `keys`.
    """
    pages = [(7, 2, 9, 4, 11, 5)[i % 6] for i in range(keys // 16)]
    figure, axes = new(7.2, 4.2)
    for i, page in enumerate(pages):
        tone = SERIES[i % len(SERIES)]
        for slot in range(16):
            for y in (1.2, 3.3):
                face = tint(tone, 0.75 if y < 2 else 0.4)
                axes.add_patch(Rectangle((i * 16 + slot, y), 0.92, 1, facecolor=face, edgecolor=PAPER))
        axes.text(i * 16 + 8, 4.45, f"page {page}", ha="center", va="bottom", color=MUTED, fontsize=9.5)
        axes.annotate(
            "", (i * 16 + 8, 2.25), (i * 16 + 8, 3.25), arrowprops=dict(arrowstyle="-|>", color=MUTED)
        )
    axes.text(-1, 3.8, "pool", ha="right", va="center")
    axes.text(-1, 1.7, "shared tile", ha="right", va="center")
    top = 0.3
    for row in range(rows):
        for head in range(group):
            y = top - row * (group * 0.62 + 0.5) - head * 0.62
            for j in range(keys):
                seen = j < history + row
                axes.add_patch(
                    Rectangle(
                        (j, y - 0.5), 0.92, 0.5, facecolor=tint(BLUE, 0.6) if seen else FAINT, edgecolor=PAPER
                    )
                )
            axes.text(keys + 0.8, y - 0.25, f"warp {row * group + head}", va="center", fontsize=8.5)
        y = top - row * (group * 0.62 + 0.5) - group * 0.31
        axes.text(-1, y, f"row {row}\n{group} heads", ha="right", va="center", fontsize=9.5)
    bottom = top - rows * (group * 0.62 + 0.5)
    axes.text(
        0, bottom - 0.1, f"keys of the tile, j = 0 … {keys - 1}; grey: beyond the row, dropped", va="top"
    )
    axes.set(xlim=(-9, keys + 7), ylim=(bottom - 1.1, 5.5))
    bare(axes)
    return figure


@styled
def virtual_warps(length: int) -> Figure:
    """Sums of weights over `length` keys in blocks of 32: eight warps at once, and one warp after another."""
    blocks = -(-length // 32)
    figure, (left, right) = new(7.2, 3.9, 2, 1, height_ratios=(8, 2.2))

    def block(axes, x, y, number):
        tone, ink = tint(SERIES[number % 8 % 4], 0.75 if number % 8 < 4 else 0.35), INK
        axes.add_patch(Rectangle((x + 0.03, y + 0.06), 0.94, 0.88, facecolor=tone, edgecolor=PAPER))
        text = f"{32 * number}…{min(32 * number + 31, length - 1)}"
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7.6, color=ink)

    rounds = -(-blocks // 8)
    for number in range(blocks):
        block(left, number // 8 * 1.0, 7 - number % 8, number)
    for warp in range(8):
        left.text(-0.08, 7.5 - warp, f"warp {warp}", ha="right", va="center", fontsize=9)
    left.set(xlim=(-0.9, max(blocks, 8) + 0.05), ylim=(-0.1, 8.1))
    left.set_title("Reference: eight warps, each adds its blocks of keys")
    sequence = [n for warp in range(8) for n in range(warp, blocks, 8)]
    for x, number in enumerate(sequence):
        block(right, x, 0.4, number)
    right.text(-0.08, 0.9, "one warp", ha="right", va="center", fontsize=9)
    right.annotate("", (len(sequence), 0.2), (0, 0.2), arrowprops=dict(arrowstyle="-|>", color=MUTED))
    right.text(len(sequence) / 2, 0.05, "time", ha="center", va="top", color=MUTED, fontsize=9)
    right.set(xlim=(-0.9, max(blocks, 8) + 0.05), ylim=(-0.6, 1.6))
    right.set_title("Tile: one warp stands for all eight, one after another")
    left.text(rounds + 0.4, 4, "then tree32 over a warp's 32 lanes,\nthen tree32 over the eight sums:\n"
              "the same in both pictures", va="center", fontsize=10)  # fmt: skip
    for axes in (left, right):
        bare(axes)
    return figure


@styled
def tree_in_a_thread(lanes: int = 8) -> Figure:
    """The same tree twice: additions numbered by the step of a warp, and by the order of one thread."""
    leaves = leaf_order(lanes)
    levels = lanes.bit_length() - 1
    figure, axes = new(7.2, 3.1, 1, 2)
    titles = (
        f"{lanes} threads: {levels} steps, a shuffle each",
        f"1 thread: {lanes - 1} additions, no shuffle",
    )
    for index, axis in enumerate(axes):
        centres = [float(x) for x in range(lanes)]
        for x, lane in enumerate(leaves):
            axis.text(x, -0.12, f"p{lane}", ha="center", va="top", fontsize=9.5)
        for level in range(1, levels + 1):
            joined = []
            for pair in range(lanes >> level):
                a, b = centres[2 * pair], centres[2 * pair + 1]
                x = (a + b) / 2
                for child in (a, b):
                    axis.plot([child, x], [level - 1, level], color=MUTED, linewidth=1.1, zorder=1)
                last_leaf = (pair + 1) * 2**level - 1
                label = level if index == 0 else last_leaf - bin(last_leaf).count("1") + level
                tone = (GREEN, ORANGE)[index]
                axis.plot([x], [level], "o", markersize=17, color=tint(tone, 0.55), zorder=2)
                axis.text(x, level, str(label), ha="center", va="center", fontsize=9.5, zorder=3)
                joined.append(x)
            centres = joined
        axis.set(xlim=(-0.6, lanes - 0.4), ylim=(-0.55, levels + 0.4))
        axis.set_title(titles[index])
        bare(axis)
    return figure


@styled
def tolerance(
    reference: np.ndarray, errors: dict[str, np.ndarray], absolute: float, relative: float
) -> Figure:
    """|error| against |reference| of every element that differs, under the line of the tolerance."""
    figure, panels = new(7.2, 3.7, 1, len(errors), sharey=True, squeeze=False)
    size = np.abs(reference.astype(np.float64)).ravel()
    low = 10.0 ** np.floor(np.log10(size[size > 0].min()))
    line = np.geomspace(low, 2 * size.max(), 200)
    for axes, tone, (name, error) in zip(panels[0], SERIES, errors.items(), strict=False):
        found = np.abs(error.astype(np.float64)).ravel()
        off = found > 0
        axes.plot(size[off], found[off], ".", markersize=1.6, alpha=0.5, color=tone, rasterized=True)
        axes.plot(line, absolute + relative * line, color=RED)
        label = f"tolerance: {absolute:g} + {relative:g} |reference|"
        axes.text(line[2], 1.5 * absolute, label, va="bottom", fontsize=9)
        axes.set_title(f"{name}: {100 * off.mean():.0f} % differ")
        axes.set(xscale="log", yscale="log", xlabel="|reference|")
    panels[0][0].set(ylabel="|online - reference|", ylim=(None, absolute * 40))
    return figure
