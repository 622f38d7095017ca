"""Execute the committed notebooks again at default parameters: python -m crucible.report.references."""

import sys
from pathlib import Path

import nbformat

from crucible.errors import CrucibleError
from crucible.report.driver import KERNEL, KERNEL_ARGUMENTS
from crucible.report.notebooks import Notebook, discover, select

# What differs from run to run or from editor to editor, and says nothing about the notebook.
_CELL_NOISE = ("execution", "papermill", "ExecuteTime")
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": KERNEL}
FORMATS = "ipynb,py:percent"


def fresh(notebook: Notebook):
    """The source as a notebook without outputs, with stable cell ids and the metadata of a reference."""
    node = notebook.read()
    node.metadata = nbformat.NotebookNode(
        jupytext={"formats": FORMATS}, kernelspec=KERNELSPEC, language_info={"name": "python"}
    )
    node.nbformat, node.nbformat_minor = 4, 5
    for index, cell in enumerate(node.cells):
        cell["id"] = f"cell-{index:02d}"
        cell.metadata = nbformat.NotebookNode({k: v for k, v in cell.metadata.items() if k == "tags"})
    return node


def execute(notebook: Notebook):
    """Run the notebook in its own folder, as nbval and JupyterLab do; the executed node, noise removed."""
    from nbclient import NotebookClient

    node = fresh(notebook)
    options = dict(kernel_name=KERNEL, extra_arguments=list(KERNEL_ARGUMENTS), store_widget_state=False)
    client = NotebookClient(node, timeout=1200, **options)
    client.execute(cwd=str(notebook.source.parent))
    node.metadata["language_info"] = {"name": "python"}
    for cell in node.cells:
        for name in _CELL_NOISE:
            cell.metadata.pop(name, None)
        for output in cell.get("outputs", []):  # a widget's id is random and means nothing after its kernel
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    return node


def update(notebook: Notebook) -> Path:
    """Write the executed reference beside its source; returns its path."""
    node = execute(notebook)
    nbformat.validate(node)
    nbformat.write(node, notebook.pair)
    return notebook.pair


def main(arguments: list[str]) -> int:
    """Update the named references (all without names); 2 on a wrong name, 1 when a cell fails."""
    from nbclient.exceptions import CellExecutionError

    try:
        chosen = select(discover(), arguments)
    except CrucibleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for notebook in chosen:
        print(f"executing {notebook.stem}", flush=True)
        try:
            update(notebook)
        except CellExecutionError as error:
            print(f"error: {notebook.stem} failed: {error.ename}: {error.evalue}\n{error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
