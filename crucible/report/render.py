"""Executed notebooks as HTML sections and Markdown: prose, folded code, figures with captions, tables."""

import base64
import functools
import html
import re
from pathlib import Path

from crucible.report.page import external_references, highlight

CLOSING = "## What we know now"
# Cells with one of these tags show times: the only part of a report that differs from run to run.
TIMED = {"nbval-ignore-output", "times"}
TIMES = ("<!-- times -->", "<!-- /times -->")
_LONG = re.compile(r"<td(?=[^>]*>[^<]{45,}</td>)")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@functools.cache
def _markdown():
    import mistune

    class Renderer(mistune.HTMLRenderer):
        def heading(self, text, level, **attributes):
            return f"<h{min(level + 1, 6)}>{text}</h{min(level + 1, 6)}>\n"

        def block_code(self, code, info=None):
            return highlight(code, (info or "text").split()[0])

        def image(self, text, url, title=None):
            if not url.startswith("data:"):
                return html.escape(text)  # the page carries its pictures or shows none
            return f'<img src="{url}" alt="{html.escape(text)}">'

        def link(self, text, url, title=None):
            return f'<a rel="noreferrer" href="{html.escape(self.safe_url(url))}">{text}</a>'

    return mistune.create_markdown(renderer=Renderer(escape=True), plugins=["table"])


def markdown(text: str) -> str:
    """Markdown as HTML, headings one level down, raw HTML shown as text, wide tables scrollable."""
    return scrollable(_markdown()(text))


def scrollable(text: str) -> str:
    """Every table in a box that scrolls sideways on a narrow screen; long texts in it get room."""
    text = _LONG.sub(r'<td class="long"', text)
    return text.replace("<table", '<div class="scroll"><table').replace("</table>", "</table></div>")


def established(node, done: bool):
    """The notebook without papermill's own cells and, unless it is `done`, without what it did not get to.

    A notebook that failed or was stopped keeps its cells up to the last one that ran, and loses its
    answer: nothing it would have shown may read as if it were so.
    """
    cells = [c for c in node.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])]
    if not done:
        ran = [i for i, c in enumerate(cells) if c.cell_type == "code" and c.execution_count is not None]
        first = next((c for c in cells[:1] if c.cell_type == "markdown"), None)
        cells = cells[: ran[-1] + 1] if ran else cells[: first is not None]
        if first is not None:
            first.source = first.source.partition("**Answer.**")[0].rstrip()
    node.cells = cells
    return node


def timed(cell) -> bool:
    """Whether a cell's outputs show times."""
    return bool(TIMED & set(cell.metadata.get("tags", [])))


def times(text: str) -> str:
    """A part of a report, HTML or Markdown, between the marks of what differs from run to run."""
    return f"{TIMES[0]}\n{text}\n{TIMES[1]}" if text else ""


def notebook(node, code: bool = True) -> str:
    """An executed notebook's cells as HTML; code is folded, the parameter cells become one table."""
    parts = []
    for cell in node.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown":
            parts.append(markdown(cell.source))
        elif cell.cell_type == "code":
            if code:
                title = "parameters" if "parameters" in tags else "code"
                title = "parameters of this run" if "injected-parameters" in tags else title
                folded = f"<summary>{title}</summary>{highlight(cell.source)}"
                parts.append(f"<details>{folded}</details>")
            shown = "\n".join(output(o) for o in cell.outputs)
            parts.append(times(shown) if timed(cell) else shown)
    return "\n".join(parts)


def output(item) -> str:
    """One output of a cell as HTML: the richest form that needs nothing from outside the page."""
    if item.output_type == "stream":
        return f"<pre>{html.escape(plain(item.text))}</pre>"
    if item.output_type == "error":
        return f'<pre class="error">{html.escape(plain(chr(10).join(item.traceback)))}</pre>'
    if item.get("metadata", {}).get("crucible", {}).get("caption"):
        return ""  # the picture above carries it
    data = item.data
    if "image/png" in data:
        caption = html.escape(data.get("text/plain", ""))
        image = data["image/png"].replace("\n", "")
        picture = f'<img alt="{caption}" src="data:image/png;base64,{image}">'
        return f'<figure><div class="scroll">{picture}</div><figcaption>{caption}</figcaption></figure>'
    if "text/html" in data and not external_references(data["text/html"]):
        return scrollable(data["text/html"])
    if "text/markdown" in data:
        return markdown(data["text/markdown"])
    return f"<pre>{html.escape(plain(data.get('text/plain', '')))}</pre>"


def plain(text: str) -> str:
    """Text without terminal colours."""
    return _ANSI.sub("", text)


def head(node) -> tuple[str, str]:
    """(title, opening prose) of a notebook: its first markdown cell's heading and the rest of that cell."""
    for cell in node.cells:
        if cell.cell_type == "markdown":
            title, _, rest = cell.source.partition("\n")
            return title.lstrip("# ").strip(), rest.strip()
    return "", ""


def closing(node) -> str:
    """What the notebook says is known now; "" where that part is missing, as after a failure."""
    texts = [c.source for c in node.cells if c.cell_type == "markdown" and c.source.startswith(CLOSING)]
    return texts[-1].partition("\n")[2].strip() if texts else ""


def tables(node) -> list[tuple[str, str]]:
    """A notebook's tables as Markdown, each with the heading above it ("" where there is none)."""
    found, heading = [], ""
    for cell in node.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^#{2,} (.+)$", cell.source, re.MULTILINE)
            heading = headings[-1] if headings else heading
        for item in cell.get("outputs", []):
            data = item.get("data", {})
            if data.get("text/html", "").startswith("<table") and "text/plain" in data:
                text = data["text/plain"]
                found.append((heading, times(text) if timed(cell) else text))
    return found


def figures(node, folder: Path, stem: str) -> list[tuple[Path, str]]:
    """Write a notebook's pictures to folder/<stem>_<n>.png; returns (path, caption) in order.

    A picture of times is called <stem>_<n>_times.png.
    """
    written = []
    for cell in node.cells:
        for item in cell.get("outputs", []):
            if "image/png" in item.get("data", {}):
                path = folder / f"{stem}_{len(written) + 1}{'_times' * timed(cell)}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(item.data["image/png"]))
                written.append((path, item.data.get("text/plain", "")))
    return written
