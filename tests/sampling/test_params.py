"""Sampling parameters: formats kept exactly, every bad value refused with one sentence."""

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.sampling.params import SamplingParams


def test_values_are_kept_in_the_contracts_formats():
    params = SamplingParams(temperature=0.8, top_k=np.int32(5), top_p=0.9, seed=2**64 - 1)
    assert isinstance(params.temperature, np.float32) and params.temperature == np.float32(0.8)
    assert (params.top_k, params.top_p, params.seed) == (5, 0.9, 2**64 - 1)
    assert type(params.top_k) is int and type(params.top_p) is float and not params.greedy
    assert SamplingParams().greedy and SamplingParams(temperature=-0.0).greedy


@pytest.mark.parametrize(
    "values, named",
    [
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": -0.5}, "temperature -0.5"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"temperature": 1e39}, "temperature 1e\\+39"),
        ({"temperature": 1e-50}, "temperature 1e-50"),
        ({"temperature": "hot"}, "temperature 'hot'"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.0000001}, "top_p 1.0000001"),
        ({"top_p": float("nan")}, "top_p nan"),
        ({"top_p": None}, "top_p None"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_k": 1.5}, "top_k 1.5"),
        ({"top_k": True}, "top_k True"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**64}, "seed 18446744073709551616"),
        ({"seed": 0.0}, "seed 0.0"),
        ({"sampler": "argmax"}, "sampler 'argmax'"),
    ],
)
def test_bad_values_are_named(values, named):
    with pytest.raises(InputError, match=named):
        SamplingParams(**values)
