"""Several requests at once choose the tokens that each chooses alone, on every device."""

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.model.batch import generate_batch, packed_parts
from crucible.model.generate import generate
from crucible.sampling.params import SamplingParams

IDS = np.random.default_rng(1).integers(0, 300, 120).tolist()
PROMPTS = [IDS[:30], IDS[30:31], IDS[40:90], IDS[100:117]]
PARAMS = [
    SamplingParams(),
    SamplingParams(0.8, 20, 0.9, 3),
    SamplingParams(1.1, 0, 1.0, 4, "gumbel-id"),
    SamplingParams(0.5, 7, 1.0, 9),
]


@pytest.mark.parametrize("on", ["cpu", "simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_batch_chooses_what_each_request_chooses_alone(make_tiny, on):
    alone = [
        generate(
            make_tiny(heads=2, head_dim=64),
            prompt,
            max_tokens=12,
            temperature=float(p.temperature),
            top_k=p.top_k,
            top_p=p.top_p,
            seed=p.seed,
            sampler=p.sampler,
            ignore_eos=True,
            digests=False,
        ).tokens
        for prompt, p in zip(PROMPTS, PARAMS, strict=True)
    ]
    model = make_tiny(on=on, heads=2, head_dim=64)
    cache = model.new_cache(40, 4, page_seed=3)
    for rows, ahead in ((37, 0), (1024, 2)):
        assert generate_batch(model, PROMPTS, PARAMS, 12, cache=cache, rows=rows, ahead=ahead) == alone
    stop = alone[1][3]
    found = generate_batch(model, PROMPTS, PARAMS, 12, stops=[stop], cache=cache, ahead=2)
    for tokens, whole in zip(found, alone, strict=True):
        assert tokens == whole[: len(tokens)]
        assert tokens[-1] == stop or len(tokens) == 12
        assert stop not in tokens[:-1]
    assert len(found[1]) < 12 and cache.pages.used == 0


def test_prompts_are_cut_into_calls_within_their_bounds():
    calls = list(packed_parts([30, 1, 50, 17], rows=37, segments=2))
    for call in calls:
        assert sum(part.length for part in call) <= 37 and len(call) <= 2
    for request, length in enumerate((30, 1, 50, 17)):
        parts = [part for call in calls for part in call if part.request == request]
        assert [part.start for part in parts] == [sum(p.length for p in parts[:i]) for i in range(len(parts))]
        assert sum(part.length for part in parts) == length
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_batch_that_breaks_a_rule_is_refused(make_tiny):
    model = make_tiny()
    with pytest.raises(InputError, match="prompt 1 is empty"):
        generate_batch(model, [[1], []], PARAMS[:2], 4)
    with pytest.raises(InputError, match="2 prompts have 1"):
        generate_batch(model, [[1], [2]], PARAMS[:1], 4)
    with pytest.raises(InputError, match="max_tokens"):
        generate_batch(model, [[1]], PARAMS[:1], 0)
