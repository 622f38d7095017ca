"""The benchmark machinery keeps its promises; what it measures is no test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.bench.engines import ENGINES, PEERS, hugging_face_name
from crucible.bench.outcome import Contender, Outcome, matrix, save, to_record
from crucible.bench.rounds import interleave, order, seconds_per_call
from crucible.bench.worker import Worker
from crucible.errors import InputError, UnavailableError
from crucible.evidence import record


def _outcome(title="x", better=True):
    ours = Contender("crucible f32", "f32", "tok/s", (20.0, 30.0, 40.0), ours=True, facts={"peak GB": 1.25})
    peer = Contender("peer", "other", "tok/s", (10.0, 10.0, 10.0))
    return Outcome(title, (ours, peer), higher_is_better=better)


def test_every_second_round_runs_in_reverse():
    taken = []
    contenders = {name: (lambda name=name: taken.append(name) or 1.0) for name in "abc"}
    samples = interleave(contenders, rounds=3, pause=0.0)
    assert "".join(taken) == "cba" + "abc" + "cba" + "abc"  # the first round is thrown away
    assert samples == {name: [1.0] * 3 for name in "abc"}
    assert order("ab", 0) == ["a", "b"] and order("ab", 1) == ["b", "a"]


def test_no_rounds_is_refused():
    with pytest.raises(InputError, match="at least 1"):
        interleave({"a": lambda: 1.0}, rounds=0)


def test_a_call_is_warmed_and_then_timed_at_least_once():
    calls = []
    assert seconds_per_call(lambda: calls.append(1), at_least=0.0) > 0
    assert calls == [1, 1]


@pytest.mark.parametrize(("better", "expected"), [(True, (2.0, 3.0, 4.0)), (False, (0.5, 10 / 30, 0.25))])
def test_ratios_are_paired_by_round_and_say_how_much_faster_ours_is(better, expected):
    [(ours, peer, ratios)] = _outcome(better=better).speedups()
    assert (ours, peer) == ("crucible f32", "peer")
    assert ratios == pytest.approx(expected)


def test_text_shows_medians_with_brackets_and_the_ratio():
    text = _outcome().text()
    assert "30 [20, 40]" in text and "crucible f32 / peer: 3 [2, 4]x" in text and "peak GB 1.25" in text
    assert matrix([_outcome("one"), _outcome("two")]).count("3 [2, 4]") == 2


def test_a_record_keeps_every_sample_and_replaces_its_own_kind_only(tmp_path):
    path = tmp_path / "bench.json"
    save(path, [to_record("decode", "first", [_outcome()], {"threads": 2})])
    save(path, [to_record("prefill", "other", [_outcome()], {})])
    save(path, [to_record("decode", "second", [_outcome()], {})])
    kept = {r.kind: r for r in record.load(path)}
    assert set(kept) == {"bench.decode", "bench.prefill"}
    assert kept["bench.decode"].claim == "second"
    assert kept["bench.decode"].samples[0].values == (20.0, 30.0, 40.0)
    assert kept["bench.decode"].verdict == "measured" and kept["bench.decode"].not_claimed


def test_every_tensor_of_a_llama_block_has_a_place_in_the_peer():
    from crucible.model.config import ModelConfig

    config = ModelConfig("llama", 2, 64, 2, 1, 32, 96, 100, 64, 1e4, 1e-5, tied=False)
    names = [hugging_face_name(name) for name in config.tensor_shapes()]
    assert len(set(names)) == len(names) == 3 + 2 * 9
    assert "model.layers.1.self_attn.o_proj.weight" in names and "lm_head.weight" in names


@pytest.mark.parametrize("peer", PEERS)
def test_an_absent_peer_is_one_sentence(peer, monkeypatch):
    assert peer in ENGINES
    code = f"""
