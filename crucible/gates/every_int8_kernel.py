"""Every kernel of the int8 linear layer once, on small ragged shapes, held to the reference's bits."""

import functools
from collections.abc import Iterator

import numpy as np

from crucible.linear import gpu_i8
from crucible.linear.gpu_i8_kernels import KERNELS, is_few, runs
from crucible.linear.weights import pack
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits

# Rows, outputs, inputs: edges of groups of 8, of tiles and of slices of 64, aligned and not.
SHAPES = ((3, 21, 64), (17, 50, 258), (40, 72, 576))


def int8_launches(device) -> Iterator[str]:
    """Launch kernel after kernel on a device, yielding what ran; AssertionError where bits differ."""
    for rows, n, k in SHAPES:
        weight = pack(device, device.upload(inputs.normalish(33, 0, (n, k))), "int8")
        both = device.upload(inputs.normalish(33, 1, (rows, 2 * k)))
        x = device.upload(inputs.normalish(33, 2, (rows, k)))
        norm, add = (device.upload(inputs.normalish(33, 3 + i, s)) for i, s in enumerate((k, (rows, n))))
        sources = {
            "": functools.partial(gpu_i8.linear_int8, device, x, weight),
            "rmsnorm ": functools.partial(gpu_i8.rmsnorm_linear, device, x, norm, np.float32(1e-5), weight),
            "swiglu ": functools.partial(gpu_i8.swiglu_linear, device, both, weight),
        }
        for source, run in sources.items():
            expected = None
            for name in KERNELS:
                if not runs(device, name) or not (is_few(name) or source == "" or name == "reference"):
                    continue
                result = device.download(run(out=device.zeros((rows, n)), add=add, kernel=name)).copy()
                expected = result if name == "reference" else expected
                assert_same_bits(expected, result, f"{source}int8 {name}")
                yield f"{source}int8 {name} {rows}x{k}x{n}"
