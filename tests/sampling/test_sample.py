"""Samplers on the cpu device, at every vector level: tokens, kept ranks and draws of the oracle."""

import ctypes
import platform

import numpy as np
import pytest

from crucible import device
from crucible.device import host
from crucible.errors import InputError
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits
from crucible.sampling.params import SAMPLERS, SamplingParams
from crucible.sampling.philox import philox, uniform
from crucible.sampling.sample import ln, logprobs, rank, sample

F = np.float32


def logits_of(kind: str, vocab: int = 1003) -> np.ndarray:
    x = inputs.normalish(21, 0, vocab, 3)
    if kind == "ties":
        x = np.round(x).astype(F)
        x[::7] = -0.0
    if kind == "masked":
        x[::3] = -np.inf
    if kind == "wide":
        x = x * F(40)
    return x


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", ["plain", "ties", "masked", "wide"])
def test_samples_agree_with_the_oracle(cpu, kind, sampler):
    logits = logits_of(kind)
    for draw, (temperature, top_k, top_p) in enumerate(
        [
            (0.8, 0, 1.0),
            (1.3, 1, 0.5),
            (0.2, 50, 0.9),
            (2.0, 1002, 0.3),
            (0.7, 1003, 1e-9),
            (1.0, 5000, 0.999),
        ]
    ):
        params = SamplingParams(temperature, top_k, top_p, 2**63 + 5, sampler)
        made = sample(cpu, logits, params, draw)
        token, kept, u = scalar.sample(logits, params.temperature, top_k, top_p, 2**63 + 5, draw, sampler)
        assert (made.token, made.kept) == (token, kept)
        assert made.u == (u if sampler == "inverse-cdf" else None)


@pytest.mark.parametrize("kind", ["plain", "ties", "masked", "wide"])
def test_ranks_logprobs_and_greedy_agree_with_the_oracle(cpu, kind):
    logits = logits_of(kind)
    for k in (1, 2, 500, 1003):
        assert_same_bits(scalar.rank(logits, F(0.6), k), rank(cpu, logits, 0.6, k), allow_zero=True)
    assert_same_bits(scalar.logprobs(logits), logprobs(cpu, logits))
    made = sample(cpu, logits, SamplingParams())
    assert (made.token, made.kept, made.u) == (scalar.greedy(logits), 1, None)


@pytest.mark.parametrize("kind", ["plain", "ties", "masked"])
def test_ranks_of_a_large_vocabulary_agree_with_the_oracle(cpu, kind):
    logits = logits_of(kind, 5003)
    for k in (2500, 5003):
        assert_same_bits(scalar.rank(logits, F(0.6), k), rank(cpu, logits, 0.6, k), allow_zero=True)


@pytest.mark.parametrize("at", [0, 7, 1023, 1024, 2047, 2600])
def test_greedy_takes_the_first_of_the_largest_wherever_it_is(cpu, at):
    logits = np.full(2601, -np.inf, F)
    logits[at:] = -0.0
    logits[at + 1 :: 2] = 0.0
    assert sample(cpu, logits, SamplingParams()).token == at
    logits[at] = 1e-45
    logits[:at] = -1
    assert sample(cpu, logits, SamplingParams()).token == at
    for bad in (np.nan, np.inf):
        logits[2600] = bad
        with pytest.raises(InputError, match="NaN or"):
            sample(cpu, logits, SamplingParams())


