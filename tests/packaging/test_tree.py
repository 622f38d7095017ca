"""What the repository may carry: no path of one machine, no address of a package index."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".ipynb",
    ".cu",
    ".cuh",
    ".cpp",
    ".h",
    ".hpp",
    ".json",
    ".lock",
}
# Written in pieces, so that this file passes its own test.
HOME = re.compile(
    "(?<![\\w.~}-])/(?:" + "|".join(("home", "root", "work", "Users", "mnt", "data")) + ")/[A-Za-z0-9._-]+"
)
INDEX = re.compile(
    "|".join(("py" + "pi\\.org", "files\\.python" + "hosted", "download\\.py" + "torch", "npm" + "js\\.org"))
)


def _files() -> list[Path]:
    shown = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if shown.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in shown.stdout.split("\0") if name]
    return [p for p in paths if p.is_file() and (p.suffix in TEXT or p.name in ("Makefile", "run"))]


def _hits(pattern: re.Pattern) -> list[str]:
    found = []
    for path in _files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    return found


def test_no_file_carries_an_absolute_path_of_one_machine():
    assert not _hits(HOME)


def test_no_file_names_the_host_of_a_package_index():
    assert not _hits(INDEX)


@pytest.mark.parametrize("line", ["open('/ho" + "me/ann/x')", "cd /wo" + "rk/main"])
def test_a_machine_path_would_be_caught(line):
    assert HOME.search(line)


def test_large_files_stay_out_of_the_repository():
    assert not [str(p) for p in _files() if p.stat().st_size > 2_000_000]


def test_every_link_of_the_readme_leads_to_a_file():
    links = re.findall(r"\]\((?!http|#)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(links) > 5
    assert not [link for link in links if not (ROOT / link).exists()]
