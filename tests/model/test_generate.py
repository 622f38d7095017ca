"""Generation: refusals in one sentence, stops, random state, and requests that do not touch each other."""

import math

import numpy as np
import pytest

from crucible.errors import CrucibleError, InputError
from crucible.model.evaluate import nll
from crucible.model.generate import Generation, Options, Step, generate, stream
from crucible.model.model import Model, open_checkpoint


@pytest.fixture(scope="module")
def model(make_tiny) -> Model:
    return make_tiny(tied=False)  # a tiny tied model repeats its last token


@pytest.mark.parametrize(
    ("prompt", "options", "named"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ("x" * 128, {"max_tokens": 1}, "context of 128"),
        ("x" * 100, {"max_tokens": 29}, "at most 28"),
        ([300], {}, "300"),
        ([-1], {}, "-1"),
        ([1.5], {}, "integers"),
        ([[1]], {}, "flat"),
        ("\ud800", {}, "Unicode"),
        ("a", {"temperature": math.nan}, "temperature"),
        ("a", {"temperature": math.inf}, "temperature"),
        ("a", {"temperature": -0.1}, "temperature"),
        ("a", {"temperature": "hot"}, "temperature"),
        ("a", {"max_tokens": 0}, "max_tokens"),
        ("a", {"max_tokens": 1.5}, "max_tokens"),
        ("a", {"top_k": -1}, "top_k"),
        ("a", {"top_p": 0.0}, "top_p"),
        ("a", {"top_p": 1.5}, "top_p"),
        ("a", {"seed": 1 << 64, "temperature": 1.0}, "seed"),
        ("a", {"seed": -1}, "seed"),
        ("a", {"sampler": "dice"}, "dice"),
        ("a", {"chunk": 0}, "chunk"),
        ("a", {"stop": (300,)}, "300"),
        ("a", {"variant": "nonsense"}, "nonsense"),
        ("a", {"warmth": 1}, "warmth"),
    ],
)
def test_a_request_that_breaks_a_rule_is_one_sentence(model, prompt, options, named):
    with pytest.raises(CrucibleError) as refused:
        generate(model, prompt, **{"max_tokens": 8, **options})
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_a_request_is_refused_before_the_first_token(model):
    with pytest.raises(InputError):
        stream(model, "")


def test_the_stream_is_the_generation(model):
    *steps, result = stream(model, "hello", max_tokens=20, temperature=1.0, seed=5)
    assert isinstance(result, Generation) and all(isinstance(step, Step) for step in steps)
    assert [step.token for step in steps] == result.tokens
    assert "".join(step.text for step in steps) == result.text == model.decode(result.tokens)
    assert [step.logits_digest for step in steps] == result.logits_digests
    assert result == generate(model, "hello", max_tokens=20, temperature=1.0, seed=5)


def test_a_drawn_seed_is_reported_and_gives_the_same_tokens_again(model):
    first = generate(model, "hello", max_tokens=12, temperature=1.3)
    assert first.random_state.seed is not None and first.random_state.next_draw == len(first.tokens)
    again = generate(model, "hello", max_tokens=12, temperature=1.3, seed=first.random_state.seed)
    assert again == first
    other = generate(model, "hello", max_tokens=12, temperature=1.3)
    assert other.random_state.seed != first.random_state.seed


@pytest.mark.parametrize("sampler", ["inverse-cdf", "gumbel-id"])
def test_digests_chunks_and_pages_do_not_move_a_token(model, sampler):
    options = Options(max_tokens=15, temperature=1.1, top_k=50, top_p=0.9, seed=3, sampler=sampler)
    plain = generate(model, "the same request", options)
    assert generate(model, "the same request", options, digests=False).tokens == plain.tokens
    for how in ({"chunk": 3}, {"page_seed": 8}, {"variant": "reference"}):
        assert generate(model, "the same request", options, **how) == plain


