"""A headless Chromium, a JupyterLab of its own on copies of the notebooks, and a report to look at."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# What JupyterLab is told: all cells in the page, no news and no update check, which would ask the network.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


def pytest_addoption(parser):
    parser.addoption("--pictures", help="write the pictures of README.md into this folder")
    parser.addoption("--report", help="look at this report.html instead of one of the committed notebooks")


@pytest.fixture(scope="session")
def pictures(request) -> Path | None:
    """Where the pictures of README.md go; None without --pictures FOLDER."""
    folder = request.config.getoption("--pictures", default=None)
    return Path(folder).resolve() if folder else None


@pytest.fixture(scope="module")
def chromium():
    """The browser. Skips where playwright or Chromium is absent.

    It ends with its file: until then playwright's event loop runs, and no other test can run one of its own.
    """
    reason = "needs playwright: pip install playwright"
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"needs a Chromium on the PATH: {', '.join(NAMES)}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory):
    """JupyterLab on a folder with notebooks 01 and 04, without outputs; gives (address, token, folder)."""
    pytest.importorskip("jupyterlab", reason="needs jupyterlab")
    nbformat = pytest.importorskip("nbformat")
    from crucible.report.notebooks import discover, select
    from crucible.report.references import fresh

    home = tmp_path_factory.mktemp("lab")
    work = home / "work"
    work.mkdir()
    for notebook in select(discover(), ["01", "04"]):
        node = fresh(notebook)
        node.metadata.pop("jupytext")  # an editor would write a .py beside the copy
        nbformat.write(node, work / f"{notebook.stem}.ipynb")
    for name, values in SETTINGS.items():
        path = home / "config/lab/user-settings/@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    token = secrets.token_hex(16)
    places = {"CONFIG_DIR": home / "config", "DATA_DIR": home / "data", "RUNTIME_DIR": home / "runtime"}
    environment = {**os.environ, **{f"JUPYTER_{name}": str(path) for name, path in places.items()}}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += ["--port=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={work}"]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield _address(server), token, work
    finally:
        server.terminate()  # it ends its kernels first
        server.wait(30)


def _address(server: subprocess.Popen) -> str:
    """The address that the server says it listens on; its further words are read and dropped."""
    said = []
    for line in server.stderr:
        said.append(line)
        if "http://127.0.0.1:" in line:
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return line[line.index("http://127.0.0.1:") :].split("/lab")[0].strip()
    pytest.fail(f"JupyterLab did not start: {''.join(said)[-2000:]}")


@pytest.fixture(scope="module")
def report(request, tmp_path_factory) -> Path:
    """report.html of --report, else of the committed notebooks and the committed example of evidence."""
    given = request.config.getoption("--report", default=None)
    if given:
        return Path(given).resolve()
    pytest.importorskip("nbformat")
    from crucible.report import runs
    from crucible.report.assemble import assemble
    from crucible.report.notebooks import discover, root

    folder = tmp_path_factory.mktemp("report")
    shutil.copy(root() / "notebooks/fixtures/evidence.json", folder / "evidence.json")
    outcomes = []
    for notebook in discover():
        copy = folder / "notebooks" / f"{notebook.stem}.ipynb"
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(notebook.pair, copy)
        values = {runs.READS_EVIDENCE: "evidence.json"} if "results" in notebook.stem else {}
        outcomes.append(runs.Outcome(notebook.stem, "done", 1.0, copy, values))
    return assemble(runs.Run(folder, "params/smoke.yaml", outcomes))[1]
