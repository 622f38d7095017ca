"""Statistics: brackets keep every sample, pairs are checked, intervals resample whole groups and repeat."""

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.evidence.envelope import read
from crucible.evidence.statistics import bootstrap, bracket, paired_ratios


def test_a_bracket_is_median_minimum_and_maximum():
    assert str(bracket([3.0, 1.0, 2.0, 10.0])) == "2.5 [1, 10], n=4"


def test_paired_ratios_need_pairs_of_positive_samples():
    assert paired_ratios([2.0, 3.0], [1.0, 6.0]).tolist() == [2.0, 0.5]
    for a, b in (([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([], []), ([float("nan")], [1.0])):
        with pytest.raises(InputError):
            paired_ratios(a, b)


def test_the_interval_repeats_and_contains_its_estimate():
    values = np.arange(30) % 7 + 1.0
    groups = [str(i // 5) for i in range(30)]
    first = bootstrap(values, groups)
    assert first == bootstrap(values, groups) and first.low <= first.estimate <= first.high
    assert first != bootstrap(values, groups, seed=1, statistic=np.mean)


def test_copies_within_a_group_do_not_narrow_the_interval():
    values, groups = [1.0, 2.0, 4.0, 8.0], list("abcd")
    once = bootstrap(values, groups, np.mean)
    many = bootstrap(np.repeat(values, 50), np.repeat(groups, 50).tolist(), np.mean)
    assert (once.low, once.high) == pytest.approx((many.low, many.high), rel=1e-12)


def test_one_group_has_no_spread():
    only = bootstrap([1.0, 5.0, 9.0], ["a", "a", "a"])
    assert only.low == only.high == only.estimate == 5.0


def test_the_envelope_reads_on_any_machine():
    here = read()
    assert here.cpu and here.cores >= 1 and here.load_1min >= 0
