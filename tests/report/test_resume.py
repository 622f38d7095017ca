"""A run folder can be gone on with: what is done stands, what changed or failed runs again."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("nbformat")
pytest.importorskip("jupytext")

from crucible.cli.report import report
from crucible.errors import InputError
from crucible.evidence.record import Record, load, save
from crucible.report import driver, runs
from crucible.report.assemble import assemble
from crucible.report.notebooks import discover
from crucible.report.resume import plan

PARAMETERS = """# %% tags=["parameters"]
rows = 4  # rows of the batch
output_dir = ""  # folder for the record

# %%
"""
WRITES = """from crucible.evidence import record
record.publish(record.Record("k", f"{rows} rows", "c", "measured"), output_dir, "01_writes")
"""
READS = """evidence_path = ""  # records so far
"""
FAILS_ONCE = """import pathlib
seen = pathlib.Path("seen")
assert seen.exists() or seen.touch()
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    texts = {"01_writes": WRITES, "02_fails": FAILS_ONCE, "03_sums": "print(rows)\n"}
    for stem, text in texts.items():
        head = PARAMETERS.replace("output_dir", READS + "output_dir") if stem == "03_sums" else PARAMETERS
        (folder / f"{stem}.py").write_text(head + text)
    return folder


@pytest.fixture
def ran(monkeypatch):
    """The stems that were run, in order; nothing is executed but a record is left, as a notebook would."""
    found: list[str] = []

    def one(notebook, values, folder, progress):
        found.append(notebook.stem)
        executed = folder / "notebooks" / f"{notebook.stem}.ipynb"
        executed.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
        save(folder / "evidence" / f"{notebook.stem}.json", [Record("k", notebook.stem, "c", "measured")])
        made = runs.made_from(notebook, driver.filled(notebook, values))
        return runs.Outcome(notebook.stem, "done", 1.0, executed, values, made_from=made)

    monkeypatch.setattr(driver, "_one", one)
    return found


def call(checkout, only=(), values=None, checks=None, named="a.yaml"):
    run = checkout.parent / "run"
    run.mkdir(exist_ok=True)
    todo = plan(discover(checkout), only, values or {}, run, named, checks or {})
    return driver.execute(todo.notebooks, values or {}, run, named, False, todo.checks, todo.kept)


def test_a_failed_notebook_runs_again_and_what_was_done_stands(checkout):
    first = call(checkout)
    assert [o.status for o in first.outcomes] == ["done", "failed", "done"] and first.exit_code == 1
    copy = first.outcomes[0].executed
    before = copy.read_bytes(), copy.stat().st_mtime_ns
    second = call(checkout)
    assert [(o.stem, o.status, o.kept) for o in second.outcomes] == [
        ("01_writes", "done", True),
        ("02_fails", "done", False),
        ("03_sums", "done", False),
    ]
    assert second.exit_code == 0 and (copy.read_bytes(), copy.stat().st_mtime_ns) == before
    assert [r.claim for r in load(second.folder / "evidence.json")] == ["4 rows"]
    assert "3 of 3 notebooks ran to the end" in assemble(second)[1].read_text()


def test_one_notebook_runs_again_beside_the_others_and_so_does_their_sum(checkout, ran):
    call(checkout)
    ran.clear()
    run = call(checkout, only=["01"])
    assert ran == ["01_writes", "03_sums"]
    assert [(o.stem, o.kept) for o in run.outcomes] == [
        ("01_writes", False),
        ("02_fails", True),
        ("03_sums", False),
    ]
    assert len(load(run.folder / "evidence.json")) == 3


def test_one_notebook_in_a_new_folder_runs_alone(checkout, ran):
    assert [o.stem for o in call(checkout, only=["02"]).outcomes] == ["02_fails"] == ran


def test_a_changed_value_or_source_runs_its_notebook_again(checkout, ran):
    call(checkout)
    ran.clear()
    call(checkout, values={"01_writes": {"rows": 5}})
    assert ran == ["01_writes", "03_sums"]
    ran.clear()
    path = checkout / "02_fails.py"
    path.write_text(path.read_text() + "print(1)\n")
    call(checkout, values={"01_writes": {"rows": 5}})
    assert ran == ["02_fails", "03_sums"]