def test_a_generation_says_which_attention_ran(model, monkeypatch):
    def ran(**options):
        return [(x.variant, x.asked) for x in generate(model, "a b c", max_tokens=2, **options).attention]

    assert ran() == [("exact", "auto")]
    assert ran(variant="reference") == [("reference", "reference")]
    assert ran(variant="exact-q1-k16-hybrid") == [("exact", "exact-q1-k16-hybrid")]
    monkeypatch.setenv("CRUCIBLE_PREFILL_ATTN", "q2-k32")
    assert ran() == [("online-k32", "online-q2-k32")]
    monkeypatch.setenv("CRUCIBLE_PREFILL_ATTN", "q2-k23")
    with pytest.raises(InputError, match="variant in CRUCIBLE_PREFILL_ATTN 'q2-k23'; did you mean"):
        ran()


def test_greedy_uses_no_draw_and_no_seed(model):
    result = generate(model, "a", max_tokens=5, ignore_eos=True)
    assert (result.random_state.seed, result.random_state.next_draw) == (None, 0)
    assert result == generate(model, "a", max_tokens=5, ignore_eos=True, top_k=3, top_p=0.5)


def test_a_stop_token_ends_the_text_and_is_kept_in_the_tokens(model):
    free = generate(model, "stop here", max_tokens=10, ignore_eos=True)
    assert free.finish_reason == "length" and len(free.tokens) == 10
    third = free.tokens[2]
    stopped = generate(model, "stop here", max_tokens=10, ignore_eos=True, stop=(third,))
    assert stopped.finish_reason == "stop"
    assert stopped.tokens == free.tokens[: free.tokens.index(third) + 1]
    assert stopped.logits_digests == free.logits_digests[: len(stopped.tokens)]


def test_the_models_own_end_token_stops_unless_ignored(model):
    free = generate(model, "end", max_tokens=10, ignore_eos=True)
    assert len(set(free.tokens)) > 5
    ended = Model(**{**vars_of(model), "eos_ids": (free.tokens[4],)})
    upto = free.tokens.index(free.tokens[4]) + 1
    assert generate(ended, "end", max_tokens=10).tokens == free.tokens[:upto]
    assert generate(ended, "end", max_tokens=10, ignore_eos=True).tokens == free.tokens


def vars_of(model: Model) -> dict:
    return {name: value for name, value in vars(model).items() if name != "tokenizer"}


def test_final_digests_cover_prompt_and_generated_positions(model):
    result = generate(model, "abc", max_tokens=6, ignore_eos=True)
    longer = generate(model, [*result.prompt_tokens, *result.tokens[:-1]], max_tokens=1, ignore_eos=True)
    assert longer.prompt_k_digest == result.k_digest and longer.prompt_v_digest == result.v_digest
    assert longer.tokens == result.tokens[-1:]


def test_the_whole_context_can_be_used(model):
    result = generate(model, "x" * 100, max_tokens=28, ignore_eos=True)
    assert len(result.tokens) == 28


def test_windows_and_rows_bound_memory_but_not_the_likelihood(model):
    ids = np.random.default_rng(0).integers(0, 300, 90).tolist()
    whole = nll(model, ids)
    assert whole[1] == 89 and whole[0] > 0
    assert nll(model, ids, rows=7) == whole
    assert nll(model, ids, window=40)[1] == 39 + 39 + 9
    with pytest.raises(InputError, match="at least 2"):
        nll(model, [1])


def test_an_unknown_model_mode_or_device_is_named(tmp_path):
    with pytest.raises(InputError, match="smollm3"):
        open_checkpoint("smollm3")
    with pytest.raises(InputError, match="bf4"):
        Model.load("synthetic-12x768", mode="bf4")
    with pytest.raises(InputError, match="tpu"):
        Model.load("synthetic-12x768", device="tpu")


def test_a_model_that_is_not_fetched_says_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="crucible fetch smollm2"):
        open_checkpoint("smollm2")
