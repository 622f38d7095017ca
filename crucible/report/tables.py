"""Small tables for notebooks and reports: one object that renders as HTML, Markdown and text."""

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows under headings; numbers are set right-aligned. Cells are shown with `cell`."""

    headings: tuple[str, ...]
    rows: tuple[tuple, ...]
    caption: str = ""

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": self.markdown()}

    def html(self) -> str:
        """An HTML table without styles, scripts or references of its own."""
        head = "".join(f"<th>{html.escape(h)}</th>" for h in self.headings)
        body = "".join(f"<tr>{''.join(_html_cell(v) for v in row)}</tr>\n" for row in self.rows)
        caption = f"<caption>{html.escape(self.caption)}</caption>\n" if self.caption else ""
        return f"<table>\n{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"

    def markdown(self) -> str:
        """A Markdown table with padded columns, readable as plain text too."""
        cells = [[cell(v).replace("|", "\\|") for v in row] for row in self.rows]
        widths = [max(len(r[i]) for r in [list(self.headings), *cells]) for i in range(len(self.headings))]
        right = [all(_is_number(row[i]) for row in self.rows) and bool(self.rows) for i in range(len(widths))]
        rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
        lines = [list(self.headings), rule, *cells]
        padded = (
            " | ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(line, widths, right, strict=True))
            for line in lines
        )
        text = "\n".join(f"| {line} |" for line in padded)
        return f"{self.caption}\n\n{text}" if self.caption else text


def table(headings: Sequence[str], rows: Sequence[Sequence], caption: str = "") -> Table:
    """A Table from any sequences."""
    return Table(tuple(headings), tuple(tuple(row) for row in rows), caption)


def or_not_run(found: Table, command: str) -> Table:
    """The table, or one that says `not run` and names the command where it has no rows."""
    return found if found.rows else table((found.headings[0], "command"), [("not run", command)])


def cell(value) -> str:
    """One cell as text: integers with thousands separators, floats to 5 digits, booleans as yes or no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_number(value):
        return (
            f"{int(value):,}"
            if float(value).is_integer() and not isinstance(value, float)
            else f"{value:.5g}"
        )
    return str(value)


def _is_number(value) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool | str)


def _html_cell(value) -> str:
    align = ' style="text-align:right"' if _is_number(value) else ' style="text-align:left"'
    return f"<td{align}>{html.escape(cell(value))}</td>"
