"""The held-out text: docstrings of one pinned NumPy wheel, extracted with ast (see texts/README.md)."""

import ast
import functools
import hashlib
import inspect
import lzma
from collections.abc import Iterator
from pathlib import Path

from crucible.errors import InputError

NUMPY = "2.4.6"
FILE = Path(__file__).with_name("texts") / f"numpy-{NUMPY}-docstrings.txt.xz"
SHA256 = "b0ad1aeabea7e70c18bc7243b9c4c2df694bb331f5030b4861a831aa36bf65b0"
SEPARATOR = "\n\n"


def docstrings(source: str) -> Iterator[str]:
    """Docstrings of a module and of the classes and functions in it, in the order of the file."""

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node, clean=False)
            if found is not None:
                yield inspect.cleandoc(found)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(source))


def extract(package: Path) -> str:
    """Every docstring of a package's .py files, files sorted by path, folders called tests left out."""
    paths = [path for path in package.rglob("*.py") if "tests" not in path.relative_to(package).parts]
    paths.sort(key=lambda path: path.relative_to(package).as_posix())
    found = [doc for path in paths for doc in docstrings(path.read_text(encoding="utf-8")) if doc]
    return SEPARATOR.join(found) + "\n"


@functools.cache
def text() -> str:
    """The held-out text; InputError if the file that carries it is damaged."""
    try:
        raw = lzma.decompress(FILE.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{FILE.name} cannot be read ({error}); install Crucible again") from None
    found = hashlib.sha256(raw).hexdigest()
    if found != SHA256:
        raise InputError(f"{FILE.name} has sha256 {found}, not {SHA256}; install Crucible again")
    return raw.decode()
