"""The house style of every figure: colours, fonts, deterministic output, and `show` for notebooks."""

import functools
import io
from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any colour vision.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW = "#CC79A7", "#56B4E9", "#F0E442"
SERIES = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
INK, MUTED, FAINT, PAPER = "#1f2328", "#656d76", "#d8dee4", "#ffffff"

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.prop_cycle": matplotlib.cycler(color=SERIES),
    "lines.linewidth": 1.8,
    # The same drawing gives the same bytes: fixed ids, text as outlines of the font that matplotlib ships.
    "svg.hashsalt": "crucible",
    "svg.fonttype": "path",
}
DPI = 160


def styled(draw: Callable) -> Callable:
    """Decorator: run a drawing function under the house style."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def new(width: float, height: float, rows: int = 1, columns: int = 1, **kwargs):
    """(figure, axes) of `width` x `height` inches, laid out without overlaps; call it under @styled."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **kwargs)


def bare(axes) -> None:
    """Turn an axes into a plain drawing surface: no ticks, spines or grid."""
    axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def tint(colour: str, share: float = 0.25) -> tuple[float, float, float]:
    """`colour` mixed with white; share 1 is the colour itself."""
    return tuple(share * c + (1 - share) for c in to_rgb(colour))


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes without dates or program names."""
    out = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as .svg or .png, by the path's suffix, deterministically."""
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=DPI, metadata=metadata)
    return path


def show(figure: Figure, caption: str) -> None:
    """Display a figure in a notebook with its caption below; the caption is also the image's text form."""
    from IPython.display import display

    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    bundle = {"image/png": png(figure), "text/plain": caption}
    display(bundle, raw=True, metadata={"image/png": {"width": width, "height": height}})
    note = {"text/markdown": f"*{caption}*", "text/plain": caption}
    display(note, raw=True, metadata={"crucible": {"caption": True}})
