"""Put a run together: evidence.json, report.md and a self-contained report.html."""

import dataclasses
import html
from pathlib import Path

import nbformat

from crucible.errors import CrucibleError
from crucible.evidence import record
from crucible.evidence.record import Record
from crucible.report import render
from crucible.report.driver import Outcome, Run
from crucible.report.page import external_references, page
from crucible.report.tables import Table, cell, table

_LABELS = {"crucible": "crucible version", "dirty": "uncommitted changes", "kernel_digest": "kernel sources"}


def assemble(run: Run) -> tuple[Path, Path]:
    """Write report.md and report.html of a run (also of a failed or stopped one); returns their paths.

    Pictures go to figures/ for the Markdown and into the page itself for the HTML.
    """
    path = run.folder / "evidence.json"
    records = record.load(path) if path.exists() else []
    nodes = {o.stem: nbformat.read(o.executed, as_version=4) for o in run.outcomes if o.executed}
    document = page("Crucible report", _html_body(run, records, nodes))
    leaks = external_references(document)
    if leaks:
        raise CrucibleError(f"report.html would load {leaks[0]!r}; a report must carry everything it shows")
    texts = {"report.md": _markdown_body(run, records, nodes), "report.html": document}
    for name, text in texts.items():
        (run.folder / name).write_text(text, encoding="utf-8")
    return run.folder / "report.md", run.folder / "report.html"


def verdict_sentence(run: Run, records: list[Record]) -> str:
    """The report in one sentence."""
    done = sum(o.status == "done" for o in run.outcomes)
    tally = {v: sum(r.verdict == v for r in records) for v in record.VERDICTS}
    claims = f"{tally['pass']} claims hold, {tally['fail']} fail"
    if tally["measured"]:
        claims += f", {tally['measured']} measured"
    return f"{done} of {len(run.outcomes)} notebooks ran to the end; {claims}."


def claims_table(records: list[Record]) -> Table:
    """One row a record: verdict, claim, what was compared and how much of it."""
    rows = [(r.verdict, r.claim, r.compared, r.elements, r.differing) for r in records]
    return table(("verdict", "claim", "compared", "elements", "differing"), rows)


def environment_table(records: list[Record]) -> Table:
    """Where the results were made, one row a fact; several machines stand side by side in one cell."""
    seen: dict[str, list[str]] = {}
    for item in records:
        if item.environment is None:
            continue
        for name, value in dataclasses.asdict(item.environment).items():
            if name in ("taken_at", "device"):
                continue
            values = [f"{k} {v}" for k, v in value.items()] if isinstance(value, dict) else [cell(value)]
            text, label = ", ".join(values), _LABELS.get(name, name.replace("_", " "))
            if text and text not in seen.setdefault(label, []):
                seen[label].append(text)
    rows = [(name, "; ".join(values)) for name, values in seen.items() if values]
    return table(("where", "value"), rows)


def _outcomes_table(run: Run) -> Table:
    rows = [(o.stem, o.status, round(o.seconds, 1)) for o in run.outcomes]
    return table(("notebook", "status", "time (s)"), rows)


def _not_claimed(records: list[Record]) -> list[str]:
    return list(dict.fromkeys(line for r in records for line in r.not_claimed))


def _html_body(run: Run, records: list[Record], nodes: dict) -> str:
    titles = {stem: render.head(node)[0] or stem for stem, node in nodes.items()}
    links = "".join(f'<li><a href="#{s}">{html.escape(t)}</a></li>' for s, t in titles.items())
    parts = [
        "<h1>Crucible report</h1>",
        f'<p class="lead">{html.escape(verdict_sentence(run, records))}</p>',
        f'<p class="note">Parameter set: {html.escape(run.parameter_set or "defaults")}.</p>',
        *[_failure_card(o) for o in run.outcomes if o.status in ("failed", "stopped")],
        *[_claim_card(r) for r in records],
        f"<nav><h3>Notebooks</h3><ul>{links}</ul></nav>",
        render.scrollable(_outcomes_table(run).html()),
    ]
    if records:
        where = render.scrollable(environment_table(records).html())
        parts += ["<h2>Where this ran</h2>", f'<div class="where">{where}</div>']
    limits = _not_claimed(records)
    if limits:
        items = "".join(f"<li>{html.escape(line)}</li>" for line in limits)
        parts += ["<h2>What is not claimed</h2>", f"<ul>{items}</ul>"]
    for stem, node in nodes.items():
        parts.append(f'<section id="{stem}">\n{render.notebook(node)}\n</section>')
    return "\n".join(parts)


def _failure_card(outcome: Outcome) -> str:
    copy = f" Executed copy: notebooks/{outcome.stem}.ipynb." if outcome.executed else ""
    text = f"<b>{outcome.stem}</b>: {html.escape(outcome.error)}.{copy}"
    badge = f'<span class="badge">{outcome.status}</span>'
    return f'<div class="card {outcome.status}">{badge}<div>{text}</div></div>'


def _claim_card(item: Record) -> str:
    counted = f"{item.elements:,} elements, {item.differing:,} differing" if item.elements else ""
    facts = " · ".join(f"{k}: {render_fact(v)}" for k, v in item.facts.items())
    lines = "".join(f'<div class="note">{html.escape(t)}</div>' for t in (item.compared, counted, facts) if t)
    badge = f'<span class="badge">{item.verdict}</span>'
    return f'<div class="card {item.verdict}">{badge}<div>{html.escape(item.claim)}</div>{lines}</div>'


def render_fact(value) -> str:
    """A fact as text: integers with separators, floats to 6 digits."""
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _markdown_body(run: Run, records: list[Record], nodes: dict) -> str:
    parts = ["# Crucible report", verdict_sentence(run, records)]
    parts.append(f"Parameter set: {run.parameter_set or 'defaults'}.")
    parts += ["## Claims", claims_table(records).markdown()] if records else []
    parts += ["## Notebooks", _outcomes_table(run).markdown()]
    parts += [f"**{o.stem} {o.status}:** {o.error}" for o in run.outcomes if o.error]
    for stem, node in nodes.items():
        title, opening = render.head(node)
        parts += [f"## {title or stem}", opening]
        for path, caption in render.figures(node, run.folder / "figures", stem):
            parts.append(f"![{caption}](figures/{path.name})\n\n*{caption}*")
        parts.append(render.closing(node))
    parts += ["## Where this ran", environment_table(records).markdown()] if records else []
    limits = _not_claimed(records)
    parts += ["## What is not claimed", "\n".join(f"- {line}" for line in limits)] if limits else []
    return "\n\n".join(p for p in parts if p) + "\n"
