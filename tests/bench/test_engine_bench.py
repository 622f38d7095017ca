"""The engine's benches run and report what they say; nothing here looks at a time."""

import pytest

from crucible.bench import engine, engine_overhead
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


def test_overhead_is_told_for_both_batches_with_its_target():
    outcome = engine_overhead.run(tiny_model(), 1)
    assert [c.name for c in outcome.contenders] == ["batch 16", "batch 64"]
    assert [c.facts["target us"] for c in outcome.contenders] == [150.0, 400.0]
    assert not outcome.higher_is_better
