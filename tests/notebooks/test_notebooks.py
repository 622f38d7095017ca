"""The committed notebooks: paired by content, fully executed, and shaped so that papermill can drive them."""

import ast
import re

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupytext")

from crucible.errors import InputError
from crucible.report.notebooks import discover, parameters, root
from crucible.report.parameters import read_set, resolve
from crucible.report.references import FORMATS, fresh

try:
    NOTEBOOKS = discover()
except InputError as error:  # the package and its tests alone, as on a machine that only measures
    pytest.skip(str(error), allow_module_level=True)
pytestmark = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)


def code_cells(node):
    return [c for c in node.cells if c.cell_type == "code"]


def tags(cell) -> list[str]:
    return list(cell.metadata.get("tags", []))


def committed(notebook):
    return nbformat.read(notebook.pair, as_version=4)


def test_source_and_notebook_hold_the_same_cells(notebook):
    assert notebook.source.suffix == ".py", f"{notebook.stem} has no percent source"
    pairs = [
        [(c.cell_type, c.source, tags(c), c.id) for c in node.cells]
        for node in (fresh(notebook), committed(notebook))
    ]
    assert pairs[0] == pairs[1], f"{notebook.stem} is not in step with its pair; run make notebooks"


def test_every_code_cell_was_executed_in_order_without_error(notebook):
    node = committed(notebook)
    found = [c.execution_count for c in code_cells(node)]
    assert found == list(range(1, len(found) + 1)), "a cell without its count is skipped by nbval in silence"
    outputs = [o for c in code_cells(node) for o in c.outputs]
    assert outputs and not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]


def test_metadata_is_that_of_a_reference(notebook):
    node = committed(notebook)
    assert node.metadata.kernelspec.name == "python3" and "widgets" not in node.metadata
    assert node.metadata.jupytext.formats == FORMATS
    assert not {k for c in node.cells for k in c.metadata} - {"tags"}, "editor noise in cell metadata"


def test_parameters_are_one_early_cell_of_literals_with_help(notebook):
    cells = code_cells(notebook.read())
    assert [i for i, c in enumerate(cells) if "parameters" in tags(c)] == [1], "imports, then parameters"
    found = parameters(notebook)
    assert "output_dir" in found and found["output_dir"].default == ""
    assert not [p.name for p in found.values() if len(p.help) < 8], "every parameter needs a help comment"


def test_code_cells_are_short_and_import_only_once(notebook):
    for index, cell in enumerate(code_cells(notebook.read())):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= 30, f"cell {index} has {len(lines)} lines"
        imports = any(isinstance(n, ast.Import | ast.ImportFrom) for n in ast.walk(ast.parse(cell.source)))
        assert imports == (index == 0), f"cell {index}: imports belong to the first code cell"


def test_the_story_has_a_title_a_question_an_answer_and_an_end(notebook):
    texts = [c.source for c in notebook.read().cells if c.cell_type == "markdown"]
    assert texts[0].startswith("# ") and "**Question.**" in texts[0] and "**Answer.**" in texts[0]
    assert sum(t.startswith("# ") for t in texts) == 1
    assert [t for t in texts if t.startswith("#")][-1].startswith("## What we know now")
    assert "record.publish(" in code_cells(notebook.read())[-1].source


def test_only_cells_that_print_times_are_left_unchecked(notebook):
    for cell in code_cells(notebook.read()):
        if "nbval-ignore-output" in tags(cell):
            assert re.search(r"perf_counter|seconds|timed", cell.source), cell.source
        assert not set(tags(cell)) & {"nbval-skip", "raises-exception"}
        assert "NBVAL" not in cell.source and "PYTEST_VALIDATE" not in cell.source


@pytest.mark.parametrize("name", ["smoke", "cpu", "gpu"])
def test_the_committed_parameter_sets_fit(notebook, name):
    path = root() / "params" / f"{name}.yaml"
    assert notebook.stem in resolve(read_set(path), NOTEBOOKS, path.name)
