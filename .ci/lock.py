"""Resolve pyproject.toml's extras into requirements.lock and environment.yml (run by `make lock`)."""

import json
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRA = "dev"

LOCK_HEADER = """\
# Every package that `make report` and `make test` use, pinned. Made by `make lock`: the answer of
#   pip install --dry-run --ignore-installed -e '.[{extra}]'
# with pip {pip} on Python {python}, {system}. Edit pyproject.toml and run `make lock`, not this file.
# Local build tags (torch's +cpu) are left out, so that an index with a CPU build may serve it.
"""

ENVIRONMENT_HEADER = """\
# For conda: conda env create -f environment.yml && conda activate crucible
# conda gives Python and a C++ compiler, pip the packages, at the versions of requirements.lock (a test
# holds them equal). Made by `make lock` from pyproject.toml.
name: crucible
channels:
  - conda-forge
dependencies:
  - python=3.12
  - pip
  - make
  - cxx-compiler
  - pip:
"""


def normalise(name: str) -> str:
    """A package name as the packaging standard compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve() -> tuple[dict[str, str], str]:
    """All packages of `.[dev]` as {name: version without local tag}, and the version of pip that said so."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    target = ["--no-build-isolation", "-e", f"{ROOT}[{EXTRA}]"]
    done = subprocess.run([*command, "--report", "-", *target], stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(done.stdout)
    found = {normalise(i["metadata"]["name"]): i["metadata"]["version"] for i in report["install"]}
    del found["crucible"]
    return {name: version.split("+")[0] for name, version in sorted(found.items())}, report["pip_version"]


def direct() -> list[str]:
    """Names that pyproject.toml asks for itself, `peers` left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: wanted for name, wanted in project["optional-dependencies"].items() if name != "peers"}
    wanted = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    names = {normalise(re.match(r"[A-Za-z0-9._-]+", line).group()) for line in wanted}
    return sorted(names - {"crucible"})


def main() -> None:
    """Write both files."""
    pins, pip = resolve()
    system = f"{platform.system()} {platform.machine()}"
    header = LOCK_HEADER.format(extra=EXTRA, pip=pip, python=platform.python_version(), system=system)
    lines = [f"{name}=={version}\n" for name, version in pins.items()]
    (ROOT / "requirements.lock").write_text(header + "".join(lines))
    rows = [f"      - {name}=={pins[name]}\n" for name in direct()]
    (ROOT / "environment.yml").write_text(ENVIRONMENT_HEADER + "".join(rows) + "      - -e .\n")
    print(f"requirements.lock: {len(pins)} packages; environment.yml: {len(rows)} of them by name")


if __name__ == "__main__":
    main()
