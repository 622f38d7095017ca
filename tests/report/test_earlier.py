"""A result in a run folder stands until the one that follows it is whole, whatever ends the run between."""

import os
from pathlib import Path

import pytest

pytest.importorskip("nbformat")
pytest.importorskip("jupytext")

import typer

from crucible.cli.report import report
from crucible.errors import InputError
from crucible.evidence.record import Record, load, save
from crucible.report import driver, earlier, runs
from crucible.report.assemble import assemble
from crucible.report.notebooks import discover
from crucible.report.resume import plan

EMPTY = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
HEAD = '# %% tags=["parameters"]\nrows = 4  # rows\n'


class Killed(BaseException):
    """Stands for a process that is gone: nothing after it runs."""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for stem, more in (("01_a", ""), ("02_b", ""), ("03_sums", 'evidence_path = ""  # records so far\n')):
        (folder / f"{stem}.py").write_text(HEAD + more)
    return folder


@pytest.fixture
def does(monkeypatch):
    """What a notebook does beside leaving a copy and a record: by stem, a status or an exception."""
    ways: dict = {}

    def one(notebook, values, folder, progress):
        stem, way = notebook.stem, ways.get(notebook.stem, "done")
        values, count = driver.filled(notebook, values), ways.get("count", 0) + 1
        ways["count"] = count
        executed = folder / "notebooks" / f"{stem}.ipynb"
        executed.write_text(EMPTY + "\n" * count)
        if way != "stopped":
            save(folder / "evidence" / f"{stem}.json", [Record("k", f"{stem}, run {count}", "c", "measured")])
        if isinstance(way, type):
            raise way
        made = runs.made_from(notebook, values)
        return runs.Outcome(stem, way, 1.0, executed, values, "why" * (way != "done"), made)

    monkeypatch.setattr(driver, "_one", one)
    return ways


def call(checkout, only=(), values=None, checks=None):
    run = checkout.parent / "run"
    run.mkdir(exist_ok=True)
    todo = plan(discover(checkout), only, values or {}, run, "a.yaml", checks or {})
    return driver.execute(todo.notebooks, values or {}, run, "a.yaml", False, todo.checks, todo.kept)


def results(folder: Path) -> dict[str, bytes]:
    """Records and executed copies, by path; nothing else may lie about."""
    assert not (folder / earlier.ASIDE).exists()
    kept = [*(folder / "evidence").iterdir(), *(folder / "notebooks").iterdir(), folder / "evidence.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def test_a_notebook_that_is_stopped_when_run_again_leaves_its_earlier_result(checkout, does):
    before = results(call(checkout).folder)
    does["02_b"] = "stopped"
    run = call(checkout, only=["02"])
    assert run.exit_code == 130 and results(run.folder) == before
    assert [(o.status, o.kept) for o in run.outcomes] == [("done", True)] * 3
    assert "what it had given before stands" in run.outcomes[1].note
    page = assemble(run)[1].read_text()
    assert "3 of 3 notebooks ran to the end; 0 claims hold" in page and '<span class="badge pass">' in page
    assert [o.note for o in runs.load(run.folder).outcomes] == [""] * 3


def test_results_of_older_sources_stand_until_new_ones_are_whole(checkout, does):
    call(checkout)
    values = {"01_a": {"rows": 5}, "02_b": {"rows": 5}}
    does["02_b"] = "stopped"
    run = call(checkout, values=values)
    assert [(o.kept, o.older) for o in run.outcomes] == [(False, False), (True, True), (True, True)]
    claims = [r.claim for r in load(run.folder / "evidence.json")]
    assert claims == ["01_a, run 4", "02_b, run 2", "03_sums, run 3"]
    del does["02_b"]
    assert [o.kept for o in call(checkout, values=values).outcomes] == [True, False, False]


def test_a_process_that_is_killed_loses_nothing_and_the_next_one_puts_it_back(checkout, does):
    before = results(call(checkout).folder)
    does["02_b"] = Killed
    with pytest.raises(Killed):
        call(checkout, only=["02"])
    does["01_a"] = "stopped"
    assert results(call(checkout, only=["01"]).folder) == before


def test_a_failed_run_takes_the_place_of_the_earlier_one(checkout, does):
    call(checkout)
    does["02_b"] = "failed"
    run = call(checkout, only=["02"])
    assert [o.status for o in run.outcomes] == ["done", "failed", "done"] and run.exit_code == 1
    assert "02_b runs to its end" in [r.claim for r in load(run.folder / "evidence.json")]
    assert not (run.folder / earlier.ASIDE).exists()


def test_ctrl_c_during_a_check_leaves_its_earlier_records(checkout, does, monkeypatch):
    def pressed():
        raise KeyboardInterrupt

    checks = {"vectors": lambda: [Record("conformance", "vectors hold", "c", "pass", 3, 3, 3)]}
    before = results(call(checkout, checks=checks).folder)
    monkeypatch.setattr("crucible.report.resume.package_digest", lambda: "another")
    run = call(checkout, checks={"vectors": pressed})
    assert run.exit_code == 130 and results(run.folder) == before


def truncate(path: Path) -> None:
    os.truncate(path, 9)


@pytest.mark.parametrize("harm", [truncate, Path.unlink])
@pytest.mark.parametrize("place", ["evidence/01_a.json", "notebooks/01_a.ipynb", "evidence/vectors.json"])
def test_what_is_damaged_or_gone_is_made_again_and_never_passed_over(checkout, does, harm, place):
    made = []

    def check():
        made.append(1)
        return [Record("conformance", "vectors hold", "c", "pass", 3, 3, 3)]

    folder = call(checkout, checks={"vectors": check}).folder
    harm(folder / place)
    before = results(folder)
    with pytest.raises(InputError, match=r"leave out --only, and what is damaged is made again"):
        call(checkout, only=["02"])
    assert results(folder) == before
    run = call(checkout, checks={"vectors": check})
    again = "vectors" in place
    assert [o.kept for o in run.outcomes] == [again, True, False] and len(made) == 1 + again
    assert len(load(folder / "evidence.json")) == 4


def test_a_sum_that_is_damaged_is_made_again_with_any_notebook(checkout, does):
    folder = call(checkout).folder
    truncate(folder / "evidence/03_sums.json")
    assert [o.kept for o in call(checkout, only=["01"]).outcomes] == [False, True, False]


def test_two_reports_do_not_share_a_folder(tmp_path):
    refused = pytest.raises(InputError, match="another crucible report is running in")
    with earlier.alone(tmp_path), refused, earlier.alone(tmp_path):
        pass
    with earlier.alone(tmp_path):
        assert not list(tmp_path.iterdir())


def test_a_stopped_run_says_how_to_go_on_with_the_same_notebooks(tmp_path, does, capsys):
    does["01_paged_layout"] = "stopped"
    with pytest.raises(typer.Exit):
        report(out=tmp_path / "my run", only=["01"])
    assert capsys.readouterr().out.rstrip().endswith("my run' --only 01")
