"""Launcher of the step between two decode passes (contract sections 5 and 8: descriptors, draw numbers)."""

from collections.abc import Sequence

import numpy as np

from crucible.device.checks import expect


def decode_advance(device, token, ids, positions, desc, draw, items: Sequence = ()) -> None:
    """Make the inputs of the next decode step out of this one's, in place.

    token int32 [R] becomes ids; positions int32 [R], the starts in desc int32 [R][4], draw uint32 [R] and
    the histories in each array of items int32 [n][4] (crucible.attention.plan) grow by one.
    """
    expect("token", token, np.int32, (None,))
    rows = token.shape[0]
    for name, array in (("ids", ids), ("positions", positions)):
        expect(name, array, np.int32, (rows,))
    expect("desc", desc, np.int32, (rows, 4))
    expect("draw", draw, np.uint32, (rows,))
    for array in items:
        expect("items", array, np.int32, (None, 4))
    if device.name == "cpu":
        ids[...] = token
        for column in (positions, desc[:, 2], draw, *(array[:, 2] for array in items)):
            column += column.dtype.type(1)
        return
    for i, array in enumerate(items or (None,)):
        here, count = 0 if i else rows, 0 if array is None else array.shape[0]
        if max(here, count):
            args = (token, ids, positions, desc, draw, np.int32(here), array, np.int32(count))
            device.kernel("decode_advance").launch(-(-max(here, count) // 256), 256, args)
