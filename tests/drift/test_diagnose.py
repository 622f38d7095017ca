"""A diagnosis finds the first flip, tells defects from drift, and says by which test."""

from dataclasses import replace

import numpy as np
import pytest

from crucible import device
from crucible.attention.run import attention
from crucible.attention.variants import VARIANTS
from crucible.device.sources import kernels_dir
from crucible.drift.candidates import available, open_candidate
from crucible.drift.dense import dense
from crucible.drift.diagnose import conclude, describe_flip, diagnose, lines
from crucible.drift.paths import Request, forced, run
from crucible.errors import InputError
from crucible.numerics.bits import same_bits
from crucible.numerics.scalar_sampling import draw
from crucible.sampling.params import SamplingParams

from .conftest import CONFIG


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("defect-wrong-history", "wrong history"),
        ("defect-wrong-page", "wrong page"),
        ("defect-wrong-head", "wrong head"),
        ("defect-nan", "NaN"),
        ("reference", "same bits"),
        ("exact", "same bits"),
    ],
)
def test_seeded_defects_are_told_apart_and_the_reference_has_none(tiny, corpus, name, kind):
    found = diagnose(tiny, corpus.request(0), open_candidate(name, tiny.device), [corpus.request(3)])
    assert found.sound
    assert found.kind == kind
    assert lines(tiny, found)[-1] == f"verdict: {found.sentence}"


@pytest.mark.parametrize("name", ["q2-k32", "split-sum", "contracted", "tf32"])
def test_a_reordered_sum_differs_without_being_called_a_defect(tiny, corpus, name):
    found = diagnose(tiny, corpus.request(0), open_candidate(name, tiny.device))
    assert found.tensors.differing and found.growth.first == ("attn", 0)
    assert found.kind in ("no flip", "near-tie drift", "sampler sensitivity")


