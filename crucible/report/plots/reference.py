"""Pictures of the reference kernel's arithmetic: exp's error, what an order changes, and the model's NLL."""

from collections.abc import Mapping, Sequence

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


@styled
def exp_error(x: np.ndarray, ulps: np.ndarray) -> Figure:
    """Error of the contract's exp in ulp of f32 at each x in [-87, 0] (f32), with a close-up near 0."""
    figure, (left, right) = new(8.6, 2.9, 1, 2, width_ratios=(2, 1), sharey=True)
    left.plot(x, ulps, ",", color=BLUE, rasterized=True)
    near = x > -2
    right.plot(x[near], ulps[near], ".", markersize=1.5, color=BLUE, rasterized=True)
    for axes in (left, right):
        for level in (-0.5, 0.5):
            axes.axhline(level, color=ORANGE, linewidth=1.1, linestyle=(0, (4, 3)))
        axes.set(xlabel="x")
    worst = int(np.argmax(np.abs(ulps)))
    left.plot([x[worst]], [ulps[worst]], "o", color=RED, fillstyle="none", markersize=8)
    left.set(ylabel="error (ulp of f32)", ylim=(-1.35, 1.35))
    left.set_title(f"exp: worst of {len(x):,} points {abs(ulps[worst]):.2f} ulp (dashed: half an ulp)")
    right.set_title("the same near 0")
    return figure


@styled
def orders(differences: Mapping[str, np.ndarray]) -> Figure:
    """How far sums of the same numbers lie apart, in ulp, per order against the contract's order."""
    figure, axes = new(8.6, 2.9, 1, len(differences), sharey=True)
    for axis, tone, (title, ulps) in zip(np.atleast_1d(axes), SERIES, differences.items(), strict=False):
        edges = np.arange(-0.5, 17.5)
        axis.hist(np.minimum(ulps, 16), bins=edges, color=tone, weights=np.full(len(ulps), 100 / len(ulps)))
        same = 100 * float(np.mean(ulps == 0))
        axis.set_title(title)
        axis.text(0.97, 0.93, f"{same:.0f} % keep their bits", transform=axis.transAxes, ha="right", va="top")
        axis.set(xlabel="distance (ulp; 16 means 16 or more)")
        axis.grid(axis="x", visible=False)
    np.atleast_1d(axes)[0].set(ylabel="share of the sums (%)")
    return figure


@styled
def rank_gaps(logits: np.ndarray, moved: np.ndarray) -> Figure:
    """Gaps between neighbours in rank order against what another summation order does to the logits.

    `logits` f32 [n] in rank order and `moved` f32 [n] of the same tokens, summed in another order.
    """
    gaps = -np.diff(logits.astype(np.float64))
    shift = np.abs(moved.astype(np.float64) - logits)
    trades = -np.diff(moved.astype(np.float64)) < 0
    figure, axes = new(8.6, 3.4)
    ranks, every, floor = np.arange(1, len(logits)), np.arange(1, len(logits) + 1), 2.0**-21
    apart, shifted = gaps > 0, shift > 0  # a log scale has no place for zero: zeros are counted, not drawn
    axes.plot(ranks[apart], gaps[apart], ".", color=BLUE, markersize=3.5)
    axes.plot(every[shifted], shift[shifted], ".", color=ORANGE, markersize=3.5)
    ringed = np.maximum(gaps[trades], floor)  # a pair of equal logits that parts is ringed at the lower edge
    axes.plot(ranks[trades], ringed, "o", color=RED, fillstyle="none", markersize=9)
    label = f"gap to the next rank ({int((~apart).sum())} are zero)"
    axes.plot([], [], "o", color=BLUE, markersize=5, label=label)
    label = f"shift of the logit ({int((~shifted).sum())} are zero)"
    axes.plot([], [], "o", color=ORANGE, markersize=5, label=label)
    label = f"neighbours that trade places: {int(trades.sum())}"
    axes.plot([], [], "o", color=RED, fillstyle="none", markersize=8, label=label)
    axes.set(xscale="log", yscale="log", xlabel="rank of the token (1 = most likely)", ylabel="logit units")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper right", ncols=3, fontsize=8.5)
    axes.set_ylim(floor / 2, max(10.0, float(gaps.max()) * 8))
    return figure


@styled
def nll(per_token: Mapping[str, Sequence[float]], tokens: Sequence[str]) -> Figure:
    """Surprise of each token (nats), one line a model variant, with the mean of each beside its name."""
    figure, axes = new(8.6, 3.4)
    for tone, (name, values) in zip((GREEN, RED, BLUE), per_token.items(), strict=False):
        mean = float(np.mean(values))
        axes.plot(
            range(len(values)), values, color=tone, linewidth=1.5, label=f"{name}: {mean:.2f} nats/token"
        )
        axes.axhline(mean, color=tone, linewidth=1.0, linestyle=(0, (4, 3)))
    step = max(1, len(tokens) // 36)
    labels = [t.strip() or "·" for t in tokens[::step]]
    axes.set_xticks(range(0, len(tokens), step), labels, rotation=70, ha="right", fontsize=7.5)
    axes.set(ylabel="surprise (nats)", xlim=(-0.5, len(tokens) - 0.5))
    axes.set_xlabel("token of the text" if step == 1 else f"token of the text (one in {step} is named)")
    axes.legend(loc="upper right", ncols=2)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1.2 * max(max(values) for values in per_token.values()))
    return figure


@styled
def tree(lanes: int = 32) -> Figure:
    """The pairing of tree32: in each of five steps lane i takes lane i + o."""
    steps = [o for o in (16, 8, 4, 2, 1) if o < lanes]
    figure, axes = new(8.6, 2.7)
    for level in range(len(steps) + 1):
        live = lanes >> level
        for i in range(lanes):
            face = tint(BLUE, 0.75) if i < live else FAINT
            axes.add_patch(Rectangle((i + 0.08, -level), 0.84, 0.42, facecolor=face, edgecolor=PAPER))
        if level:
            o = steps[level - 1]
            axes.text(lanes + 0.4, -level + 0.2, f"p[i] += p[i+{o}], i < {o}", va="center", fontsize=8.5)
            for i in range(o):
                for source, tone in ((i, MUTED), (i + o, ORANGE)):
                    axes.plot([source + 0.5, i + 0.5], [-level + 1, -level + 0.42], color=tone, linewidth=0.8)
    axes.text(lanes + 0.4, 0.2, "p[0 … 31]", va="center", fontsize=8.5)
    axes.text(0.5, -len(steps) - 0.12, "result", ha="center", va="top", color=INK, fontsize=8.5)
    axes.set(xlim=(-0.2, lanes + 7.5), ylim=(-len(steps) - 0.6, 0.6))
    bare(axes)
    return figure
