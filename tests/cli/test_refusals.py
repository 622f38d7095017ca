"""A command refuses an option that it would not heed, with one sentence that names it, before it runs."""

import pytest
import typer

from crucible.cli import gate as cli_gate
from crucible.cli.outputs import spared
from crucible.evidence.environment import capture
from crucible.evidence.record import Record, load

TEXT = "some.txt"


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch):
    """A directory with a text, an empty one and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / TEXT).write_text("Some words. " * 20)
    (tmp_path / "empty.txt").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    "command, sentence",
    [
        (
            "gate devices --device simt --text empty.txt",
            "empty.txt is empty; give a file with some sentences",
        ),
        ("gate devices --device cpu", "cpu is what the other devices are held to; choose cuda or simt"),
        ("gate model --mode fp16", "unknown mode 'fp16'; choose one of f32, int8"),
        ("gate model --quick --mode f32 --mode x", "unknown mode 'x'; choose one of f32, int8"),
        ("bench model --stages --against transformers", "--stages profiles Crucible alone"),
        ("bench model --unfused", "--unfused is a control of the stages; add --stages, or leave it out"),
        (
            "bench linear --device cuda --kind f16",
            "unknown kind 'f16' of linear layers; choose from f32, int8",
        ),
        (
            "bench linear --device cuda --model gpt",
            "no linear shapes for model 'gpt'; choose from smollm2, syn",
        ),
        ("bench linear --model square", "no linear shapes for model 'square' on cpu; choose from smollm2, "),
        (f"eval {TEXT} --attention nope --record r.json", "unknown attention variant 'nope'"),
        (f"eval {TEXT} --attention exact", "windows takes no --attention; leave it out, or add --protocol"),
        (f"eval {TEXT} --record r.json", "windows takes no --record; leave it out, or add --protocol with"),
        ("gate drift --candidate tf32 --candidate tf32", "--candidate 'tf32' is given twice; give it once"),
        ("gate drift --candidate reference", "the reference is measured in every run; leave --candidate ref"),
        (
            "gate drift --quick --candidate tf32 --sequences 3",
            "--quick chooses candidates and sequences, and both are given; leave --quick out",
        ),
        (
            "eval --protocol prefill-32 --max-tokens 50",
            "--max-tokens 50 is for windows alone, and prefill-32 has",
        ),
        ("eval --protocol decode --window 64", "--window 64 is for windows alone, and decode has a length"),
    ],
)
def test_what_a_command_would_not_heed_is_refused(crucible, texts, command, sentence):
    before = sorted(texts.iterdir())
    code, out, err = crucible(*command.split())
    assert code == 2 and out == "" and err.startswith(f"error: {sentence}") and err.count("\n") == 1, err
    assert sorted(texts.iterdir()) == before


@pytest.mark.parametrize("gate", ["tensor", "model", "devices"])
def test_a_seed_below_zero_is_refused_by_the_name_of_its_option(crucible, gate):
    code, out, err = crucible("gate", gate, "--seed", "-1")
    assert code == 2 and out == "" and "--seed" in err


def test_an_example_of_the_help_is_accepted(crucible, monkeypatch):
    from crucible.bench import model_gpu
    from crucible.errors import UnavailableError

    def reached(*_):
        raise UnavailableError("reached")

    monkeypatch.setattr(model_gpu, "run", reached)
    _, out, _ = crucible("bench", "model", "--help")
    lines = (line.strip(" │") for line in out.splitlines())
    (example,) = (line for line in lines if line.startswith("crucible bench model"))
    assert crucible(*example.split()[1:])[2] == "error: reached\n"


def test_a_gate_that_was_stopped_before_it_measured_keeps_the_earlier_record(crucible, monkeypatch, tmp_path):
    from crucible.gates.drift import DriftGate

    def stopped(self):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(DriftGate, "work", stopped)
    kept = tmp_path / "kept.json"
    kept.write_text("earlier")
    code, out, err = crucible("gate", "drift", "--model", "synthetic-2x64", "--quick", "--json", kept)
    assert code == 130 and kept.read_text() == "earlier"
    assert "record:" not in out and "is left as it was" in err


def test_a_gate_that_was_stopped_leaves_an_earlier_record_as_it_was(tmp_path, capsys):
    made = Record(kind="k", claim="c", compared="d", verdict="measured", environment=capture("cpu"))
    earlier = tmp_path / "gate.json"
    for text in (None, "earlier"):
        if text is not None:
            earlier.write_text(text)
        with pytest.raises(typer.Exit) as ended:
            cli_gate._finish(True, [], [made], earlier, interrupted=True)
        assert ended.value.exit_code == 130
    assert earlier.read_text() == "earlier"
    assert load(tmp_path / "gate.interrupted.json")[0].claim == "c"
    assert "gate.interrupted.json" in capsys.readouterr().out
    raw = tmp_path / "gate.raw.json.gz"
    assert spared(raw, True) == raw, "nothing is there to be spared"
    raw.write_text("earlier")
    assert spared(raw, True).name == "gate.interrupted.raw.json.gz" and spared(raw, False) == raw
