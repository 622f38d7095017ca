"""Checks of arguments are made, but for calls that somebody vouches for."""

import threading

import numpy as np
import pytest

from crucible.device import launch
from crucible.device.checks import expect, expect_out, is_vouched, vouched
from crucible.errors import InputError
from crucible.kv.slices import Slice
from crucible.model import layers
from crucible.model.model import TINY, Model, open_checkpoint

WRONG = np.zeros((3, 2), np.float64)


def refused() -> int:
    """How many of three checks refuse what is wrong."""
    count = 0
    for check in (
        lambda: expect("x", WRONG, np.float32, (3, 2)),
        lambda: expect_out("x", WRONG, np.float32, (3, 2)),
        lambda: launch.check_arguments("k", (launch.Parameter("f", 4, True),), (WRONG,), lambda x: True),
    ):
        try:
            check()
        except InputError:
            count += 1
    return count


def test_only_the_thread_and_the_block_that_vouch_are_left_unchecked():
    assert refused() == 3
    others = []
    with vouched(), vouched():
        assert refused() == 0
        other = threading.Thread(target=lambda: others.append(refused()))
        other.start()
        other.join()
    assert others == [3] and refused() == 3
    with pytest.raises(ZeroDivisionError), vouched():
        _ = 1 / 0
    assert not is_vouched()


@pytest.mark.parametrize("value", [5, np.int64(5), (5,), (5, np.int32(1)), [5, 1, 1]])
def test_an_extent_is_three_numbers_however_it_is_given(value):
    assert launch.extent(value, "grid") == (5, 1, 1)


@pytest.mark.parametrize("value", [0, (1, 0), (1, 1, 1, 1), ()])
def test_an_extent_out_of_range_is_refused_each_time(value):
    for _ in range(2):
        with pytest.raises(InputError, match="grid"):
            launch.extent(value, "grid")


@pytest.mark.parametrize("traced", [False, True])
def test_the_first_layer_of_a_pass_is_checked_and_with_a_trace_every_one(monkeypatch, traced):
    model = Model.from_checkpoint(open_checkpoint(TINY), _simt(), "f32")
    cache = model.new_cache(2, 1)
    cache.reserve(0, 4)
    seen: list[tuple[int, bool]] = []
    attend = layers.Pass._attend

    def watched(self, layer, block, x):
        seen.append((layer, is_vouched()))
        attend(self, layer, block, x)

    monkeypatch.setattr(layers.Pass, "_attend", watched)
    trace = (lambda *_: None) if traced else None
    model.transformer.forward([1, 2, 3], [Slice(0, 0, 3)], cache, trace=trace)
    assert len(seen) == model.config.layers > 1
    assert seen == [(layer, bool(layer) and not traced) for layer, _ in enumerate(seen)]


def _simt():
    from crucible import device

    return device.get("simt")