def test_philox_and_ln_agree_with_the_oracle(cpu):
    words = inputs.bits(22, 0, 600).reshape(100, 6)
    counter, key = np.ascontiguousarray(words[:, :4]), np.ascontiguousarray(words[:, 4:])
    assert_same_bits(scalar.philox4x32(counter, key), philox(cpu, counter, key))
    assert uniform(cpu, 2**64 - 3, 2**32 - 1) == scalar.draw(2**64 - 3, 2**32 - 1)
    v = (inputs.bits64(22, 1, 500) >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53
    v = np.concatenate(
        [v, [1.0, 0.7071067811865476, np.nextafter(0.7071067811865476, 0), 3e-308, 5e-324, 1e300]]
    )
    assert_same_bits(scalar.ln(v), ln(cpu, v))


def test_noise_by_token_id_survives_a_swap_of_two_near_tied_ranks(cpu):
    # Swapping ranks 2 and 3 may only matter when one of the two wins; noise by rank would move others.
    logits = inputs.normalish(23, 0, 64, 0.5)
    order = scalar.rank(logits, F(1), 4)
    nudged = logits.copy()
    nudged[order[2]], nudged[order[3]] = logits[order[3]], logits[order[2]]
    params = SamplingParams(1.0, 0, 1.0, 9, "gumbel-id")
    moved = ranked_moved = 0
    for draw in range(300):
        one, two = sample(cpu, logits, params, draw).token, sample(cpu, nudged, params, draw).token
        if one not in order[2:] and two not in order[2:]:
            moved += one != two
        one, two = (rank_indexed_gumbel(x, draw) for x in (logits, nudged))
        if one != two:
            ranked_moved += 1
    assert moved == 0
    assert ranked_moved > 0  # the control does depend on ranks


def rank_indexed_gumbel(logits, draw: int) -> int:
    order = scalar.rank(logits, F(1), logits.size)
    e = scalar.exp(logits[order] - logits[order[0]])
    return int(order[scalar.gumbel_id(np.arange(order.size), e, 9, draw)])


def test_rank_indexed_noise_is_caught(cpu):
    logits = inputs.normalish(23, 1, 64, 0.5)
    params = SamplingParams(1.0, 0, 1.0, 9, "gumbel-id")
    right = [sample(cpu, logits, params, draw).token for draw in range(50)]
    assert right != [rank_indexed_gumbel(logits, draw) for draw in range(50)]


def test_draws_depend_on_seed_and_number_alone(cpu):
    logits, params = logits_of("plain"), SamplingParams(0.9, seed=4)
    first = [sample(cpu, logits, params, n) for n in range(5)]
    sample(cpu, logits, SamplingParams(0.9, seed=5), 0)
    assert [sample(cpu, logits, params, n) for n in reversed(range(5))] == first[::-1]


def test_a_given_u_picks_the_first_rank_beyond_it(cpu):
    logits = np.zeros(4, F)
    params = SamplingParams(1.0)
    picks = [sample(cpu, logits, params, u=u).token for u in (0.0, 0.25, 0.5, np.nextafter(1.0, 0.0))]
    assert picks == [0, 1, 2, 3]


@pytest.mark.parametrize("bad, named", [(np.nan, "NaN"), (np.inf, r"\+inf"), (3e38, "overflows .* 0.5")])
def test_logits_outside_the_contract_are_refused(cpu, bad, named):
    logits = F([0, bad, 1])
    with pytest.raises(InputError, match=named):
        sample(cpu, logits, SamplingParams(0.5))
    if not np.isfinite(bad):
        for action in (logprobs, lambda d, x: sample(d, x, SamplingParams())):
            with pytest.raises(InputError, match=named):
                action(cpu, logits)
    with pytest.raises(InputError, match="no logit is finite"):
        sample(cpu, F([-np.inf] * 3), SamplingParams())


def test_bad_calls_are_named(cpu):
    logits, params = np.zeros(3, F), SamplingParams(1.0)
    for action, named in (
        (lambda: sample(cpu, logits, params, -1), "draw number -1"),
        (lambda: sample(cpu, logits, params, 2**32), "draw number 4294967296"),
        (lambda: sample(cpu, logits, params, u=1.0), "u 1.0"),
        (lambda: sample(cpu, np.zeros((1, 3), F), params), "logits has shape"),
        (lambda: sample(cpu, np.zeros(0, F), params), "empty"),
        (lambda: rank(cpu, logits, 1, 4), "k 4 .* 1..3"),
    ):
        with pytest.raises(InputError, match=named):
            action()


MODE = r"""
#include <xmmintrin.h>
extern "C" unsigned get_mode() { return _mm_getcsr(); }
extern "C" void set_mode(unsigned mode) { _mm_setcsr(mode); }
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="sets the x86 control register")
def test_a_caller_that_flushes_subnormals_gets_the_same_tokens(tmp_path):
    source = tmp_path / "mode.cpp"
    source.write_text(MODE)
    mode = host.load(host.compile_shared("mode", (source,)))
    mode.get_mode.restype = ctypes.c_uint
    cpu = device.get("cpu")
    logits = np.array([1, 2, 3, 2, 1], np.float32) * np.float32(1e-40)
    params = SamplingParams(1e-40, seed=5)
    wanted = [sample(cpu, logits, params, draw).token for draw in range(8)]
    assert len(set(wanted)) > 1 and not params.greedy
    before = mode.get_mode()
    mode.set_mode(0x9FC0)
    try:
        found = [sample(cpu, logits, params, draw).token for draw in range(8)]
    finally:
        mode.set_mode(before)
    assert found == wanted
