"""The command line as a fixture."""

import sys

import pytest

from crucible.cli import main as cli


@pytest.fixture
def crucible(monkeypatch, capsys):
    """Run the command line in this process: crucible(*arguments) -> (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["crucible", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run
