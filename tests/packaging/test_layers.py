"""Imports of the package point down the list of README's tree, and between gates and benches not at all."""

import ast
import re
from pathlib import Path

import pytest

import crucible

PACKAGE = Path(crucible.__file__).resolve().parent
README = PACKAGE.parent / "README.md"
# Of two folders that share a line only these may import one another: an operation may read linear's weights.
SIDEWAYS = {("ops", "linear")}


def listed() -> list[list[str]]:
    """The folders of the package, a list a line, from the top of README's tree to its bottom."""
    found: list[list[str]] = []
    inside = False
    for line in README.read_text(encoding="utf-8").splitlines():
        if re.match(r"    \S", line):
            inside = line.startswith("    crucible/ ")
        elif inside and (names := re.match(r"      ((?:\w+/ ?)+)", line)):
            found.append(names[1].replace("/", "").split())
    return found


def imported(text: str) -> set[str]:
    """The folders of the package that a source imports from, wherever in it."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    parts = [name.split(".") for name in names]
    return {p[1] for p in parts if p[0] == "crucible" and len(p) > 1}


def wrong(folder: str, text: str) -> list[str]:
    """Folders that a source of `folder` may not import from and does."""
    rank = {name: line for line, names in enumerate(listed()) for name in names}
    others = [name for name in imported(text) if name in rank and name != folder]
    return [o for o in sorted(others) if rank[o] <= rank[folder] and (folder, o) not in SIDEWAYS]


@pytest.fixture(autouse=True)
def checkout():
    if not README.is_file():
        pytest.skip("the package without its README")


def test_readme_lists_every_folder_of_the_package():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for names in listed() for name in names} == folders


def test_imports_point_down():
    found = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in sorted(PACKAGE.glob("*/**/*.py"))
        for name in wrong(path.relative_to(PACKAGE).parts[0], path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("gates", "def f():\n    from crucible.bench.rounds import order\n"),
        ("device", "import crucible.attention.run\n"),
        ("engine", "from crucible import service\n"),
    ],
)
def test_an_import_upward_or_between_gates_and_benches_is_caught(folder, text):
    assert wrong(folder, text)
