"""The engine's benches run and report what they say; nothing here looks at a time."""

import pytest

from crucible.bench import engine, engine_overhead
from crucible.engine.runner import Runner
from crucible.errors import InputError
from crucible.gates.engine_record import tiny_model

NONE = ["16", "x16", "0x3", "3x0", "axb", "1x2x3", " 2x8", "\uff12x8", "1_0x8", "-1x8", "9" * 5000 + "x8"]


@pytest.mark.parametrize("shape", NONE)
def test_a_shape_that_is_none_is_refused(shape):
    with pytest.raises(InputError, match="REQUESTSxTOKENS"):
        engine.parse(shape)


def test_requests_past_the_context_are_refused_before_anything_is_timed():
    model = tiny_model()
    engine.check(model, ["3x20", f"1x{model.config.context - 4}"], 4)
    with pytest.raises(InputError, match="shape 1x1024 with 4 tokens each exceeds the context of 1024"):
        engine.check(model, ["3x20", "1x1024"], 4)


def test_throughput_stands_beside_one_request_alone():
    (outcome,) = engine.run([tiny_model()], ["3x20"], 4, 2)
    assert [c.name for c in outcome.contenders] == ["crucible f32", "crucible f32, one alone"]
    assert all(len(c.samples) == 2 and min(c.samples) > 0 for c in outcome.contenders)
    assert outcome.contenders[0].facts["times one alone"] > 0


def _stop_at(monkeypatch, where, name: str, call: int) -> None:
    """Ctrl-C in the call of that number of a timer that takes no time."""
    calls = iter(range(1, 1000))

    def timer(*_):
        if next(calls) == call:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(where, name, timer)


@pytest.mark.parametrize(
    ("call", "kept"),
    [
        (6, [1]),  # in the second round after the warm-up of the first shape: the second is not begun
        (6 + 3, [2]),  # in the second shape's first round
        (6 + 6, [2, 1]),
    ],
)
def test_a_bench_that_is_stopped_keeps_what_is_complete_and_begins_nothing_more(monkeypatch, call, kept):
    _stop_at(monkeypatch, engine, "engine_rate", call)
    outcomes = engine.run([tiny_model()], ["2x3", "2x4"], 4, 2)
    assert [len(o.contenders[0].samples) for o in outcomes] == kept and outcomes[-1].stopped


def test_an_overhead_that_is_stopped_keeps_its_complete_rounds(monkeypatch):
    _stop_at(monkeypatch, engine_overhead, "step_microseconds", 4)
    outcome = engine_overhead.run(tiny_model(), 5)
    assert outcome.stopped and [len(c.samples) for c in outcome.contenders] == [1, 1]


def test_the_runner_without_a_pass_has_all_that_an_engine_calls():
    """What an idle engine calls is called on a busy machine only, so a run may not meet it."""
    asked = {name for name in vars(Runner) if not name.startswith("_")}
    lacking = {name for name in asked if not hasattr(engine_overhead._NoPass(4), name)}
    assert asked > {"run", "settle"} and lacking == {"kv_digests"}, (
        "digests are of requests that ask for them"
    )


def test_overhead_is_told_for_both_batches_with_its_target():
    outcome = engine_overhead.run(tiny_model(), 1)
    assert [c.name for c in outcome.contenders] == ["batch 16", "batch 64"]
    assert [c.facts["target us"] for c in outcome.contenders] == [150.0, 400.0]
    assert not outcome.higher_is_better
