"""The version files agree with each other, and importing Crucible stays light."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("cupy", "torch", "matplotlib", "pandas", "numpy", "tokenizers", "pydantic", "IPython", "typer")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(lines) -> dict[str, str]:
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^\s+;]+", line) for line in found), "only name==version lines"
    return {_normal(line.split("==")[0]): line.split("==")[1] for line in found}


def _lock() -> dict[str, str]:
    return _pins((ROOT / "requirements.lock").read_text().splitlines())


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _asked() -> list[str]:
    project = _project()
    extras = {name: wanted for name, wanted in project["optional-dependencies"].items() if name != "peers"}
    lines = [*project["dependencies"], *(line for wanted in extras.values() for line in wanted)]
    return [line for line in lines if not line.startswith("crucible")]


def test_environment_yml_holds_the_versions_of_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert pip[-1] == "-e ."
    pins = _pins(pip[:-1])
    assert pins == {name: _lock().get(name) for name in pins}
    assert set(pins) == {_normal(re.match(r"[A-Za-z0-9._-]+", line).group()) for line in _asked()}


def test_lock_satisfies_every_requirement_of_pyproject():
    from packaging.requirements import Requirement

    lock = _lock()
    for requirement in map(Requirement, _asked()):
        assert requirement.specifier.contains(lock[_normal(requirement.name)]), requirement


def test_packages_with_a_reason_to_be_pinned_are_pinned():
    lock = _lock()
    assert lock["torch"] == "2.13.0"
    assert lock["cupy-cuda13x"].startswith("14.2.")
    assert lock["nvidia-cuda-nvrtc"].startswith("13.0.")
    assert _project()["requires-python"] == ">=3.11"


def test_version_is_stated_once_and_the_same():
    from crucible import __version__

    assert _project()["version"] == __version__


def test_import_crucible_loads_nothing_heavy():
    code = f"import sys, crucible; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_command_line_starts_without_torch_or_a_gpu_stack():
    code = (
        "import sys, crucible.cli.main as m\n"
        "try:\n    sys.argv = ['crucible', '--help']; m.main()\nexcept SystemExit: pass\n"
        "print([n for n in ('torch', 'cupy', 'matplotlib', 'pandas', 'tokenizers') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
