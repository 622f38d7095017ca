"""Put a run together: evidence.json, report.md and a self-contained report.html."""

import dataclasses
import html
from pathlib import Path

import nbformat

from crucible.errors import CrucibleError
from crucible.evidence import record
from crucible.evidence.record import Record
from crucible.files import write_whole
from crucible.report import gate_table, render, verdicts
from crucible.report.driver import FAILED_NOTEBOOK
from crucible.report.gathered import gather
from crucible.report.notebooks import root
from crucible.report.page import external_references, page
from crucible.report.runs import READS_EVIDENCE, Outcome, Run
from crucible.report.tables import Table, cell, table

SUMMARY = "results"  # kind of the record that only sums up others
_LABELS = {"crucible": "crucible version", "dirty": "uncommitted changes", "kernel_digest": "kernel sources"}


def assemble(run: Run) -> tuple[Path, Path]:
    """Write report.md and report.html of a run (also of a failed or stopped one); returns their paths.

    Pictures go to figures/ for the Markdown and into the page itself for the HTML.
    """
    path = run.folder / "evidence.json"
    records = claims(record.load(path) if path.exists() else [])
    nodes = {
        o.stem: render.established(nbformat.read(o.executed, as_version=4), o.status == "done")
        for o in run.outcomes
        if o.executed
    }
    nodes = dict(sorted(nodes.items(), key=lambda pair: not _sums_up(run, pair[0])))  # the results come first
    document = page("Crucible report", _html_body(run, records, nodes))
    leaks = external_references(document)
    if leaks:
        raise CrucibleError(f"report.html would load {leaks[0]!r}; a report must carry everything it shows")
    texts = {"report.md": _markdown_body(run, records, nodes), "report.html": document}
    for name, text in texts.items():
        write_whole(run.folder / name, _portable(text, run.folder))
    return run.folder / "report.md", run.folder / "report.html"


def _sums_up(run: Run, stem: str) -> bool:
    return any(o.stem == stem and READS_EVIDENCE in o.values for o in run.outcomes)


def _gates(run: Run) -> list[tuple[bool, str]]:
    """(whether none fails, a sentence) about the gates that the run sums up; [] where it sums up none."""
    named = next((o.values["machines"] for o in run.outcomes if o.values.get("machines")), None)
    if named is None:
        return []
    evidence = run.folder / "evidence.json"
    kept = gather(evidence if evidence.exists() else None, named)
    sound = all(line.verdict != "fail" for line in gate_table.lines(kept))
    return [(sound, f"Gates, here and on named machines: {gate_table.verdict_sentence(kept)}")]


def _badge(sound: bool) -> str:
    verdict = "pass" if sound else "fail"
    return f'<span class="badge {verdict}">{verdict}</span>'


def claims(records: list[Record]) -> list[Record]:
    """The records that claim something: all but the summaries of other records."""
    return [item for item in records if item.kind != SUMMARY]


def _portable(text: str, folder: Path) -> str:
    """`text` without the places of this machine: the run's folder, the checkout and the user's home."""
    for place, name in ((folder, "."), (root(), "."), (Path.home(), "~")):
        if len(place.parts) > 1:  # "/" and "." name no place
            text = text.replace(str(place), name)
    return text


