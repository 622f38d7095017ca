"""Find the notebooks of a checkout and read their parameters without running them."""

import ast
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crucible.errors import InputError

_NAME = re.compile(r"^(\d\d)_[a-z0-9_]+$")
Literal = str | int | float | bool | list | None


@dataclass(frozen=True)
class Parameter:
    """One name of a notebook's `parameters` cell: its default and its help comment."""

    name: str
    default: Literal
    help: str


@dataclass(frozen=True)
class Notebook:
    """A notebook by stem (NN_name); `source` is the percent .py when there is one, else the .ipynb."""

    stem: str
    source: Path

    @property
    def pair(self) -> Path:
        """The .ipynb beside the source."""
        return self.source.with_suffix(".ipynb")

    def read(self):
        """The source as an nbformat node, without outputs when it comes from the .py."""
        import jupytext
        import nbformat

        if self.source.suffix == ".py":
            return jupytext.read(self.source, fmt="py:percent")
        return nbformat.read(self.source, as_version=4)


def root() -> Path:
    """The checkout that holds notebooks/ and params/: beside the package, else the current folder."""
    for folder in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (folder / "notebooks").is_dir() and (folder / "params").is_dir():
            return folder
    raise InputError("no notebooks/ and params/ here; run this in a checkout of Crucible")


def discover(folder: Path | None = None) -> list[Notebook]:
    """Every notebook NN_name.py or NN_name.ipynb of `folder` (default: the checkout's), in number order."""
    folder = folder or root() / "notebooks"
    found: dict[str, Notebook] = {}
    for suffix in (".ipynb", ".py"):  # the .py comes last and wins: it is the source
        for path in folder.glob(f"[0-9][0-9]_*{suffix}"):
            if _NAME.match(path.stem):
                found[path.stem] = Notebook(path.stem, path)
    return [found[stem] for stem in sorted(found)]


def select(notebooks: list[Notebook], only: Iterable[str]) -> list[Notebook]:
    """The notebooks named by `only` (a number such as 01, or a stem), all of them when it is empty."""
    chosen = []
    for wanted in only:
        hits = [n for n in notebooks if wanted in (n.stem, n.stem[:2]) or wanted.zfill(2) == n.stem[:2]]
        if not hits:
            raise InputError(f"no notebook {wanted!r}{suggest(wanted, [n.stem for n in notebooks])}")
        chosen += [n for n in hits if n not in chosen]
    return sorted(chosen, key=lambda n: n.stem) if chosen else list(notebooks)


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …` with the nearest known names, else the list of what is known."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known: {', '.join(known) or 'none'}"


def parameters(notebook: Notebook) -> dict[str, Parameter]:
    """The parameters of a notebook in order; {} when it has no `parameters` cell.

    Raises InputError when there are two such cells, or one holds anything but `name = literal`.
    """
    cells = [
        c
        for c in notebook.read().cells
        if c.cell_type == "code" and "parameters" in c.metadata.get("tags", [])
    ]
    if not cells:
        return {}
    if len(cells) > 1:
        raise InputError(f"{notebook.stem} has {len(cells)} cells tagged parameters; it may have one")
    return parse_parameters(cells[0].source, notebook.stem)


def parse_parameters(source: str, where: str) -> dict[str, Parameter]:
    """Parameters of one cell's text: each line `name = literal  # help` (the help may stand above it)."""
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if not isinstance(target, ast.Name):
            raise InputError(f"{where}: line {node.lineno} of the parameters cell is not `name = literal`")
        try:
            default = ast.literal_eval(node.value)
        except ValueError:
            raise InputError(f"{where}: parameter {target.id} is not a plain literal") from None
        found[target.id] = Parameter(target.id, default, _help(lines, node))
    return found


def _help(lines: list[str], node: ast.Assign) -> str:
    after = lines[node.end_lineno - 1][node.end_col_offset :].strip()
    if after.startswith("#"):
        return after.lstrip("# ")
    above, at = [], node.lineno - 2
    while at >= 0 and lines[at].strip().startswith("#"):
        above.insert(0, lines[at].strip().lstrip("# "))
        at -= 1
    return " ".join(above)
