"""The driver: unknown names are refused, failures keep their executed copy, notebooks/ is never written."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupytext")

from crucible.errors import InputError
from crucible.evidence.record import Record, load, save
from crucible.report import driver, render, verdicts
from crucible.report.assemble import SUMMARY, assemble, claims_table, tally
from crucible.report.notebooks import Notebook, discover, parse_parameters, select
from crucible.report.page import external_references
from crucible.report.parameters import read_set, resolve
from crucible.report.tables import table

try:
    NOTEBOOKS = discover()
except InputError as error:  # the package and its tests alone, as on a machine that only measures
    pytest.skip(str(error), allow_module_level=True)

GOOD = """# %% [markdown]
# # Good
#
# Does it run?

# %% tags=["parameters"]
rows = 4  # rows of the batch
scale = 0.5  # a factor
output_dir = ""  # folder for the record; empty: none is written

# %%
import os
print(rows, scale, os.path.realpath(output_dir) == os.getcwd())

# %% [markdown]
# ## What we know now
#
# It ran.
"""
BAD = """# %% [markdown]
# # Bad
#
# **Question.** Does it?
#
# **Answer.** It does.

# %% tags=["parameters"]
rows = 4  # rows

# %%
before = "kept"
print(before)

# %%
raise ValueError("the seventh seal")

# %% [markdown]
# ## A section that was not reached

# %% [markdown]
# ## What we know now
#
# It was proved.
"""
READS = """# %% tags=["parameters"]
evidence_path = ""  # records so far
output_dir = ""  # folder

# %%
from crucible.evidence import record
print([(r.verdict, r.claim) for r in record.load(evidence_path)])
"""
STOPS = """# %% tags=["parameters"]
output_dir = ""  # folder

# %%
print("half way")

