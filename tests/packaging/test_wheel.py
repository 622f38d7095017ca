"""The built wheel, installed into an empty environment, is enough to check a machine."""

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ("exp", "philox", "sums", "linear_f32_k64", "linear_i8_k64", "attention_g4_d64")


def _run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    return next(out.glob("crucible-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The bin folder of an environment with the wheel and its base dependencies, and nothing else.

    The dependencies are those of this environment, linked one by one: no network, no undeclared package.
    """
    home = tmp_path_factory.mktemp("empty")
    venv.create(home, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin/python", "--disable-pip-version-check")
    _run(*pip, "install", "--no-index", "--no-deps", wheel)
    site = next((home / "lib").glob("python*/site-packages"))
    for found in _needed():
        for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(found.locate_file(top))
    return home / "bin"


def _needed() -> list[Distribution]:
    """The distributions here that the base dependencies of pyproject.toml ask for, directly or not."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    found: dict[str, Distribution] = {}
    waiting = [Requirement(line) for line in asked]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name.lower() not in found:
            found[requirement.name.lower()] = distribution(requirement.name)
            waiting += map(Requirement, found[requirement.name.lower()].requires or ())
    return list(found.values())


def _elsewhere(folder: Path) -> dict:
    """Run outside the checkout, with a build cache of its own and no import path into the checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {"cwd": folder, "env": {**kept, "CRUCIBLE_CACHE": str(folder / "cache")}}


def test_wheel_carries_every_kernel_source_and_nothing_of_the_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [path for path in (ROOT / "kernels").rglob("*") if path.is_file()]
    assert sources
    missing = [s for s in sources if f"crucible/_kernels/{s.relative_to(ROOT / 'kernels')}" not in names]
    assert not missing
    assert all(name.startswith(("crucible/", "crucible-")) for name in names)


def test_installed_wheel_states_its_version(installed, tmp_path):
    from crucible import __version__

    assert _run(installed / "crucible", "--version", **_elsewhere(tmp_path)) == f"crucible {__version__}\n"


def test_installed_wheel_is_not_the_checkout(installed, tmp_path):
    show = "import crucible.device.sources as s; print(s.kernels_dir())"
    folder = Path(_run(installed / "python", "-c", show, **_elsewhere(tmp_path)).strip())
    assert folder.name == "_kernels" and installed.parent in folder.parents


def test_installed_wheel_passes_conformance_outside_the_checkout(installed, tmp_path):
    files = [ROOT / "tests/vectors" / f"{name}.npz" for name in VECTORS]
    _run(installed / "crucible", "conformance", *files, "--device", "cpu", **_elsewhere(tmp_path))


def test_installed_wheel_describes_the_machine(installed, tmp_path):
    assert "compiler" in _run(installed / "crucible", "doctor", **_elsewhere(tmp_path)).lower()