def counted(count: int, noun: str) -> str:
    """`1 claim`, `2 claims`, `1,000 elements`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def verdict_sentence(run: Run, records: list[Record]) -> str:
    """The report in one sentence."""
    done = sum(o.status == "done" for o in run.outcomes)
    older = sum(o.older for o in run.outcomes)
    note = f" ({older} of an earlier state of the sources or parameters)" if older else ""
    return f"{done} of {counted(len(run.outcomes), 'notebook')} ran to the end{note}; {tally(records)}."


def tally(records: list[Record]) -> str:
    """How many claims hold, fail and were only measured, in words."""
    found = verdicts.count(claims(records))
    if not sum(found.values()):
        return "no claim was checked"
    parts = [f"{counted(found['pass'], 'claim')} {'holds' if found['pass'] == 1 else 'hold'}"]
    parts.append(f"{found['fail']} {'fails' if found['fail'] == 1 else 'fail'}")
    if found["measured"]:
        parts.append(f"{found['measured']} only measured")
    if found[verdicts.BY_TIMES]:
        parts.append(f"{found[verdicts.BY_TIMES]} decided by times")
    return ", ".join(parts)


def claims_table(records: list[Record]) -> Table:
    """One row a record: verdict, claim, what was compared and how much of it."""
    rows = [(verdicts.said(r), r.claim, r.compared, r.elements, r.differing) for r in records]
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
    rows = [(o.stem, f"{o.status}{', older' * o.older}", round(o.seconds, 1)) for o in run.outcomes]
    return table(("notebook", "status", "time (s)"), rows)


def _not_claimed(records: list[Record]) -> list[str]:
    return list(dict.fromkeys(line for r in records for line in r.not_claimed))


def _html_body(run: Run, records: list[Record], nodes: dict) -> str:
    titles = {stem: render.head(node)[0] or stem for stem, node in nodes.items()}
    sound = all(o.status == "done" for o in run.outcomes) and not any(r.verdict == "fail" for r in records)
    links = "".join(f'<li><a href="#{s}">{html.escape(t)}</a></li>' for s, t in titles.items())
    parts = [
        "<h1>Crucible report</h1>",
        f'<p class="lead">{_badge(sound)} This run: {html.escape(verdict_sentence(run, records))}</p>',
        *[f"<p>{_badge(ok)} {html.escape(text)}</p>" for ok, text in _gates(run)],
        *[f"<p>{render.times(html.escape(text))}</p>" for text in verdicts.by_times(records)],
        f'<p class="note">Parameter set: {html.escape(run.parameter_set)}.</p>',
        *[_failure_card(o) for o in run.outcomes if o.status in ("failed", "stopped")],
        *[_claim_card(r) for r in records if r.kind != FAILED_NOTEBOOK],
        f"<nav><h3>Notebooks</h3><ul>{links}</ul></nav>",
        render.times(render.scrollable(_outcomes_table(run).html())),
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
    compared = f"{counted(item.elements, 'element')}, {item.differing:,} differing" if item.elements else ""
    facts = html.escape(" · ".join(f"{k}: {render_fact(v)}" for k, v in item.facts.items()))
    facts = render.times(facts) if item.samples else facts
    facts = f"<details><summary>facts</summary>{facts}</details>" if facts else ""
    texts = (html.escape(item.compared), compared, facts)
    lines = "".join(f'<div class="note">{text}</div>' for text in texts if text)
    word = verdicts.said(item)
    look = "measured" if word == verdicts.BY_TIMES else word
    badge = f'<span class="badge">{word}</span>'
    return f'<div class="card {look}">{badge}<div>{html.escape(item.claim)}</div>{lines}</div>'


def render_fact(value) -> str:
    """A fact as text: integers with separators, floats to 6 digits."""
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _markdown_body(run: Run, records: list[Record], nodes: dict) -> str:
    parts = ["# Crucible report", verdict_sentence(run, records), *[text for _, text in _gates(run)]]
    parts += [render.times(text) for text in verdicts.by_times(records)]
    parts.append(f"Parameter set: {run.parameter_set}.")
    parts += ["## Claims", claims_table(records).markdown()] if records else []
    parts += ["## Notebooks", render.times(_outcomes_table(run).markdown())]
    parts += [f"**{o.stem} {o.status}:** {o.error}" for o in run.outcomes if o.error]
    for stem, node in nodes.items():
        title, opening = render.head(node)
        parts += [f"## {title or stem}", opening]
        for path, caption in render.figures(node, run.folder / "figures", stem):
            parts.append(f"![{caption}](figures/{path.name})\n\n*{caption}*")
        above = ""
        for heading, text in render.tables(node):
            if text not in parts:  # the claims and the machine have a place of their own
                parts += [f"### {heading}" if heading != above else "", text]
                above = heading
        parts.append(render.closing(node))
    where = environment_table(records).markdown() if records else ""
    parts += ["## Where this ran", where] if where and where not in parts else []
    limits = _not_claimed(records)
    parts += ["## What is not claimed", "\n".join(f"- {line}" for line in limits)] if limits else []
    return "\n\n".join(p for p in parts if p) + "\n"
