"""One self-contained source text out of a kernel file and the headers that it includes with quotes."""

import hashlib
import re
from pathlib import Path

from crucible.errors import InputError
from crucible.files import read_text

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
_PRAGMA_ONCE = re.compile(r"^\s*#\s*pragma\s+once\b")
_DYNAMIC_SHARED = re.compile(
    r"\bextern\s+__shared__\s+(?:__align__\s*\([^)]*\)\s*|alignas\s*\([^)]*\)\s*)?"
    r"([A-Za-z_][\w:<>\s]*?)\s+(\w+)\s*\[\s*\]\s*;"
)


def flatten(source: Path, include_dirs: tuple[Path, ...]) -> str:
    """The text of `source` with every quoted include replaced by the file, found as the compiler would.

    `#line` keeps the compiler's messages and the reports of a kernel at the real file and line. It names
    files without their folder, so that the same sources make the same text, and one cache entry, anywhere.
    A header with `#pragma once` is guarded by a macro instead, so that a skipped conditional stays skipped.
    """
    return "\n".join(_lines(Path(source).resolve(), include_dirs, ()))


def _lines(path: Path, include_dirs: tuple[Path, ...], above: tuple[Path, ...]) -> list[str]:
    if path in above:
        return []
    content = read_text(path)
    text = content.splitlines()
    out = [f'#line 1 "{path.name}"']
    once = any(_PRAGMA_ONCE.match(line) for line in text)
    guard = "CRUCIBLE_ONCE_" + hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    if once:
        out = [f"#ifndef {guard}", f"#define {guard}", *out]
    for number, line in enumerate(text, start=1):
        included = _INCLUDE.match(line)
        if _PRAGMA_ONCE.match(line):
            out.append("")
        elif included:
            found = _find(included[1], path.parent, include_dirs)
            if found is None:
                raise InputError(
                    f"{path.name}:{number} includes {included[1]!r}, found neither beside it nor in kernels/"
                )
            out += [*_lines(found, include_dirs, (*above, path)), f'#line {number + 1} "{path.name}"']
        else:
            out.append(line)
    return [*out, f"#endif  // {guard}"] if once else out


def _find(name: str, beside: Path, include_dirs: tuple[Path, ...]) -> Path | None:
    candidates = [folder / name for folder in (beside, *include_dirs)]
    return next((c.resolve() for c in candidates if c.is_file()), None)


def bind_dynamic_shared(text: str) -> str:
    """`extern __shared__ T name[];` as a pointer to the block's dynamic shared memory.

    C++ has no spelling for an array whose storage is chosen at launch, so the host build rewrites
    this one declaration.
    """
    return _DYNAMIC_SHARED.sub(r'\1* const \2 = ::simt::dynamic_shared<\1>("\2");', text)
