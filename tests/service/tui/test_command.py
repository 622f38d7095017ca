"""`crucible chat` refuses in one sentence, before a screen is taken, what cannot become a chat."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import crucible
from crucible.service.tui.source import Sampling
from crucible.service.tui.transcript import Transcript, Turn

RUN = "from crucible.cli.main import main; main()"


def run(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", RUN, "chat", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(crucible.__file__).parents[1],
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture
def chat_command():
    """chat_command(*options): what the command raises or ends with, in this process."""
    import typer
    from typer.testing import CliRunner

    from crucible.cli import chat

    app = typer.Typer()
    app.callback()(lambda: None)
    chat.register(app)
    return lambda *args: CliRunner().invoke(app, ["chat", *args])


def test_without_a_terminal_it_points_to_generate():
    done = run()
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: a chat needs a terminal") and "crucible generate" in done.stderr


REFUSED = {
    "an unknown theme": (["--theme", "pink"], "choose dark or light"),
    "load and replay": (["--load", "a", "--replay", "b"], "give one of them"),
    "a model with a service": (["--url", "http://127.0.0.1", "--model", "smollm2"], "--model"),
    "a wrong temperature": (["--temperature", "-1"], "at least 0"),
    "a wrong limit": (["--max-tokens", "0"], "at least 1"),
    "no such model": (["--model", "nothing/here"], "no model at"),
    "no such device": (["--model", "synthetic-2x64", "--device", "abacus"], "abacus"),
    "no such file": (["--load", "nothing.json"], "cannot read nothing.json"),
    "bytes that are no text": (["--system", "a\udcff"], "UTF-8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_be_are_refused_before_the_screen(chat_command, monkeypatch, in_folder, case):
    args, sentence = REFUSED[case]
    monkeypatch.setattr("crucible.cli.chat._terminal", lambda: True)
    done = chat_command(*args)
    assert done.exception is not None and sentence in str(done.exception), done


def test_a_replay_without_a_terminal_compares_and_tells_by_its_exit_code(in_folder, tiny, alone):
    from crucible.engine.request import Request

    sampling = Sampling(temperature=1.0, seed=5, max_tokens=8)
    ids = tiny.encode_chat([{"role": "user", "content": "Hi"}])
    result = alone(Request(tuple(ids), **vars(sampling)))
    turn = Turn("Hi", None, 0, sampling, result.text, list(result.tokens), len(ids), result.finish_reason)
    path = in_folder / "chat.json"
    ask = ("--replay", str(path), "--model", "synthetic-2x64", "--mode", "f32", "--device", "cpu")
    for change, code, verdict in ((0, 0, "✓ equal"), (1, 1, "✗ differs at token 3")):
        turn.tokens[3] += change
        path.write_text(json.dumps(asdict(Transcript("synthetic-2x64", [turn]))))
        done = run(*ask)
        assert done.returncode == code and verdict in done.stdout, done
        assert done.stdout.startswith("answer 0: 8 tokens, seed 5: ") and done.stdout.count("\n") == 1