# %%
import os, signal, threading
os.kill(int(open(output_dir + "/driver.pid").read()), signal.SIGINT)
threading.Event().wait()
"""


def write(folder: Path, **texts: str) -> list[Notebook]:
    for stem, text in texts.items():
        (folder / f"{stem}.py").write_text(text)
    return discover(folder)


@pytest.fixture
def two(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    return write(folder, **{"01_bad": BAD, "02_good": GOOD})


def test_discovery_takes_any_numbered_notebook_and_prefers_the_source(tmp_path):
    found = write(tmp_path, **{"07_later": GOOD, "03_more": GOOD, "notes": GOOD})
    (tmp_path / "03_more.ipynb").write_text("{}")
    (tmp_path / "04_only.ipynb").write_text("{}")
    assert [n.source.name for n in discover(tmp_path)] == ["03_more.py", "04_only.ipynb", "07_later.py"]
    assert [n.stem for n in select(found, ["7"])] == ["07_later"]
    with pytest.raises(InputError, match="no notebook '9'"):
        select(found, ["9"])


def test_parameters_are_literals_with_help():
    found = parse_parameters('# how many\nrows = 4\nname = "a"  # who\nlengths = [1, 2]  # L\n', "here")
    assert {k: (p.default, p.help) for k, p in found.items()} == {
        "rows": (4, "how many"),
        "name": ("a", "who"),
        "lengths": ([1, 2], "L"),
    }
    for text in ("rows = 2 * two", "import os", "a = b = 1"):
        with pytest.raises(InputError, match="literal"):
            parse_parameters(text, "here")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"02_good": {"row": 1}}, "02_good has no parameter 'row'; did you mean rows"),
        ({"02_goood": {"rows": 1}}, "no notebook '02_goood'; did you mean 02_good"),
        ({"common": {"scales": 1.0}}, "no notebook has a parameter 'scales'; did you mean scale"),
        ({"02_good": {"rows": "many"}}, "rows must be int like its default 4, got 'many'"),
        ({"02_good": {"rows": True}}, "rows must be int"),
    ],
)
def test_unknown_parameters_are_refused_by_name_with_near_misses(two, values, message):
    with pytest.raises(InputError, match=message):
        resolve(values, two)


def test_common_values_reach_every_notebook_that_has_them(two):
    resolved = resolve({"common": {"rows": 9, "scale": 1}, "01_bad": {"rows": 7}}, two)
    assert resolved == {"01_bad": {"rows": 7}, "02_good": {"rows": 9, "scale": 1.0}}


def test_a_parameter_set_that_is_not_a_mapping_is_refused(tmp_path):
    path = tmp_path / "x.yaml"
    for text in ("- a\n", "a: 3\n", "a: [1\n"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"x\.yaml"):
            read_set(path)
    with pytest.raises(InputError, match=r"cannot read .*none\.yaml"):
        read_set(tmp_path / "none.yaml")


def test_a_run_inside_notebooks_is_refused():
    with pytest.raises(InputError, match="never writes to"):
        driver.new_folder(driver.root() / "notebooks" / "run", "x")


def test_a_failing_notebook_leaves_its_copy_and_a_report_that_says_so(two, tmp_path):
    before = {p: p.read_bytes() for p in two[0].source.parent.iterdir()}
    run = driver.execute(two, {"02_good": {"rows": 6}}, tmp_path / "run", progress=False)
    assert [(o.stem, o.status) for o in run.outcomes] == [("01_bad", "failed"), ("02_good", "done")]
    assert run.exit_code == 1 and run.outcomes[0].error == "ValueError: the seventh seal"
    assert {p: p.read_bytes() for p in two[0].source.parent.iterdir()} == before
    executed = nbformat.read(run.outcomes[0].executed, as_version=4)
    assert "kept" in json.dumps(executed.cells) and executed.metadata.kernelspec.name == "python3"
    assert "6 0.5 True" in json.dumps(nbformat.read(run.outcomes[1].executed, as_version=4).cells)
    markdown, page = (path.read_text() for path in assemble(run))
    assert "1 of 2 notebooks ran to the end" in markdown and "the seventh seal" in markdown
    assert "the seventh seal" in page and "Traceback" in page and not external_references(page)
    assert [(r.verdict, r.claim) for r in load(tmp_path / "run/evidence.json")] == [
        ("fail", "01_bad runs to its end")
    ]
    for text in (markdown, page):
        assert "0 claims hold, 1 fails" in text and "Does it?" in text and "kept" in page
        assert not [s for s in ("An Exception was", "It does.", "It was proved", "not reached") if s in text]
        assert "It ran." in text and str(tmp_path) not in text and str(driver.root()) not in text
    assert "## Bad" in markdown and '<a href="#01_bad">Bad</a>' in page


def test_a_run_reports_no_claims_but_its_own(tmp_path):
    folder, out = tmp_path / "notebooks", tmp_path / "run"
    folder.mkdir()
    save(out / "evidence" / "03_older.json", [Record("k", "an older run's claim", "c", "pass")])
    save(out / "evidence" / "01_bad.json", [Record("k", "an older run's claim", "c", "pass")])
    found = write(folder, **{"01_bad": BAD, "02_reads": READS})
    shown = driver.execute(found[1:], {}, out, progress=False).outcomes[0].executed.read_text()
    assert '"[]\\n"' in shown, "a run without records must not fall back on another evidence file"
    shown = driver.execute(found, {}, out, progress=False).outcomes[1].executed.read_text()
    assert "fail', '01_bad runs to its end" in shown
    assert "older run" not in (out / "evidence.json").read_text()


def test_the_results_notebook_has_no_pass_to_show_where_nothing_was_checked(tmp_path):
    run = driver.execute(select(discover(), ["06"]), {}, tmp_path / "run", progress=False)
    assert run.exit_code == 0, run.outcomes
    markdown, page = (path.read_text() for path in assemble(run))
    for text in (markdown, page):
        assert "no claim was checked" in text and "0 claims" not in text
    assert [r.verdict for r in load(tmp_path / "run/evidence.json")] == ["measured"]
    assert 'class="card' not in page


def test_a_summary_of_other_records_is_no_claim_and_plurals_agree():
    summary = Record(SUMMARY, "all hold", "c", "measured")
    one, bad = Record("k", "a", "c", "pass"), Record("k", "b", "c", "fail")
    assert tally([one, summary]) == "1 claim holds, 0 fail"
    assert tally([one, one, bad, summary]) == "2 claims hold, 1 fails"
    assert tally([summary]) == "no claim was checked"


def test_what_times_decide_is_said_between_the_marks_of_times_alone():
    for verdict in ("pass", "measured"):
        timed = Record("service-ab", "b may replace a", "b with a", verdict, facts={"verdict": "accepted: x"})
        assert tally([timed]) == "0 claims hold, 0 fail, 1 decided by times"
        assert verdicts.count([timed]) == {"pass": 0, "fail": 0, "measured": 0, "by times": 1}
        assert verdicts.by_times([timed]) == ["b may replace a: accepted: x."]
        assert "by times" in claims_table([timed]).markdown()
    changed = Record("service-ab", "b may replace a", "b with a", "fail")
    assert tally([changed]) == "0 claims hold, 1 fails" and not verdicts.by_times([changed])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_opening_and_closing_point_at_nothing_that_the_short_report_leaves_out(notebook):
    node = notebook.read()
    text = f"{render.head(node)[1]} {render.closing(node)}"
    assert render.closing(node) and not re.search(r"\b(below|above|beside it|left|right)\b", text), text


def test_ctrl_c_keeps_what_is_done_and_skips_the_rest(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    write(folder, **{"01_good": GOOD, "02_stops": STOPS, "03_never": GOOD})
    program = (
        "import os, sys; from pathlib import Path; from crucible.report import driver, notebooks, assemble\n"
        "out = Path(sys.argv[2]); out.mkdir(); (out / 'driver.pid').write_text(str(os.getpid()))\n"
        "run = driver.execute(notebooks.discover(Path(sys.argv[1])), {}, out, progress=False)\n"
        "assemble.assemble(run); print([o.status for o in run.outcomes]); sys.exit(run.exit_code)"
    )
    command = [sys.executable, "-c", program, str(folder), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "['done', 'stopped', 'skipped']", done.stderr
    assert done.returncode == 130
    assert "half way" in (tmp_path / "run/notebooks/02_stops.ipynb").read_text()
    assert "stopped by Ctrl-C" in (tmp_path / "run/report.html").read_text()


def test_records_of_a_run_are_gathered_in_name_order(tmp_path):
    for stem in ("02_b", "01_a"):
        save(tmp_path / "evidence" / f"{stem}.json", [Record("k", f"claim {stem}", "c", "measured")])
    assert [r.claim for r in load(driver.collect(tmp_path, ["02_b", "01_a"]))] == ["claim 01_a", "claim 02_b"]
    assert load(driver.collect(tmp_path, [])) == []


def test_a_check_is_a_claim_of_the_report_and_a_broken_one_fails(tmp_path):
    def broken():
        raise InputError("vector file x.npz is damaged")

    kept = Record("conformance", "all vectors hold", "x", "pass", 3, 3, 3)
    run = driver.execute([], {}, tmp_path / "run", checks={"conformance": lambda: [kept], "other": broken})
    found = load(run.folder / "evidence.json")
    assert [(r.kind, r.verdict) for r in found] == [("conformance", "pass"), ("other", "fail")]
    assert found[1].facts["error"] == "vector file x.npz is damaged"
    assemble(run)
    assert "all vectors hold" in (run.folder / "report.md").read_text()


def test_the_vectors_of_the_checkout_hold_on_this_machine():
    from crucible.report.checks import conformance

    [found] = conformance()
    assert found.kind == "conformance" and found.verdict == "pass" and found.elements > 200_000
    assert found.facts["sum256"] == 32


def test_a_machine_with_a_gpu_holds_it_to_the_vectors_too(monkeypatch):
    from crucible.report import checks

    monkeypatch.setattr(checks, "gpu", lambda: None)
    assert set(checks.checks()) == {"conformance"}
    monkeypatch.setattr(checks, "gpu", lambda: "an NVIDIA GPU")
    made = checks.checks()
    assert set(made) == {"conformance", "conformance-cuda"} and made["conformance-cuda"].args == ("cuda",)


def test_the_markdown_report_has_every_table_of_the_notebooks_once(tmp_path):
    v4 = nbformat.v4
    tables = [table(("kernel", "registers"), [("a", n)]) for n in (32, 64)]
    outputs = [v4.new_output("display_data", t._repr_mimebundle_()) for t in (*tables, tables[0])]
    cells = [v4.new_markdown_cell("# T\n\nQ"), v4.new_markdown_cell("## Resources")]
    node = v4.new_notebook(cells=[*cells, v4.new_code_cell("1", outputs=outputs, execution_count=1)])
    nbformat.write(node, tmp_path / "06_x.ipynb")
    run = driver.Run(tmp_path, "", [driver.Outcome("06_x", "done", 1.0, tmp_path / "06_x.ipynb", {})])
    text = assemble(run)[0].read_text()
    for one in tables:
        assert text.count(one.markdown()) == 1
    assert text.count("### Resources") == 1


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*run\.json: .*file is not a folder"):
        driver.new_folder(tmp_path / "file" / "run", "x")


@pytest.mark.parametrize("section", ["common", "02_good"])
def test_a_set_cannot_lead_records_elsewhere(two, section):
    with pytest.raises(InputError, match=f"{section} sets output_dir, which the report sets itself"):
        resolve({section: {"output_dir": "/elsewhere"}}, two)


@pytest.mark.parametrize("text", ["01_bad: {rows: 1, rows: 2}\n", "01_bad: {rows: 1}\n01_bad: {rows: 2}\n"])
def test_a_name_that_stands_twice_in_a_set_is_refused(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError, match=r"x\.yaml: (rows|01_bad) stands twice"):
        read_set(tmp_path / "x.yaml")


def test_a_page_stays_until_the_next_one_is_whole(tmp_path, monkeypatch):
    run = driver.execute([], {}, tmp_path / "run")
    before = [path.read_bytes() for path in assemble(run)]
    run.outcomes = [driver.Outcome("01_bad", "failed", 1.0, None, {}, "why")]

    def full(self, *_, **__):
        self.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match=r"cannot write .*report\.md: No space left on device"):
        assemble(run)
    assert [(run.folder / name).read_bytes() for name in ("report.md", "report.html")] == before
