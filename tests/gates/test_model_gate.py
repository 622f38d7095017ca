"""The model gate: what its plans hold, that it passes on cpu and simt, and that it sees what is broken."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from crucible.device import get
from crucible.errors import InputError
from crucible.evidence import record
from crucible.gates import model_cases, model_controls, model_devices, model_parts
from crucible.gates.model import ModelGate, sharing
from crucible.gates.model_cases import CHUNKS, FUZZ_SIZES, SMALL_POOL, TOP_KS, Corpus, random_prompts
from crucible.gates.model_parts import STEPS_OF, TINY, Part, parts
from crucible.gates.model_plan import Admit, Call, Policy, Release, Request, plan
from crucible.gates.model_record import device_records, device_summary, records, summary
from crucible.gates.model_results import Results
from crucible.gates.model_run import Outcome, Workload, alone, choose, run
from crucible.model.cache import pages_for
from crucible.model.transformer import Transformer
from crucible.sampling.params import SamplingParams

CORPUS = Corpus(random_prompts(700, 1))
WORKLOADS = [*CORPUS.fixed(), *CORPUS.fuzz()]
FEW = Corpus(random_prompts(700, 1), 3, 24)


def named(section: str, corpus: Corpus = CORPUS) -> list[Workload]:
    return [w for w in (*corpus.fixed(), *corpus.fuzz()) if w.section == section]


def calls(workload: Workload) -> list[Call]:
    return [op for op in workload.operations if isinstance(op, Call)]


@pytest.fixture(scope="module")
def tiny():
    return model_parts.load(TINY, get("cpu"), "int8")


def gate_of(workloads, device="cpu", mode="int8", controls=False) -> ModelGate:
    """A gate over these workloads; `workloads(corpus)` of short prompts and three steps."""
    return ModelGate(get(device), [Part(TINY, mode, 3, workloads, 24, controls)])


def test_the_corpus_has_the_sequences_that_are_stated():
    sections = Counter()
    for workload in WORKLOADS:
        sections[workload.section] += len(workload.complete)
    assert sections.pop("fuzz") == 237 == sum(FUZZ_SIZES) and len(FUZZ_SIZES) == 24
    assert sum(sections.values()) == 847 and 847 + 237 == 1084
    assert max(len(r.prompt) + r.steps for w in WORKLOADS for r in w.requests) == 1024
    assert {r.steps for w in WORKLOADS for r in w.requests} <= set(range(1, 17))
    four = Corpus(random_prompts(700, 1), STEPS_OF["f32"])
    assert sum(len(w.complete) for w in four.fixed()) == 847


def test_plans_are_a_function_of_the_seed_and_know_no_token():
    def shape(seed, vocab):
        made = Corpus(random_prompts(vocab, seed), seed=seed).fuzz()
        return [(w.name, tuple(w.operations)) for w in made]

    assert shape(1, 700) == shape(1, 32000) and shape(1, 700) != shape(2, 700)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: f"{w.section} {w.name}")
def test_a_plan_runs_every_position_once_in_order_within_its_limits(workload):
    position, active, pages = Counter(), set(), {}
    for op in workload.operations:
        if isinstance(op, Admit):
            assert op.request not in pages
            active.add(op.request)
            pages[op.request] = pages_for(op.positions)
        elif isinstance(op, Release):
            asked = workload.requests[op.request]
            assert op.cancelled or position[op.request] == asked.positions
            active.discard(op.request)
            pages[op.request] = 0
        else:
            assert op.parts and len({part.request for part in op.parts}) == len(op.parts)
            assert sum(part.length for part in op.parts) <= 1024
            for part in op.parts:
                prompt = len(workload.requests[part.request].prompt)
                assert part.request in active and part.start == position[part.request]
                assert part.draws == (part.start + part.length >= prompt)
                assert part.length == 1 or part.start + part.length <= prompt
                position[part.request] += part.length
                pages[part.request] = pages_for(position[part.request])
        assert sum(pages.values()) <= workload.pages and len(active) <= 16
    assert not active and workload.complete


def test_orders_hold_all_six_orders_of_three_at_every_chunk_size():
    seen = set()
    for workload in named("orders"):
        first = calls(workload)[0]
        chunk = max(part.length for part in first.parts)
        seen.add((tuple(part.request for part in first.parts), min(chunk, max(CHUNKS))))
    wanted = {(order, chunk) for order in itertools.permutations(range(3)) for chunk in CHUNKS}
    assert wanted <= seen


def test_sampling_mixes_greedy_every_top_k_and_both_samplers():
    used = {r.sampling for w in named("packing") for r in w.requests}
    assert {p.top_k for p in used if not p.greedy} == set(TOP_KS) and any(p.greedy for p in used)
    assert {p.sampler for p in used if not p.greedy} == {"inverse-cdf", "gumbel-id"}


def test_batches_shrink_and_are_reused_as_stated():
    def sizes(workload):
        decodes = [c for c in calls(workload) if all(part.length == 1 for part in c.parts)]
        return [n for n, _ in itertools.groupby(len(c.parts) for c in decodes)]

    assert [sizes(w) for w in named("reuse")[:2]] == [[16, 1, 8, 2], [1, 2, 4, 8, 16, 1, 8, 2]]
    assert all(sizes(w) == [16, 8] for w in named("shrinking")) and len(named("shrinking")) == 4
    together = [sum(p.draws for p in c.parts) for c in calls(named("together")[0]) if c.parts[0].length > 1]
    assert [n for n in together if n] == [1, 2, 3, 4, 8, 16]


def test_a_cancelled_request_leaves_at_its_boundary_and_its_pages_go_to_the_next(tiny):
    for workload, boundary in zip(named("cancellation"), model_cases.BOUNDARIES * 2, strict=True):
        kinds = list(workload.operations)
        at = kinds.index(Release(2, cancelled=True))
        assert sum(isinstance(op, Call) for op in kinds[:at]) == boundary
        assert isinstance(kinds[at + 1], Admit) and len(workload.complete) == 5
        cache, owned = tiny.new_cache(64, 16, page_seed=1), {}
        for op in kinds[: at + 2]:
            if isinstance(op, Admit):
                owned[op.request] = set(cache.reserve(op.request, op.positions))
            elif isinstance(op, Release):
                cache.release(op.request)
        assert owned[kinds[at + 1].request] & owned[2]


def test_the_small_pool_is_nearly_full_and_decode_grows_into_it():
    for workload in named("small pool"):
        grown, most, pages = 0, 0, {}
        for op in workload.operations:
            if isinstance(op, Admit):
                pages[op.request] = pages_for(op.positions)
            elif isinstance(op, Release):
                pages[op.request] = 0
            else:
                for part in op.parts:
                    need = pages_for(part.start + part.length)
                    grown += need > pages[part.request]
                    pages[part.request] = max(need, pages[part.request])
            most = max(most, sum(pages.values()))
        assert workload.pages == SMALL_POOL and grown >= 10 and most >= SMALL_POOL - 4


def test_packing_off_eager_and_hybrid_runs_are_there():
    assert {c.packed for w in named("packing") for c in calls(w)} == {True, False}
    assert {w.graph for w in WORKLOADS} == {True, False}
    assert {w.variant for w in named("hybrid")} == {"exact-q4-k64-hybrid"}
    assert any(w.variant for w in named("fuzz"))
    assert all(r.steps == 1 for w in named("one token") for r in w.requests)
    assert any(len({p.length > 1 for p in c.parts}) == 2 for w in named("fuzz") for c in calls(w))


def test_a_request_that_can_never_be_admitted_is_refused():
    with pytest.raises(ValueError, match="more than the 2 pages"):
        plan([Request(tuple(range(33)), 1)], Policy(pages=2))


def test_an_unknown_mode_is_refused_with_those_that_exist():
    with pytest.raises(InputError, match="unknown mode 'bf16'; choose one of f32, int8"):
        parts("cpu", True, (TINY,), ("bf16",))


@pytest.mark.parametrize("mode", ["int8", "f32"])
def test_every_section_passes_on_the_cpu_and_every_control_is_caught(mode, tmp_path):
    gate = gate_of(model_parts.few, mode=mode, controls=True)
    total = gate.total
    done = sum(n for _, n in gate.steps())
    assert gate.passed and not gate.found.failures and done == total
    assert set(gate.found.controls[f"{TINY} {mode}"]) == set(model_controls.CONTROLS)
    path = record.save(tmp_path / "model.json", records(gate))
    main, controls = record.load(path)
    assert (main.verdict, controls.verdict) == ("pass", "pass")
    assert main.facts["sequences"] == total and main.elements == total * 700 and not main.differing
    assert any("0 differ" in line for line in summary(gate))


def test_tasks_hold_every_workload_once_and_share_no_request():
    groups = sharing(WORKLOADS)
    assert sorted(itertools.chain(*groups)) == list(range(len(WORKLOADS)))
    requests = [{r for number in group for r in WORKLOADS[number].requests} for group in groups]
    assert sum(map(len, requests)) == len(set().union(*requests)) and len(groups) > 30


def test_processes_find_what_one_process_finds():
    alone, spread = gate_of(model_parts.some), gate_of(model_parts.some)
    list(alone.steps())
    done = list(spread.steps(jobs=2))
    assert spread.passed and sum(n for _, n in done) == spread.total
    for found in (alone.found, spread.found):
        found.seconds.clear()
    assert spread.found == alone.found


def test_an_interrupted_gate_keeps_its_counts_and_claims_nothing():
    gate = gate_of(model_parts.few)
    steps = gate.steps()
    next(steps)
    steps.close()
    assert not gate.passed and gate.found.total(f"{TINY} int8").sequences == 3
    assert [r.verdict for r in records(gate)] == ["measured"]


def two(corpus):
    yield named("packing", corpus)[0]


def test_a_forward_that_errs_in_company_only_is_seen(monkeypatch):
    right = Transformer.choose

    def wrong(self, ids, slices, *args, **options):
        made = right(self, ids, slices, *args, **options)
        if len(slices) > 1:
            made.logits[-1, -1:].view(np.uint32)[...] ^= 1
        return made

    monkeypatch.setattr(Transformer, "choose", wrong)
    gate = gate_of(two)
    list(gate.steps())
    assert not gate.passed and "logits differ" in gate.found.failures[0]
    assert [r.verdict for r in records(gate)] == ["fail"]
    assert any("failed:" in line for line in summary(gate))


def test_a_control_that_goes_unseen_fails_the_gate(monkeypatch):
    monkeypatch.setitem(model_controls.CONTROLS, "nothing broken", (model_controls.Meddling(), None))
    gate = gate_of(two, controls=True)
    list(gate.steps())
    assert not gate.passed and gate.found.controls[f"{TINY} int8"]["nothing broken"] == ""
    assert records(gate)[-1].verdict == "fail"
    assert "  not caught: nothing broken" in summary(gate)


def test_each_field_of_an_outcome_counts():
    values = np.ones(4, np.float32)
    base = Outcome((1, 2), 2, (0.5, 0.25), ("a", "b"), "k", "v", values)
    changes = {"tokens": (1, 3), "draws": 3, "uniforms": (0.5, 0.5), "logits": ("a", "c"), "k": "", "v": ""}
    for name, value in changes.items():
        assert base.differences(replace(base, **{name: value})) == [name]
    found = Results()
    found.compare(found.count("part", "section"), "here", base, replace(base, final=values * 0))
    assert found.total("part").failed == 1 and "here" in found.failures[0] and not found.clean


def test_pages_are_given_back_even_if_a_run_breaks(tiny, monkeypatch):
    cache = tiny.new_cache(32, 16)
    workload = named("shrinking", FEW)[0]
    monkeypatch.setattr(Transformer, "choose", lambda *a, **o: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tiny, workload, cache)
    assert not cache.pages.used


def test_random_state_counts_draws_and_greedy_uses_none(tiny):
    cache = tiny.new_cache(8, 1)
    greedy = alone(tiny, Request((1, 2, 3), 4), cache)
    drawn = alone(tiny, Request((1, 2, 3), 4, SamplingParams(temperature=1.0, seed=3)), cache)
    assert (greedy.draws, greedy.uniforms) == (0, (None,) * 4)
    assert drawn.draws == 4 and len(set(drawn.uniforms)) == 4


def test_rows_sampled_in_one_launch_are_the_rows_sampled_one_by_one():
    logits = np.random.default_rng(2).normal(size=(9, 700)).astype(np.float32)
    requests = [Request((1,), 1, model_cases.mixed(i)) for i in range(9)]
    assert choose(get("simt"), logits, requests, range(9)) == choose(get("cpu"), logits, requests, range(9))


@pytest.mark.parametrize("mode", ["int8", "f32"])
def test_simt_gives_the_bits_of_cpu_for_a_whole_model(mode):
    gate = model_devices.DevicesGate(
        get("simt"), [TINY], [mode], "Some text to read, long enough for a page."
    )
    assert len(list(gate.steps())) == gate.total and gate.passed, gate.found.failures
    (made,) = device_records(gate)
    assert made.verdict == "pass" and made.differing == 0 and made.facts["tokens of text"] == 24
    assert "0 differ" in device_summary(gate)[0]


def test_simt_passes_where_batches_are_reused():
    gate = gate_of(lambda corpus: itertools.islice(corpus.reuse(), 1), "simt")
    list(gate.steps())
    assert gate.passed, gate.found.failures


def command(*arguments) -> tuple[int, str]:
    from typer.testing import CliRunner

    from crucible.cli.gate import app

    done = CliRunner().invoke(app, [str(a) for a in arguments])
    return done.exit_code, done.output


def test_the_command_prints_saves_and_says_pass(monkeypatch, tmp_path):
    monkeypatch.setattr(model_parts, "parts", lambda *a: [Part(TINY, "int8", 3, model_parts.some, 24)])
    code, text = command("model", "--quick", "--json", tmp_path / "model.json")
    assert code == 0 and text.splitlines()[-1] == "pass" and "19 sequences" in text
    assert [r.verdict for r in record.load(tmp_path / "model.json")] == ["pass", "pass"]


def test_the_command_ends_with_1_where_something_differs_and_130_when_stopped(monkeypatch):
    monkeypatch.setattr(model_parts, "parts", lambda *a: [Part(TINY, "int8", 3, model_parts.some, 24)])
    monkeypatch.setitem(model_controls.CONTROLS, "nothing broken", (model_controls.Meddling(), None))
    code, text = command("model")
    assert code == 1 and "not caught: nothing broken" in text

    def stop(self, task):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(ModelGate, "do", stop)
    code, text = command("model")
    assert code == 130 and "interrupted" in text


def test_the_devices_command_prints_saves_and_says_pass(tmp_path):
    english = tmp_path / "text.txt"
    english.write_text("A text of its own. " * 30)
    code, text = command("devices", "--device", "simt", "--model", TINY, "--mode", "f32", "--text", english,
                         "--json", tmp_path / "devices.json")  # fmt: skip
    assert code == 0 and text.splitlines()[-1] == "pass" and "24 tokens of text" in text
    assert [r.verdict for r in record.load(tmp_path / "devices.json")] == ["pass"]


@pytest.mark.gpu
def test_the_quick_part_passes_on_the_gpu():
    gate = ModelGate(get("cuda"), parts("cuda", True, (TINY,)))
    list(gate.steps())
    assert gate.passed, gate.found.failures


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["int8", "f32"])
def test_the_gpu_gives_the_bits_of_cpu_for_a_whole_model(mode):
    gate = model_devices.DevicesGate(get("cuda"), [TINY], [mode], "Some text to read, long enough. " * 20)
    list(gate.steps())
    assert gate.passed, gate.found.failures