import sys; sys.modules["transformers"] = sys.modules["llama_cpp"] = None
from crucible.bench.worker import serve; serve({peer!r}, "smollm2", 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    absent = json.loads(done.stdout)["absent"]
    assert f"is not installed; run: {sys.executable} -m pip install -e '.[peers]'" in absent


def test_an_engine_that_cannot_start_says_why():
    with (
        pytest.raises(UnavailableError, match="cannot start /no/such/python"),
        Worker("x", "m", 1, "/no/such/python"),
    ):
        pass
    with pytest.raises(UnavailableError, match="the process of nonesuch ended"), Worker("nonesuch", "m", 1):
        pass


def test_a_worker_runs_the_model_that_generate_runs():
    from crucible.model.fetch import cached

    if cached("smollm2") is None:
        pytest.skip("smollm2 is not fetched")
    from crucible.bench.tokens import prompt
    from crucible.model.generate import generate
    from crucible.model.model import Model

    ids = prompt("smollm2", 20)
    with Worker("crucible int8", "smollm2", 1) as worker:
        answer = worker.ask("decode", ids=ids, steps=3)
        assert worker.ask("memory")["peak_bytes"] > 100e6
    alone = generate(Model.load("smollm2", mode="int8"), ids, max_tokens=4, ignore_eos=True, digests=False)
    assert answer["tokens"] == alone.tokens


def test_prompts_have_the_length_asked_for_and_repeat():
    from crucible.bench.tokens import prompt

    long = prompt("synthetic-12x768", 700)
    assert len(long) == 700 and prompt("synthetic-12x768", 8) == long[:8]


def test_unknown_peers_and_modes_are_named():
    from crucible.bench import linear, tokens

    with pytest.raises(InputError, match="unknown peer 'tgi'"):
        tokens.run("decode", "smollm2", against=("tgi",))
    with pytest.raises(InputError, match="unknown mode"):
        tokens.run("decode", "smollm2", modes=("fp4",))
    with pytest.raises(InputError, match="no linear shapes for model 'gpt'"):
        linear.run(models=("gpt",))


def test_shapes_of_the_gpu_have_rows_of_their_own_unless_others_are_asked_for():
    from crucible.bench import linear_gpu

    def titles(*given):
        return [f"{t}x{shape.k}x{shape.n}" for shape, rows in linear_gpu.cases(*given) for t in rows]

    assert titles(["square"]) == ["4096x4096x4096", "1024x576x1536"]
    assert titles(["square"], [16]) == ["16x4096x4096", "16x576x1536"]
    assert len(titles()) == 2 * (4 * len(linear_gpu.ROWS) + 2) and not set(titles()) & set(titles(["square"]))
    assert titles(["smollm2", "square"], [1, 4096])[-3:] == ["4096x4096x4096", "1x576x1536", "4096x576x1536"]
    for given, sentence in (
        ((["gpt"],), "no linear shapes for model 'gpt'; choose from smollm2, synthetic-12x768, square"),
        (((), [0]), "rows must be at least 1, got 0"),
        (((), (), (), 1, ["f32", "f16"]), "unknown kind 'f16' of linear layers; choose from f32, int8"),
    ):
        with pytest.raises(InputError) as refused:
            linear_gpu.run(*given)
        assert str(refused.value) == sentence


COMMITTED = Path(__file__).resolve().parents[2] / "outputs" / "cpu-2core" / "bench.json"


def test_the_attention_table_leaves_out_what_was_not_measured(tmp_path):
    from crucible.bench.figures import attention

    facts = {"2x512: auto, median us": 2.0, "2x512: reference, median us": 30.0}
    decode = {"decode-64x1000 at 12/3/64: auto, median us": 4.0}
    kinds = {"bench.attention": facts, "bench.attention-decode": decode}
    path = record.save(
        tmp_path / "a.json", [record.Record(k, "t", "x", "measured", facts=f) for k, f in kinds.items()]
    )
    assert attention(path).splitlines()[2:] == [
        "| 2x512 | 2.0 | 15.0x | - | - |",
        "| decode-64x1000 at 12/3/64 | 4.0 | - | - | - |",
    ]
    with pytest.raises(InputError, match=r"holds no record bench\.attention; run: crucible bench"):
        attention(COMMITTED)


def test_the_committed_record_covers_every_benchmark_and_keeps_its_samples():
    kinds = {r.kind: r for r in record.load(COMMITTED)}
    names = ("linear", "decode", "prefill", "startup", "attention-cpu")
    assert set(kinds) == {f"bench.{name}" for name in names}
    assert all(len(s.values) >= 3 for r in kinds.values() for s in r.samples)


def test_the_command_line_prints_the_side_by_side_and_writes_a_record(tmp_path):
    code = "from crucible.cli.main import main; main()"
    shape = ["--model", "smollm2", "--rows", "1", "--rounds", "1", "--threads", "1"]
    command = [sys.executable, "-c", code, "bench", "linear", *shape, "--json", "b.json", "--note", "a test"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "crucible int8" in done.stdout and "smollm2 head 1x576x49152" in done.stdout
    [kept] = record.load(tmp_path / "b.json")
    assert kept.facts["note"] == "a test" and kept.facts["threads"] == 1 and len(kept.samples) == 10


def test_attention_on_the_processor_prints_both_sides_and_writes_a_record(tmp_path):
    code = "from crucible.cli.main import main; main()"
    options = ["--device", "cpu", "--shape", "single-16", "--rounds", "1", "--threads", "1"]
    command = [sys.executable, "-c", code, "bench", "attention", *options, "--json", "b.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "crucible auto" in done.stdout and "torch SDPA" in done.stdout
    [kept] = record.load(tmp_path / "b.json")
    assert kept.kind == "bench.attention-cpu" and len(kept.samples) == 2


def _stopping(at: int):
    """Two contenders whose `at`-th call in all is a Ctrl-C."""
    calls = []

    def sample():
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return float(len(calls))

    return {"a": sample, "b": sample}


def test_ctrl_c_keeps_the_rounds_that_are_complete():
    kept = interleave(_stopping(8), rounds=9, pause=0.0)  # the warm-up round, two whole ones, half of a third
    assert kept == {"a": [3.0, 6.0], "b": [4.0, 5.0]}
    with pytest.raises(KeyboardInterrupt):
        interleave(_stopping(4), rounds=9, pause=0.0)


def test_ctrl_c_keeps_the_layers_that_are_measured(monkeypatch):
    from crucible.bench import linear

    taken = []

    def measure(title, calls, operations, rounds):
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(title)
        return _outcome(title)

    monkeypatch.setattr(linear, "_measure", measure)
    found = linear.run(("smollm2",), rows=(1,))
    assert [o.title for o in found] == taken and [o.stopped for o in found] == [False, True]
    assert "interrupted" in to_record("linear", "x", found, {}).facts


def test_an_absent_peer_stands_in_the_table_and_in_the_record():
    outcome = Outcome("x", _outcome().contenders, absent=(("llama.cpp", "not installed"),))
    assert "llama.cpp: not measured (not installed)" in outcome.text()
    assert to_record("decode", "x", [outcome], {}).facts["llama.cpp, not measured"] == "not installed"


def test_torch_is_another_name_of_the_transformers_peer():
    from crucible.bench.tokens import _names

    assert _names(["f32"], ["torch", "transformers"]) == ["crucible f32", "transformers"]


def test_more_than_the_context_and_no_rows_are_refused_before_anything_runs():
    from crucible.bench import linear, tokens

    with pytest.raises(InputError, match=r"9000 prompt tokens do not fit .* lower --length"):
        tokens.run("prefill", "synthetic-12x768", length=9000)
    with pytest.raises(InputError, match=r"and 9000 steps do not fit .* lower --length or --steps"):
        tokens.run("decode", "synthetic-12x768", length=1, steps=9000)
    for rows in (0, -1):
        with pytest.raises(InputError, match="rows must be at least 1"):
            linear.run(rows=(rows,))
