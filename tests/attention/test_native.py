"""The cpu's tiled attention has the bits of its plain row loop, however its rows are shared out."""

import numpy as np
import pytest

from crucible.attention.run import attention
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits

LENGTHS = [1, 7, 8, 63, 64, 65, 255, 256, 257, 300, 31, 32, 33]  # histories, a row of each request


def decode_case(G: int, D: int, Hkv: int, lengths):
    """One new row for each request; slots that no row may see hold NaN."""
    stride = -(-max(lengths) // 16)
    pages = stride * len(lengths)
    pools = [np.full((pages, 2, 16, Hkv * D), np.nan, np.float32) for _ in range(2)]
    tables = np.arange(pages, dtype=np.int32)[::-1].reshape(len(lengths), stride).copy()
    for request, length in enumerate(lengths):
        for i, pool in enumerate(pools):
            values = inputs.normalish(41 + i, request, (length, Hkv * D))
            for position in range(length):
                pool[tables[request, position // 16], 1, position % 16] = values[position]
    desc = np.array([(i, 1, length - 1, i) for i, length in enumerate(lengths)], np.int32)
    return inputs.normalish(43, 0, (len(lengths), G * Hkv * D)), *pools, tables, desc, 1, Hkv, D


@pytest.mark.parametrize("requests", [1, 3, len(LENGTHS)])
@pytest.mark.parametrize("G, D, Hkv", [(3, 64, 3), (4, 64, 1), (1, 128, 2), (3, 96, 2), (2, 32, 1)])
def test_decode_rows_have_the_bits_of_the_plain_loop(cpu, G, D, Hkv, requests):
    case = decode_case(G, D, Hkv, LENGTHS[-requests:] if requests < 4 else LENGTHS)
    assert_same_bits(attention(cpu, *case, variant="reference"), attention(cpu, *case, variant="exact"))
