"""The tables of README.md that are made from committed evidence: python -m crucible.report.readme [--check].

A table stands between `<!-- figures: NAME -->` and `<!-- /figures -->`; NAME is one of BLOCKS.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from crucible.bench import figures
from crucible.errors import CrucibleError, InputError
from crucible.report import gate_table
from crucible.report.gathered import gather
from crucible.report.notebooks import root, suggest
from crucible.report.parameters import DRIVER_FILLED

_BLOCK = re.compile(r"<!-- figures: (?P<name>[^\n]*?) -->\n.*?<!-- /figures -->", re.DOTALL)


def _gates(base: Path) -> str:
    return gate_table.gates_table(gather(None, DRIVER_FILLED["machines"], base)).markdown()


BLOCKS: Mapping[str, Callable[[Path], str]] = {
    "attention": lambda base: figures.attention(base / "outputs/h200/attention.json"),
    "models": lambda base: figures.table(base / "outputs/cpu-2core/bench.json"),
    "linear": lambda base: figures.linear(base / "outputs/cpu-2core/bench.json"),
    "model-gpu": lambda base: figures.model_gpu(
        base / "outputs/h200/bench.json", base / "outputs/h200/engine_bench.json"
    ),
    "service-ab": lambda base: figures.service_ab(
        base / "outputs/h200/evidence.json", base / "outputs/h200/service_ab_int8.json"
    ),
    "drift": lambda base: figures.drift(base / "outputs/h200/drift.json"),
    "gates": _gates,
}


def rewritten(text: str, base: Path | None = None) -> str:
    """`text` with every block made anew from the records below `base`; the rest is left as it is.

    Raises InputError for a block of another name, or a mark without its other half.
    """
    base = base or root()
    marks = text.count("<!-- figures: "), text.count("<!-- /figures -->")
    if marks[0] != marks[1] or len(_BLOCK.findall(text)) != marks[0]:
        raise InputError(
            f"{marks[0]} marks `figures: NAME` and {marks[1]} of `/figures`; each needs the other"
        )

    def made(found: re.Match) -> str:
        name = found["name"]
        if name not in BLOCKS:
            raise InputError(f"no table {name!r} for README.md{suggest(name, BLOCKS)}")
        return f"<!-- figures: {name} -->\n{BLOCKS[name](base)}\n<!-- /figures -->"

    return _BLOCK.sub(made, text)


def main(arguments: list[str]) -> int:
    """Rewrite README.md, or with --check tell by exit code 1 that it would change; 2 on an error."""
    path = root() / "README.md"
    try:
        if arguments not in ([], ["--check"]):
            raise InputError(f"unknown arguments {' '.join(arguments)!r}; there is --check, or none")
        text = path.read_text(encoding="utf-8")
        fresh = rewritten(text)
    except CrucibleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments:
        if fresh != text:
            print(
                "error: README.md has other figures than the evidence; run: python -m crucible.report.readme"
            )
        return int(fresh != text)
    path.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