@pytest.mark.parametrize("heads", [(0, 1, 0, 1), (1, 0, 1, 1), (0, 0, 1, 0)])
def test_any_wrong_choice_of_heads_is_called_wrong_head(tiny, corpus, heads):
    own = CONFIG.heads // CONFIG.kv_heads

    def mine(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):
        each = []
        for head in range(CONFIG.heads):  # the query of `head` in the place of one that reads its KV head
            moved = np.zeros_like(q).reshape(q.shape[0], -1, D)
            moved[:, heads[head] * own] = q.reshape(moved.shape)[:, head]
            paged = kpool, vpool, tables, desc, layer, Hkv, D, "reference"
            made = attention(device, moved.reshape(q.shape), *paged).reshape(moved.shape)
            each.append(made[:, heads[head] * own])
        return np.stack(each, axis=1).reshape(q.shape)

    found = diagnose(tiny, corpus.request(0), open_candidate(mine, tiny.device))
    first = next(h for h in range(CONFIG.heads) if heads[h] != h // own)
    assert found.kind == "wrong head"
    assert f"query head {first} with KV head {heads[first]} in place of {first // own}" in found.sentence


def _coarse_until(end: int, spoilt: float):
    """An attention of few mantissa bits, whose rows from position `end` on are `spoilt` times as large."""

    def mine(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):
        made = attention(device, q, kpool, vpool, tables, desc, layer, Hkv, D, "reference")
        made = (made.view(np.uint32) & 0xFFF80000).view(np.float32)
        for first, length, start, _ in desc.tolist():
            made[first : first + length][np.arange(start, start + length) >= end] *= spoilt
        return made

    return mine


@pytest.mark.parametrize(
    ("spoilt", "kind"), [(1.0, "sampler sensitivity"), (0.5, "unexplained"), (np.nan, "NaN")]
)
def test_a_defect_is_found_whatever_flips_before_it(tiny, corpus, spoilt, kind):
    request = corpus.request(1)
    mine = _coarse_until(len(request.prompt) + 4, spoilt)
    found = diagnose(tiny, request, open_candidate(mine, tiny.device))
    assert found.flip is not None and found.flip.step < 5
    assert found.kind == kind and ("at step 5, " in found.sentence) == (spoilt != 1)


def test_a_reference_that_meets_itself_flips_no_token(tiny, corpus):
    requests = corpus.requests(6)
    paths = run(tiny, requests, logits=True)
    for place, logits in forced(tiny, requests, [p.tokens for p in paths]):
        assert same_bits(logits, paths[place].logits)


def _tie() -> tuple[np.ndarray, np.ndarray]:
    logits = np.array([1.0, np.nextafter(np.float32(1), np.float32(2)), 0.0, -1.0], np.float32)
    nudged = logits.copy()
    nudged[0] = np.nextafter(nudged[1], np.float32(2))
    return logits, nudged


def test_two_logits_an_ulp_apart_flip_when_nudged_and_are_called_a_near_tie(tiny, corpus):
    tensors = diagnose(tiny, corpus.request(0), open_candidate("split-sum", tiny.device)).tensors
    seed = next(s for s in range(99) if draw(s, 0) < 0.3)  # a draw that one of the tied two takes
    for params in (SamplingParams(), SamplingParams(1.0, 3, 1.0, seed)):
        flip = describe_flip(*_tie(), Request((1,), 1, params), 0)
        assert flip is not None and flip.gap_ulps == 1
        kind, sentence = conclude(tiny, flip, None, tensors, True, flip.mass)
        assert kind == "near-tie drift" and "1 ulp" in sentence


def test_a_boundary_that_moves_over_the_draw_is_called_sampler_sensitivity(tiny, corpus):
    tensors = diagnose(tiny, corpus.request(0), open_candidate("split-sum", tiny.device)).tensors
    u = draw(5, 0)
    below = np.log(u / (1 - u))
    logits, moved = (np.array([below + d, 0.0], np.float32) for d in (1e-5, -1e-5))
    flip = describe_flip(logits, moved, Request((1,), 1, SamplingParams(1.0, 0, 1.0, 5)), 0)
    assert flip is not None
    assert conclude(tiny, flip, None, tensors, True, flip.mass)[0] == "sampler sensitivity"


def test_a_users_cuda_file_with_the_reference_source_has_the_references_bits(tiny, corpus, tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text((kernels_dir() / "attention_reference.cu").read_text())
    found = diagnose(tiny, corpus.request(2), open_candidate(f"{path}:attention_reference", tiny.device))
    assert found.kind == "same bits"


def test_a_candidate_runs_on_simt_too(tiny_simt, corpus):
    request = corpus.request(2)
    one = run(
        tiny_simt,
        [Request(request.prompt, 2, request.sampling)],
        open_candidate("split-sum", tiny_simt.device),
    )
    assert len(one[0].tokens) == 2


def test_a_users_python_file_and_function_come_in_the_same_way(tiny, corpus, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from crucible.attention.run import attention as ours\n"
        "def attention(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):\n"
        "    return ours(device, q, kpool, vpool, tables, desc, layer, Hkv, D, 'reference')\n"
    )
    assert diagnose(tiny, corpus.request(0), open_candidate(str(path), tiny.device)).kind == "same bits"

    @dense
    def zeros(q, k, v, start):
        return np.zeros_like(q)

    assert diagnose(tiny, corpus.request(0), open_candidate(zeros, tiny.device)).kind == "unexplained"


def test_a_candidate_leaves_the_registry_as_it_was(tiny, corpus):
    before = dict(VARIANTS)
    diagnose(tiny, corpus.request(0), open_candidate("defect-nan", tiny.device))
    assert before == VARIANTS


@pytest.mark.parametrize("spec", ["q2-k33", "auto", "", "nowhere.cu", "nowhere.py:f"])
def test_a_candidate_that_is_not_there_is_refused_in_a_sentence(spec):
    with pytest.raises(InputError):
        open_candidate(spec, device.get("cpu"))


def test_library_attention_is_within_its_tolerance_in_f32(tiny, corpus):
    pytest.importorskip("torch")
    assert {"sdpa-math", "flex"} <= set(available(tiny.device))
    for name in ("sdpa-math", "flex"):
        found = diagnose(tiny, corpus.request(0), open_candidate(name, tiny.device))
        assert found.defect is None and found.tensors.differing
    coarse = diagnose(tiny, corpus.request(0), open_candidate("sdpa-math-bf16", tiny.device))
    assert coarse.defect is not None and coarse.defect.kind == "coarse arithmetic"


def test_more_steps_than_the_context_holds_are_refused_before_anything_runs(tiny, corpus, monkeypatch):
    monkeypatch.setattr(tiny, "new_cache", lambda *_, **__: pytest.fail("pages were made"))
    short, longer = corpus.request(0), corpus.request(1)
    steps = CONFIG.context - len(longer.prompt) + 1
    for asked, company in ((replace(longer, steps=steps), []), (short, [replace(longer, steps=steps)])):
        with pytest.raises(InputError, match=f"exceed the context of 128; ask for at most {steps - 1} steps"):
            diagnose(tiny, asked, open_candidate("split-sum", tiny.device), company)
