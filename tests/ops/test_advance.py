"""decode_advance: the next step's inputs are this step's tokens, one position and one draw further."""

import numpy as np
import pytest

from crucible.device import get
from crucible.errors import InputError
from crucible.ops.advance import decode_advance


@pytest.fixture(params=["cpu", "simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return get(request.param)


def state(rows: int):
    desc = np.arange(4 * rows, dtype=np.int32).reshape(rows, 4)
    return (
        np.arange(100, 100 + rows, dtype=np.int32),
        np.zeros(rows, np.int32),
        np.arange(rows, dtype=np.int32),
        desc,
        np.full(rows, 2**32 - 2, np.uint32),
    )


@pytest.mark.parametrize(("rows", "counts"), [(1, ()), (3, (9,)), (300, (900, 2)), (2, (1,))])
def test_everything_moves_by_one_and_nothing_else_moves(device, rows, counts):
    host = [*state(rows), *(np.arange(4 * n, dtype=np.int32).reshape(n, 4) for n in counts)]
    token, ids, positions, desc, draw, *items = arrays = [device.upload(a.copy()) for a in host]
    decode_advance(device, token, ids, positions, desc, draw, items)
    found = [device.download(a) for a in arrays]
    expected = [a.copy() for a in host]
    expected[1] = expected[0]
    expected[2] += 1
    expected[4] += np.uint32(1)
    for array in (expected[3], *expected[5:]):
        array[:, 2] += 1
    for want, have in zip(expected, found, strict=True):
        np.testing.assert_array_equal(want, have)


def test_arrays_that_do_not_fit_are_refused(device):
    token, ids, positions, desc, draw = (device.upload(a) for a in state(3))
    with pytest.raises(InputError, match="ids"):
        decode_advance(device, token, ids[:2], positions, desc, draw)
    with pytest.raises(InputError, match="items"):
        decode_advance(device, token, ids, positions, desc, draw, [desc[:, :3]])