def test_an_outcome_of_older_sources_is_shown_as_such(checkout, ran):
    call(checkout)
    path = checkout / "02_fails.py"
    path.write_text(path.read_text() + "print(1)\n")
    run = call(checkout, only=["01"])
    assert [(o.stem, o.older) for o in run.outcomes if o.older] == [("02_fails", True)]
    for text in (path.read_text() for path in assemble(run)):
        assert "3 of 3 notebooks ran to the end (1 of an earlier state" in text and "done, older" in text


def test_checks_are_kept_with_their_records_while_the_package_stands(checkout, ran, monkeypatch):
    made = []

    def check():
        made.append(1)
        return [Record("conformance", "vectors hold", "c", "pass", 3, 3, 3)]

    for _ in range(2):
        run = call(checkout, checks={"conformance": check})
    run = call(checkout, only=["01"], checks={"conformance": check})
    assert made == [1] and "vectors hold" in [r.claim for r in load(run.folder / "evidence.json")]
    monkeypatch.setattr("crucible.report.resume.package_digest", lambda: "another")
    call(checkout, checks={"conformance": check})
    assert made == [1, 1]


def test_two_parameter_sets_do_not_share_a_folder(checkout, ran):
    call(checkout)
    with pytest.raises(InputError, match=r"holds a run of a\.yaml, not of b\.yaml; choose another --out"):
        call(checkout, named="b.yaml")


def test_a_limit_in_minutes_presses_ctrl_c_and_is_lifted_at_the_end():
    with pytest.raises(KeyboardInterrupt), driver.within(0.001):
        threading.Event().wait()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with driver.within(None):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_request_to_end_is_a_ctrl_c_too():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), driver.within():
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stopped_run_goes_on_with_the_notebook_that_was_stopped(checkout, ran, monkeypatch):
    does = driver._one

    def stops(notebook, *rest):
        done = does(notebook, *rest)
        return replace(done, status="stopped") if notebook.stem == "02_fails" else done

    with monkeypatch.context() as patched:
        patched.setattr(driver, "_one", stops)
        first = call(checkout)
    assert [o.status for o in first.outcomes] == ["done", "stopped", "skipped"] and first.exit_code == 130
    ran.clear()
    assert call(checkout).exit_code == 0 and ran == ["02_fails", "03_sums"]


def test_ctrl_c_during_a_check_leaves_a_report_and_skips_the_notebooks(checkout, ran):
    def pressed():
        raise KeyboardInterrupt

    run = call(checkout, checks={"conformance": pressed})
    assert not ran and run.exit_code == 130
    assert "0 of 3 notebooks ran to the end" in assemble(run)[0].read_text()


def test_the_youngest_run_of_the_same_set_is_resumed(tmp_path):
    for name, named in (("1-a", "a.yaml"), ("2-a", "a.yaml"), ("3-b", "b.yaml")):
        (tmp_path / name).mkdir()
        runs.save(runs.Run(tmp_path / name, named))
    assert runs.newest("a.yaml", tmp_path).name == "2-a"
    with pytest.raises(InputError, match=r"no run of c\.yaml to resume"):
        runs.newest("c.yaml", tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other", "version": 1}', "{}"])
def test_a_damaged_state_is_refused_by_name(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json"):
        runs.load(tmp_path)


def test_the_state_names_no_place_of_this_machine(checkout, ran):
    run = call(checkout, named=str(checkout / "mine.yaml"))
    text = (run.folder / runs.NAME).read_text()
    assert str(checkout.parent) not in text and json.loads(text)["parameter_set"] == "mine.yaml"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0.0}, r"--minutes 0 must lie between 0 and 1440"),
        ({"resume": True, "out": Path("x")}, r"--resume finds the folder by itself; --out x alone"),
        ({"only": ["99"], "out": Path("x")}, r"no notebook '99'"),
    ],
)
def test_options_that_contradict_are_refused_before_a_folder_is_made(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        report(**options)
    assert not list(tmp_path.iterdir())


def test_a_folder_knows_the_parameter_set_it_was_made_with(tmp_path):
    runs.save(runs.Run(tmp_path, "params/smoke.yaml"))
    assert runs.set_of(tmp_path) == driver.root() / "params/smoke.yaml"
    runs.save(runs.Run(tmp_path, "mine.yaml"))
    assert runs.set_of(tmp_path) is None and runs.set_of(tmp_path / "absent") is None
