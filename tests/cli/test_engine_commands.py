"""`crucible gate engine` and `crucible bench engine`: what they print, write and refuse."""

import pytest

from crucible.evidence.record import load
from crucible.gates import engine_record, engine_workloads


@pytest.fixture
def tiny(monkeypatch):
    """A tiny model wherever a command loads one, and few workloads."""
    from crucible.cli import generate

    model, plan = engine_record.tiny_model(), engine_workloads.workloads
    monkeypatch.setattr(generate, "load_model", lambda *_: model)
    monkeypatch.setattr(engine_workloads, "workloads", lambda *a: plan(*a)[16:20])


def test_the_gate_prints_its_counts_and_writes_its_record_and_picture(crucible, tiny, tmp_path):
    record, plot = tmp_path / "engine.json", tmp_path / "timeline.svg"
    arguments = ("--model", "tiny", "--mode", "f32", "--no-controls", "--json", record, "--plot", plot)
    code, out, _ = crucible("gate", "engine", *arguments)
    assert code == 0 and out.endswith("pass\n"), out
    assert " 14 sequences" in out and "0 differences" in out
    (made,) = load(record)
    assert made.verdict == "pass" and made.facts["sequences"] == 38 and plot.exists()


def test_a_gate_with_a_wrong_engine_ends_in_one(crucible, tiny, monkeypatch):
    from crucible.gates import engine
    from crucible.gates.engine_controls import _RowNoise

    monkeypatch.setattr(engine.run, "__defaults__", (True, None, _RowNoise))
    code, out, _ = crucible("gate", "engine", "--model", "tiny", "--mode", "f32", "--no-controls")
    assert code == 1 and "fault: prefix hits in mid-chunk, request" in out and "pass" not in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--plot", "timeline.txt"), "must end in .svg, .png, .pdf"),
        (("--plot", "/dev/null/timeline.svg"), "/dev/null is not a folder"),
        (("--quick", "--model", "tiny", "--plot", "timeline.svg"), "page pressure"),
    ],
)
def test_a_picture_that_will_not_be_drawn_is_refused_before_anything_runs(
    crucible, tiny, monkeypatch, arguments, named
):
    from crucible.gates import engine

    monkeypatch.setattr(engine, "run", None)
    code, _, err = crucible("gate", "engine", "--mode", "f32", "--no-controls", *arguments)
    assert code == 2 and err.startswith("error: ") and named in err and err.count("\n") == 1


def test_a_gate_that_is_stopped_before_its_first_run_replaces_no_record(
    crucible, tiny, monkeypatch, tmp_path
):
    from crucible.gates import engine

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "run", stopped)
    record = tmp_path / "engine.json"
    record.write_text("of an earlier day")
    arguments = ("--model", "tiny", "--mode", "f32", "--no-controls", "--json", record)
    code, _, err = crucible("gate", "engine", *arguments)
    assert code == 130 and "interrupted" in err and record.read_text() == "of an earlier day"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--shape", "16"), "REQUESTSxTOKENS"),
        (("--against", "llama.cpp"), "llama.cpp"),
        (("--mode", "f32", "--mode", "f32"), "--mode f32 is given twice"),
        (("--note", "alone"), "--json"),
        (("--json", __file__), "not a readable evidence file"),
    ],
)
def test_the_bench_refuses_what_it_cannot_run(crucible, arguments, named):
    code, _, err = crucible("bench", "engine", *arguments)
    assert code == 2 and err.startswith("error: ") and named in err and err.count("\n") == 1


def test_the_bench_loads_its_models_with_the_threads_that_it_records(crucible, tiny, monkeypatch):
    from crucible.bench import engine
    from crucible.cli import generate
    from crucible.device.cpu import default_threads

    monkeypatch.setenv("CRUCIBLE_THREADS", "7")
    model, seen = generate.load_model(), []
    monkeypatch.setattr(generate, "load_model", lambda *_: seen.append(default_threads()) or model)
    monkeypatch.setattr(engine, "run", lambda *arguments: seen.append(arguments[6]) or [])
    assert crucible("bench", "engine", "--no-overhead", "--threads", "3")[0] == 0 and seen == [3, 3]


def test_the_bench_refuses_long_requests_before_it_times_anything(crucible, tiny, monkeypatch):
    from crucible.bench import engine_overhead

    monkeypatch.setattr(engine_overhead, "run", None)
    code, _, err = crucible("bench", "engine", "--tokens", "100000")
    assert code == 2 and "exceeds the context" in err and err.count("\n") == 1


def test_the_bench_stands_the_engine_beside_one_request(crucible, tiny, tmp_path):
    record = tmp_path / "bench.json"
    arguments = ("--shape", "3x8", "--tokens", "4", "--rounds", "1", "--no-overhead", "--json", record)
    code, out, _ = crucible("bench", "engine", *arguments)
    assert code == 0 and "one alone" in out
    (made,) = load(record)
    assert made.kind == "bench.engine" and made.environment.device == "cpu"
