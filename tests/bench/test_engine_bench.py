"""The engine's benches run and report what they say; nothing here looks at a time."""

import pytest

from crucible.bench import engine, engine_overhead
from crucible.engine.runner import Runner
from crucible.errors import InputError
from crucible.gates.engine_record import tiny_model


@pytest.mark.parametrize("shape", ["16", "x16", "0x3", "3x0", "axb", "1x2x3"])
def test_a_shape_that_is_none_is_refused(shape):
    with pytest.raises(InputError, match="REQUESTSxTOKENS"):
        engine.parse(shape)


def test_throughput_stands_beside_one_request_alone():
    (outcome,) = engine.run([tiny_model()], ["3x20"], 4, 2)
    assert [c.name for c in outcome.contenders] == ["crucible f32", "crucible f32, one alone"]
    assert all(len(c.samples) == 2 and min(c.samples) > 0 for c in outcome.contenders)
    assert outcome.contenders[0].facts["times one alone"] > 0


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
