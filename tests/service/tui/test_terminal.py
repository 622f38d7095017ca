"""In a real terminal: keys in, text out, another size, a way out that leaves the terminal as it was."""

import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import crucible

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
COMMAND = [sys.executable, "-c", "from crucible.cli.main import main; main()", "chat"]


class Terminal:
    """A tmux server of its own with one shell."""

    def __init__(self, folder: Path):
        self._name = f"crucible-{uuid.uuid4().hex[:12]}"
        env = {k: v for k, v in os.environ.items() if k not in ("TMUX", "NO_COLOR", "COLUMNS", "LINES")}
        root = Path(crucible.__file__).parents[1]
        env |= {"PYTHONPATH": str(root), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        start = ("new-session", "-d", "-x", "100", "-y", "30", "-c", str(folder), "sh")
        subprocess.run(["tmux", "-L", self._name, "-f", "/dev/null", *start], env=env, check=True)

    def tmux(self, *args: str) -> str:
        done = subprocess.run(["tmux", "-L", self._name, *args], capture_output=True, text=True, check=True)
        return done.stdout

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def shows(self, text: str, row: int | None = None) -> None:
        end = time.monotonic() + 60
        while text not in "\n".join((screen := self.screen).split("\n")[row : row and row + 1]):
            assert time.monotonic() < end, f"{text!r} does not appear; the screen is\n{screen}"
            time.sleep(0.1)  # a picture costs a process

    def flag(self, name: str) -> str:
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()

    def kill(self) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def terminal(tmp_path):
    """A terminal of 100 x 30 with a shell in an empty folder."""
    made = Terminal(tmp_path)
    yield made
    made.kill()


def test_a_chat_in_a_terminal_answers_resizes_and_leaves_it_as_it_was(terminal, tmp_path):
    before = terminal.tmux("show", "-sv", "default-terminal"), terminal.flag("cursor_flag")
    options = ("--model", "synthetic-2x64", "--seed", "3", "--max-tokens", "6", "--save", "chat.json")
    terminal.type(shlex.join([*COMMAND, *options]) + "; echo left with $?")
    terminal.keys("Enter")
    terminal.shows("F1 help")
    terminal.shows("0/1024 tokens")
    terminal.type("Hello there")
    terminal.keys("Enter")
    terminal.shows("seed 3 · 6 tokens (the limit)")
    terminal.keys("C-r")
    terminal.shows("✓ equal")
    for columns, rows in ((40, 12), (120, 40), (40, 12)):
        terminal.tmux("resize-window", "-x", str(columns), "-y", str(rows))
        # Not before the chat has drawn at this size: tmux tells a program only of the last of quick resizes,
        # and of none that ends where it began.
        terminal.shows("F1 help", row=rows - 1)
        terminal.shows("✓ equal")
    assert terminal.flag("alternate_on") == "1" and terminal.flag("mouse_any_flag") == "1"
    terminal.keys("C-s")
    terminal.shows("saved to chat.json")
    terminal.keys("C-q")
    terminal.shows("left with 0")
    terminal.type("stty -a | tr -s ' ;' '\\n' | grep -x -e -echo -e echo -e icanon")
    terminal.keys("Enter")
    terminal.shows("\necho\n")
    assert "\nicanon\n" in terminal.screen
    assert terminal.flag("alternate_on") == "0" and terminal.flag("mouse_any_flag") == "0"
    assert (terminal.tmux("show", "-sv", "default-terminal"), terminal.flag("cursor_flag")) == before
    assert (tmp_path / "chat.json").exists() and "Traceback" not in terminal.screen
