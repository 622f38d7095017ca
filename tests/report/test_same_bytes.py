"""Two runs with the same parameters give the same report but for what stands between the marks of times."""

import re
import shutil

import pytest

pytest.importorskip("nbformat")
pytest.importorskip("jupytext")

from crucible.errors import InputError
from crucible.report import driver, render
from crucible.report.assemble import assemble
from crucible.report.notebooks import discover, select
from crucible.report.parameters import read_set, resolve

try:
    NOTEBOOKS = discover()
except InputError as error:  # the package and its tests alone, as on a machine that only measures
    pytest.skip(str(error), allow_module_level=True)

MARKED = re.compile(f"{re.escape(render.TIMES[0])}.*?{re.escape(render.TIMES[1])}", re.DOTALL)
TIMED = """# %% [markdown]
# # Times
#
# How long?

# %%
import time

from crucible.evidence import environment, record

# %% tags=["parameters"]
output_dir = ""  # folder for the record

# %% tags=["nbval-ignore-output"]
now = time.perf_counter()
series = record.Series("a clock", "s", (now, now + 1))
print(now)

# %%
result = record.Record(
    "clock", "a clock was read", "x", "measured", facts={"s": now}, samples=(series,),
    environment=environment.capture("cpu"),
)
record.publish(result, output_dir, "01_times")
"""


def twice(notebooks, values, folder):
    """[(report.md, report.html, {picture: bytes})] of two runs in folders of their own."""
    made = []
    for name in ("first", "second"):
        run = driver.execute(notebooks, values, folder / name, "params/smoke.yaml", progress=False)
        assert run.exit_code == 0, run.outcomes
        texts = [path.read_text() for path in assemble(run)]
        figures = {p.name: p.read_bytes() for p in sorted((folder / name / "figures").iterdir())}
        made.append((*texts, figures))
    return made


def compare(made):
    (markdown, page, figures), (other_markdown, other_page, other_figures) = made
    for a, b in ((markdown, other_markdown), (page, other_page)):
        assert MARKED.sub("", a) == MARKED.sub("", b)
    assert figures.keys() == other_figures.keys()
    moved = {name for name in figures if figures[name] != other_figures[name]}
    assert moved <= {name for name in figures if name.endswith("_times.png")}, moved


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "01_times.py").write_text(TIMED)
    shutil.copy(select(NOTEBOOKS, ["06"])[0].source, folder)
    return discover(folder)


def test_two_runs_differ_in_times_alone(checkout, tmp_path):
    made = twice(checkout, {}, tmp_path)
    compare(made)
    for a, b in zip(*(one[:2] for one in made), strict=True):
        assert "Gates, here and on named machines: " in a
        assert a != b and len(MARKED.sub("", a)) > len(a) / 2, "times differ, and are the smaller part"
    assert any(made[0][2][name] != made[1][2][name] for name in made[0][2]), "a picture of times differs"


@pytest.mark.slow
def test_two_runs_of_every_notebook_differ_in_times_alone(tmp_path):
    values = resolve(read_set(driver.root() / "params/smoke.yaml"), NOTEBOOKS)
    compare(twice(NOTEBOOKS, values, tmp_path))
