"""The GPU benchmarks of the whole model, as far as they need no GPU: tables, records, refusals."""

import pytest

from crucible import device
from crucible.bench.stages import EMPTY, Profile, profile, table, to_record
from crucible.cli import bench_model
from crucible.errors import InputError, UnavailableError
from crucible.kv.slices import Slice
from crucible.model.layers import Pass
from crucible.model.model import Model
from crucible.sampling.params import SamplingParams

ISSUE = (
    *("embed", "norm", "qkv", "rope", "kv_store", "attention", "o", "residual", "gate_up", "swiglu", "down"),
    *("final_gather", "final_norm", "final_head", "argmax"),
)


def made() -> list[Profile]:
    first = Profile("synthetic", "f32", 4, 256, 0, True)
    first.stages, first.intervals = {EMPTY: [1.0, 2.0, 3.0], "qkv": [40.0, 30.0, 50.0]}, {EMPTY: 1, "qkv": 12}
    first.replay, first.wall = [30.0, 31.0, 32.0], [300.0, 310.0, 320.0]
    second = Profile("synthetic", "int8", 16, 1, 31, False, {"rope": 12}, {"rope": [5.0]}, [4.0], [9.0])
    return [first, second]


def test_stages_walls_and_replays_stand_apart_in_the_table():
    lines = {line.split("  ")[0]: line.split()[-2:] for line in table(made()).splitlines()}
    assert "40.0" in table(made()) and lines["synchronized replay of a graph"] == ["31.0", "4.0"]
    assert lines["host wall, call to tokens"] == ["310.0", "9.0"]
    assert lines["sum of the stages"] == ["40.0", "5.0"]  # without what an empty interval shows
    assert "int8 16x1 after 31, unfused" in table(made())


def test_the_record_of_stages_keeps_every_sample():
    record = to_record(made())
    series = {s.name: s.values for s in record.samples}
    assert series["f32 4x256: stage qkv"] == (40.0, 30.0, 50.0)
    assert series["f32 4x256: host wall"] == (300.0, 310.0, 320.0)
    assert record.facts["f32 4x256: intervals of qkv"] == 12


@pytest.mark.parametrize("mode", ["f32", "int8"])
def test_the_unfused_control_has_a_mark_for_every_stage_and_the_fused_one_says_what_it_joins(mode):
    from crucible.model import synthetic
    from crucible.model.config import ModelConfig

    shape = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "ffn": 96, "vocab": 300}
    rest = {"context": 128, "rope_theta": 10000.0, "eps": 1e-5, "tied": True}
    config = ModelConfig(architecture="llama", **shape, **rest)
    checkpoint = synthetic.open_synthetic(config, 7, "tiny")
    model = Model.from_checkpoint(checkpoint, device.get("simt"), mode)
    cache = model.new_cache(4, 2)
    for request in range(2):
        cache.reserve(request, 8)
    slices, params = [Slice(0, 0, 8), Slice(1, 0, 3)], [SamplingParams()] * 2
    found = {}
    for fused in (False, True):
        marks = []
        model.transformer.profiled(range(11), slices, cache, params, marks.append, fused)
        assert marks[-1] == "end"
        found[fused] = set(marks[:-1])
    assert found[False] == set(ISSUE)
    assert {part for name in found[True] for part in name.split("+")} - {"quantize"} == set(ISSUE)
    assert "rope+kv_store" in found[True] and "o+residual" in found[True]
    assert Pass.__dataclass_fields__["fused"].default is True


def test_what_needs_a_gpu_says_so():
    from crucible.model import synthetic

    with pytest.raises(UnavailableError, match="device cuda"):
        profile(
            Model(
                name="x",
                config=synthetic.CONFIG,
                mode="f32",
                device=device.get("cpu"),
                transformer=None,
                load_tokenizer=None,
            ),
            1,
            1,
        )


@pytest.mark.parametrize(
    ("arguments", "named"), [({"device": "cpu"}, "bench prefill"), ({"against": ["vllm"]}, "vllm")]
)
def test_a_refused_benchmark_is_one_sentence(arguments, named):
    with pytest.raises(InputError, match=named):
        bench_model.model(**arguments)
