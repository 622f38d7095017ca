"""Flip mass is an exact count of draws, for both samplers."""

import numpy as np
import pytest

from crucible import device
from crucible.drift.cdf import DRAWS, differing_draws, flip_mass, gumbel_mass, ladder, total_variation
from crucible.numerics import inputs
from crucible.sampling.params import SamplingParams
from crucible.sampling.sample import sample

CPU = device.get("cpu")


def _logits(stream: int, vocab: int = 300, scale: float = 4.0) -> np.ndarray:
    return inputs.normalish(9, stream, (vocab,), scale)


@pytest.mark.parametrize(
    "params", [SamplingParams(1.0, 40), SamplingParams(0.7, 0, 0.9), SamplingParams(2.0, 5)]
)
def test_every_edge_is_the_samplers_own_to_the_last_draw(params):
    logits = _logits(1)
    found = ladder(logits, params)
    for edge in found.edges[:-1].tolist():
        for m in (edge - 1, edge):
            if 0 <= m < DRAWS:
                assert sample(CPU, logits, params, 0, u=m / DRAWS).token == found.token_at(m / DRAWS)
    assert found.edges[-1] == DRAWS


def test_the_reference_against_itself_has_no_flip_mass():
    found = ladder(_logits(2), SamplingParams(1.0, 40))
    assert flip_mass(found, found) == gumbel_mass(found, found) == total_variation(found, found) == 0


def test_draws_inside_the_differing_spans_flip_and_their_neighbours_do_not():
    logits, params = _logits(3), SamplingParams(1.0, 40)
    other = logits + inputs.normalish(9, 4, (300,), 1e-4)
    a, b = ladder(logits, params), ladder(other, params)
    spans = differing_draws(a, b)
    assert spans.size and flip_mass(a, b) == int((spans[:, 1] - spans[:, 0]).sum()) / DRAWS
    for low, high in spans.tolist():
        for m, differs in ((low, True), (high - 1, True), (low - 1, False), (high, False)):
            inside = any(x <= m < y for x, y in spans.tolist())
            if 0 <= m < DRAWS and inside == differs:
                tokens = [sample(CPU, x, params, 0, u=m / DRAWS).token for x in (logits, other)]
                assert (tokens[0] != tokens[1]) == differs


def test_two_tied_ranks_that_swap_cost_inverse_cdf_both_probabilities_and_gumbel_id_almost_nothing():
    logits = np.array([1.0, np.nextafter(np.float32(1), np.float32(2)), 0.0, -1.0], np.float32)
    nudged = logits.copy()
    nudged[0] = np.nextafter(nudged[1], np.float32(2))
    params = SamplingParams(1.0)
    a, b = ladder(logits, params), ladder(nudged, params)
    p = a.weights / a.weights.sum()
    assert flip_mass(a, b) == pytest.approx(p[0] + p[1], abs=1e-6)
    assert 0 < gumbel_mass(a, b) < 1e-6


def test_gumbel_mass_is_the_share_of_shared_noise_that_flips():
    logits, params = _logits(5, 40, 2.0), SamplingParams(1.0)
    a, b = ladder(logits, params), ladder(logits + inputs.normalish(9, 6, (40,), 0.3), params)
    noise = -np.log((inputs.bits(9, 7, 40 * 20000).astype(np.float64) + 0.5) / 2**32).reshape(-1, 40)
    picks = [np.take(x.ids, np.argmin(noise[:, x.ids] / x.weights, axis=1)) for x in (a, b)]
    share = float(np.mean(picks[0] != picks[1]))
    assert share > 0.01
    assert abs(share - gumbel_mass(a, b)) < 5 * np.sqrt(share / 20000)


def test_greedy_flips_wholly_or_not_at_all():
    logits = _logits(8)
    other = logits.copy()
    other[int(np.argmin(logits))] = logits.max() + 1
    a, b = (ladder(x, SamplingParams()) for x in (logits, other))
    assert (flip_mass(a, a), flip_mass(a, b)) == (0, 1)
