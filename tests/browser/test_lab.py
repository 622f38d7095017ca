"""Notebooks 01 and 04 in JupyterLab: Run All ends without an error, and every figure is drawn."""

import pytest

MINUTES = 4
CELLS = """() => {
  const cells = [...document.querySelectorAll('.jp-Notebook .jp-CodeCell')];
  const shown = name => [...document.querySelectorAll(`.jp-Notebook [data-mime-type="${name}"]`)];
  const images = [...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output img')];
  return {
    prompts: cells.map(c => c.querySelector('.jp-InputPrompt').textContent.trim()),
    errors: [...shown('application/vnd.jupyter.error'), ...shown('application/vnd.jupyter.stderr')]
      .map(e => e.textContent.slice(0, 300)),
    images: images.map(i => [i.naturalWidth, i.getBoundingClientRect().width,
      i.getBoundingClientRect().height]),
    sliders: document.querySelectorAll('.jp-Notebook .widget-slider, .jp-Notebook .widget-dropdown').length,
  };
}"""
# The status bar says Idle only of a kernel that is connected; the notebook's own sign says it too early.
READY = """() => [...document.querySelectorAll('.jp-StatusBar-Widget *')]
  .some(e => !e.children.length && e.textContent.trim().endsWith('| Idle'))"""
ENDED = f"""() => ({READY})() && (
  document.querySelector('.jp-Notebook [data-mime-type="application/vnd.jupyter.error"]') ||
  [...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')]
    .every(p => /^\\[\\d+\\]:$/.test(p.textContent.trim())))"""


@pytest.fixture
def run_all(chromium, lab):
    """run_all(stem) -> (page, what its cells show) after Run > Run All Cells has ended."""
    address, token, _ = lab
    context = chromium.new_context(viewport={"width": 1280, "height": 900})

    def run(stem):
        page = context.new_page()
        page.set_default_timeout(60_000 * MINUTES)
        page.goto(f"{address}/lab/tree/{stem}.ipynb?token={token}&reset")
        page.wait_for_function(READY)
        assert all(text == "[ ]:" for text in page.evaluate(CELLS)["prompts"]), "the copy has no outputs yet"
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.wait_for_function(ENDED)
        return page, page.evaluate(CELLS)

    yield run
    context.close()


def check(notebook, found):
    """Every code cell ran in order, none failed or complained, each picture of the pair is there."""
    import nbformat

    from crucible.report.notebooks import discover, select

    pair = nbformat.read(select(discover(), [notebook])[0].pair, as_version=4)
    cells = [c for c in pair.cells if c.cell_type == "code"]
    outputs = [o for c in cells for o in c.outputs]
    assert not found["errors"]
    assert found["prompts"] == [f"[{n}]:" for n in range(1, len(cells) + 1)]
    assert len(found["images"]) >= sum("image/png" in o.get("data", {}) for o in outputs) - found["sliders"]
    assert found["images"] and all(n > 300 and w > 300 and h > 80 for n, w, h in found["images"])


@pytest.mark.parametrize("stem", ["01_paged_layout", "04_drift_diagnosis"])
def test_run_all_in_jupyterlab_ends_without_an_error_and_shows_the_figures(stem, run_all, pictures):
    page, found = run_all(stem)
    check(stem, found)
    if pictures and stem == "04_drift_diagnosis":  # in README.md
        page.locator(".jp-Notebook img").first.scroll_into_view_if_needed()
        page.screenshot(path=pictures / "lab.png")


def test_a_cell_that_fails_is_seen(run_all, lab):
    import nbformat

    v4 = nbformat.v4
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [v4.new_code_cell(text) for text in ("1", "1 / 0")]
    nbformat.write(v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), lab[2] / "fails.ipynb")
    _, found = run_all("fails")
    assert "ZeroDivisionError" in found["errors"][0]
