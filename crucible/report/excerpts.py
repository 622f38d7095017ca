"""Excerpts of the kernel sources for notebooks: shown from kernels/, never pasted."""

from dataclasses import dataclass

from crucible.device.sources import kernels_dir
from crucible.errors import InputError


@dataclass(frozen=True)
class Excerpt:
    """Lines of one kernel source; renders as a highlighted code block."""

    file: str
    text: str

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        shown = f"`kernels/{self.file}`\n```c++\n{self.text}\n```"
        return {"text/markdown": shown, "text/plain": f"kernels/{self.file}\n{self.text}"}


def excerpt(file: str, start: str, end: str | None = None, before: bool = False) -> Excerpt:
    """The lines of kernels/`file` from the one containing `start` to the one containing `end`.

    Without `end`, up to the close of the brace block that `start` opens. `before=True` leaves the
    `end` line out. Common indentation is removed. Raises InputError when an anchor is not there, so
    that a notebook cannot go on showing source that has moved.
    """
    lines = (kernels_dir() / file).read_text(encoding="utf-8").splitlines()
    first = next((i for i, line in enumerate(lines) if start in line), None)
    if first is None:
        raise InputError(f"kernels/{file} has no line with {start!r}; update the excerpt's anchor")
    if end is None:
        last = _block_end(lines, first)
    else:
        last = next((i for i in range(first, len(lines)) if end in lines[i]), None)
        if last is None:
            raise InputError(
                f"kernels/{file} has no line with {end!r} after {start!r}; update the excerpt's anchor"
            )
        last -= before
    chosen = lines[first : last + 1]
    while chosen and not chosen[-1].strip():
        chosen.pop()
    indent = min((len(line) - len(line.lstrip()) for line in chosen if line.strip()), default=0)
    return Excerpt(file, "\n".join(line[indent:] for line in chosen))


def _block_end(lines: list[str], first: int) -> int:
    depth, opened = 0, False
    for i in range(first, len(lines)):
        code = lines[i].split("//")[0]
        depth += code.count("{") - code.count("}")
        opened = opened or "{" in code
        if opened and depth <= 0:
            return i
    return first
