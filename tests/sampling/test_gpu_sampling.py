"""sample_rows chooses the cpu's tokens for every kind of row, mixed in one launch; controls must differ."""

from pathlib import Path

import numpy as np
import pytest

from crucible.device import get
from crucible.errors import InputError
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits
from crucible.sampling import rows
from crucible.sampling.params import SAMPLERS, SamplingParams
from crucible.sampling.philox import philox, uniform
from crucible.sampling.sample import greedy, ln, logprobs, rank, sample

CPU = get("cpu")
F = np.float32
SEED = 2**63 + 5
PROBE = Path(__file__).parent / "cu" / "serial_sum_probe.cu"


@pytest.fixture(params=["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return get(request.param)


def logits_of(kind: str, vocab: int = 1003) -> np.ndarray:
    x = inputs.normalish(51, 0, vocab, 3)
    if kind == "ties":
        x = np.round(x).astype(F)
        x[::7] = -0.0
    if kind == "equal":
        x[:] = -2.5
    if kind == "masked":
        x[::3] = -np.inf
    if kind == "lone":
        x[:] = -np.inf
        x[vocab // 2] = -3
    if kind == "wide":
        x = x * F(40)
    if kind == "outlier":
        x = x * F(0.01)
        x[vocab // 3] = -60
    return x


SETTINGS = (
    (0.0, 0, 1.0),
    (0.8, 0, 1.0),
    (1.3, 1, 0.5),
    (0.2, 5, 0.9),
    (0.9, 40, 1.0),
    (1.0, 128, 0.95),
    (0.01, 500, 1.0),
    (2.0, 1002, 0.3),
    (0.7, 1003, 1e-9),
    (1.0, 2**40, 0.999),
    (300.0, 0, 0.7),
    (1e-3, 700, 0.99),
)


def check_rows(device, logits: np.ndarray, params: list, draws: list, refused=()) -> rows.Sampled:
    """sample_rows against the cpu's sample, row by row."""
    made = rows.sample_rows(device, device.upload(logits), rows.make_batch(device, params, draws))
    token, kept, u, status = (device.download(getattr(made, n)) for n in ("token", "kept", "u", "status"))
    for i, (x, p, n) in enumerate(zip(logits, params, draws, strict=True)):
        if i in refused:
            continue
        one = sample(CPU, x, p, n)
        found = (int(token[i]), int(kept[i]), None if u[i] == -1 else float(u[i]), int(status[i]))
        assert found == (one.token, one.kept, one.u, 0), f"row {i}: {p}, draw {n}"
    return rows.Sampled(token, kept, u, status)


@pytest.mark.parametrize("kind", ["plain", "ties", "masked", "lone", "wide", "outlier"])
def test_a_mixed_batch_has_the_tokens_of_each_row_alone(device, kind):
    logits = np.stack([logits_of(kind)] * (2 * len(SETTINGS)))
    params = [
        SamplingParams(*setting, SEED + i, sampler)
        for sampler in SAMPLERS
        for i, setting in enumerate(SETTINGS)
    ]
    check_rows(device, logits, params, [3 * i for i in range(len(params))])


@pytest.mark.parametrize("vocab", [1, 2, 31, 2048, 2049, 5003])
def test_ragged_vocabularies(device, vocab):
    logits = np.stack([logits_of("plain", vocab), logits_of("ties", vocab), logits_of("plain", vocab)])
    params = [
        SamplingParams(0.0),
        SamplingParams(0.9, 0, 0.9, 7),
        SamplingParams(1.1, 0, 1.0, 8, "gumbel-id"),
    ]
    check_rows(device, logits, params, [0, 1, 2])


@pytest.mark.parametrize("kind", ["plain", "ties", "masked", "outlier"])
def test_few_ranks_of_a_large_vocabulary(device, kind):
    # Candidates come from a bound by maxima of groups of 256 ids, or with many ties from buckets.
    settings = [(k, sampler) for k in (1, 5, 40, 500) for sampler in SAMPLERS]
    logits = np.stack([logits_of(kind, 21000)] * len(settings))
    logits[:, 0] = logits[:, 20999] = logits[0].max()  # the two ends of the vocabulary share rank 0
    params = [SamplingParams(0.9, k, 0.95 if k > 1 else 1.0, 17, sampler) for k, sampler in settings]
    check_rows(device, logits, params, list(range(len(params))))
    for k in (1, 40):
        found = rank(device, device.upload(logits[0]), 0.9, k)
        assert_same_bits(rank(CPU, logits[0], 0.9, k), found, allow_zero=True)


@pytest.mark.parametrize("room", [None, 1024, 0])
@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_many_ranks_in_windows_of_shared_memory(device, monkeypatch, kind, room):
    # No room: a device with little shared memory collects the candidates in global memory.
    if room is not None:
        monkeypatch.setattr(rows, "_STATIC", device.shared_limit - 4 * rows._BUCKETS - 8 * room)
    settings = ((0, 1.0), (0, 0.999), (20000, 0.9), (2000, 1.0))
    logits = np.stack([logits_of(kind, 33001)] * 2 * len(settings))
    params = [SamplingParams(0.9, k, p, 19, sampler) for sampler in SAMPLERS for k, p in settings]
    check_rows(device, logits, params, list(range(len(params))))


@pytest.mark.parametrize(("kind", "k"), [("equal", 0), ("equal", 40), ("ties", 700), ("outlier", 1500)])
def test_buckets_too_large_for_counting_are_sorted(device, kind, k):
    logits = np.stack([logits_of(kind, 2900)] * 2)
    params = [SamplingParams(0.9, k, 0.97, 3), SamplingParams(0.9, k, 0.97, 4, "gumbel-id")]
    check_rows(device, logits, params, [0, 9])
    for ranks in (1, 600, 2900):
        assert_same_bits(
            rank(CPU, logits[0], 0.9, ranks),
            rank(device, device.upload(logits[0]), 0.9, ranks),
            allow_zero=True,
        )


def test_refused_rows_say_why_and_leave_their_neighbours_alone(device):
    logits = np.stack([logits_of("plain", 300)] * 8)
    logits[1, 7], logits[2, 299], logits[3] = np.nan, np.inf, -np.inf
    logits[4, 5], logits[5, 6], logits[7, 0] = 3e38, -3e38, np.nan
    hot = SamplingParams(0.5, 40, 0.9, 11)
    params = [hot, hot, hot, hot, hot, hot, hot, SamplingParams()]
    made = check_rows(device, logits, params, list(range(8)), refused=(1, 2, 3, 4, 5, 7))
    assert made.status.tolist() == [0, 1, 1, 2, 3, 3, 0, 1]
    assert made.token[[1, 2, 3, 4, 5, 7]].tolist() == [-1] * 6
    assert made.kept[[1, 2, 3, 4, 5, 7]].tolist() == [0] * 6
    for row, reason in ((1, "NaN"), (3, "no logit is finite"), (4, r"overflows .* 0\.5")):
        with pytest.raises(InputError, match=reason):
            sample(device, device.upload(logits[row]), hot)


def test_zero_signs_and_equal_logits_rank_by_id(device):
    x = F([-0.0, 0.0, -1, 0.0, -0.0, -np.inf, -1])
    assert_same_bits(np.int32([0, 1, 3, 4, 2, 6, 5]), rank(device, device.upload(x), 0.7, 7))
    assert greedy(device, device.upload(x)) == 0
    assert greedy(device, device.upload(np.append(x, F(0.5)))) == 7
    backwards = np.lexsort((-np.arange(7), -x))  # ties by the higher id: what must not come out
    assert backwards.tolist() != [0, 1, 3, 4, 2, 6, 5]
    check_rows(
        device,
        np.stack([x] * 2),
        [SamplingParams(1.0, 2), SamplingParams(1.0, 2, 1.0, 1, "gumbel-id")],
        [0, 1],
    )


def test_subnormal_logits_and_temperatures_are_numbers(device):
    x = F([1, 2, 3, 2, 1]) * F(1e-40)
    params = [SamplingParams(1e-40, seed=5)] * 6 + [
        SamplingParams(),
        SamplingParams(3e-39, 0, 1.0, 5, "gumbel-id"),
    ]
    made = check_rows(device, np.stack([x] * 8), params, [*range(6), 0, 1])
    assert len(set(made.token[:6].tolist())) > 1


def test_a_given_u_at_the_boundaries_picks_the_serial_sum_s_rank(device):
    # A sum in f32, or in pairs, puts some of these boundaries elsewhere.
    x = logits_of("plain", 4000)
    order = scalar.rank(x, F(1), x.size)
    e = scalar.exp(x[order] - x[order[0]])
    c = np.add.accumulate(e.astype(np.float64))
    in_f32 = np.add.accumulate(e).astype(np.float64)
    params, picked, wrong = SamplingParams(1.0), 0, 0
    us = [u for r in (0, 1, 9, 700, 2222, 3500, 3980) for u in (c[r] / c[-1], np.nextafter(c[r] / c[-1], 0))]
    batch = rows.make_batch(device, [params] * len(us), [0] * len(us))
    logits = device.upload(np.stack([x] * len(us)))
    made = device.download(rows.launch(device, logits, batch, given_u=device.upload(np.array(us))).token)
    for u, token in zip(us, made.tolist(), strict=True):
        assert token == sample(CPU, x, params, u=float(u)).token
        picked += 1
        wrong += token != order[min(np.searchsorted(in_f32, u * in_f32[-1], side="right"), x.size - 1)]
    assert picked == 14 and wrong > 0


def elements(kind: str, n: int) -> np.ndarray:
    """n f32 in [0, 1]: like a softmax, full of ties at half an ulp of the sum, or rising from nothing."""
    e = inputs.uniform(52, 0, n, 0, 1)
    if kind == "softmax":
        return np.sort(e**9)[::-1].astype(F)
    if kind == "halves":
        odd = (inputs.bits(52, 1, n) >> np.uint32(22)).astype(np.float64) * 2 + 1
        return np.concatenate([F([1]), (odd * 2.0**-53).astype(F)])[:n]
    return np.where(
        np.arange(n) < n // 2, F(0), e * F(2.0) ** -(inputs.bits(52, 2, n) % 120).astype(F)
    ).astype(F)


@pytest.mark.parametrize("n", [1, 15, 256, 4097, 50003])
@pytest.mark.parametrize("kind", ["softmax", "halves", "rising"])
def test_segments_walked_at_once_give_the_serial_sum(device, kind, n):
    e = elements(kind, n)
    c = np.add.accumulate(e.astype(np.float64))
    length = max(32, -(-n // 8192) * 8)
    segments = -(-n // length)
    probes = np.unique([0, n // 3, n // 2, n - 1])
    targets = np.concatenate([c[probes], np.nextafter(c[probes], 0), np.nextafter(c[probes], 9e9)])
    starts, above, reached = (
        device.empty(1025, np.float64),
        *(device.empty(targets.size, np.int32) for _ in "ab"),
    )
    args = (
        device.upload(e),
        np.int32(n),
        starts,
        device.upload(targets),
        np.int32(targets.size),
        above,
        reached,
    )
    device.kernel(PROBE).launch(1, 1024, args)
    expected = np.append(0.0, c[np.minimum(np.arange(1, segments + 1) * length, n) - 1])
    assert_same_bits(expected, device.download(starts)[: segments + 1])
    first = np.minimum(np.searchsorted(c, targets, side="right"), n - 1)
    assert device.download(above).tolist() == first.tolist()
    first = np.minimum(np.searchsorted(c, targets, side="left"), n - 1)
    assert device.download(reached).tolist() == first.tolist()
    if n == 50003 and kind != "rising":
        assert np.sum(e, dtype=np.float64) != c[-1]  # in pairs: another number


def test_noise_goes_by_token_and_not_by_rank(device):
    x = inputs.normalish(53, 1, 64, 0.5)
    params = SamplingParams(1.0, 0, 1.0, 9, "gumbel-id")
    made = check_rows(device, np.stack([x] * 50), [params] * 50, list(range(50)))
    order = scalar.rank(x, F(1), x.size)
    e = scalar.exp(x[order] - x[order[0]])
    by_rank = [int(order[scalar.gumbel_id(np.arange(order.size), e, 9, draw)]) for draw in range(50)]
    assert made.token.tolist() != by_rank


def test_log_probabilities_have_the_cpu_s_bits(device):
    for kind in ("plain", "ties", "masked", "lone", "wide"):
        x = logits_of(kind, 2777)
        assert_same_bits(logprobs(CPU, x), logprobs(device, device.upload(x)), kind)
    assert_same_bits(logprobs(CPU, F([-0.0])), logprobs(device, device.upload(F([-0.0]))), allow_zero=True)
    with pytest.raises(InputError, match="NaN"):
        logprobs(device, device.upload(F([1, np.nan])))


def test_philox_and_ln_agree_with_the_oracle(device):
    words = inputs.bits(54, 0, 600).reshape(100, 6)
    counter, key = np.ascontiguousarray(words[:, :4]), np.ascontiguousarray(words[:, 4:])
    made = philox(device, device.upload(counter), device.upload(key))
    assert_same_bits(scalar.philox4x32(counter, key), device.download(made))
    assert uniform(device, 2**64 - 3, 2**32 - 1) == scalar.draw(2**64 - 3, 2**32 - 1)
    v = (inputs.bits64(54, 1, 500) >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53
    edge = 0.7071067811865476
    v = np.concatenate([v, [1.0, edge, np.nextafter(edge, 0), 1.4142135623730951, 3e-308, 5e-324, 1e300]])
    assert_same_bits(scalar.ln(v), device.download(ln(device, device.upload(v))))


def test_scratch_and_results_are_reused(device):
    class Kept:
        def __init__(self):
            self.arrays = {}

        def take(self, name, shape, dtype=np.float32):
            if name not in self.arrays:
                self.arrays[name] = device.empty(shape, dtype)
            return self.arrays[name]

    scratch, out = Kept(), rows.empty_results(device, 2)
    for step in range(3):
        logits = np.stack([logits_of("plain", 2100), logits_of("ties", 2100)]) + F(step)
        params = [SamplingParams(0.9, 40, 0.9, 5), SamplingParams(0.9, 0, 1.0, 6)]
        batch = rows.make_batch(device, params, [step, step])
        assert rows.sample_rows(device, device.upload(logits), batch, scratch, out) is out
        token = device.download(out.token).tolist()
        assert token == [sample(CPU, x, p, step).token for x, p in zip(logits, params, strict=True)]


def test_malformed_batches_are_refused_by_name():
    simt, params = get("simt"), [SamplingParams(1.0)] * 2
    batch = rows.make_batch(simt, params, [0, 1])
    for call, named in (
        (lambda: rows.make_batch(simt, params, [0]), "2 rows of parameters have 1 draw"),
        (lambda: rows.make_batch(simt, [None], [0]), "params holds NoneType"),
        (lambda: rows.make_batch(simt, params, [0, 2**32]), "draw number 4294967296"),
        (lambda: rows.sample_rows(simt, np.zeros((3, 5), F), batch), "temperature has shape"),
        (lambda: rows.sample_rows(simt, np.zeros((2, 0), F), batch), "empty"),
        (lambda: rows.sample_rows(simt, np.zeros(5, F), batch), "logits has shape"),
    ):
        with pytest.raises(InputError, match=named):
            call()
