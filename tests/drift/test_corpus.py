"""The prompts of drift runs: what intervals take for independent is."""

from types import SimpleNamespace

from crucible.drift.corpus import LENGTHS, Corpus, prompts_of


def test_no_two_of_500_prompts_share_a_token_of_the_text():
    model = SimpleNamespace(source="a file", encode=lambda text: range(len(text) // 4))
    prompts = [request.prompt for request in Corpus(prompts_of(model), replicates=1).requests(500)]
    places = [place for prompt in prompts for place in prompt]
    assert len(set(places)) == len(places)
    assert {len(prompt) for prompt in prompts} == set(LENGTHS)
