"""Launchers of the fixed reduction orders by themselves (contract section 3), for conformance."""

import numpy as np

from crucible.device.checks import expect
from crucible.errors import InputError


def tree32(device, p):
    """p f32 [n][32] -> f32 [n]."""
    expect("p", p, np.float32, (None, 32))
    out = device.empty(p.shape[0])
    if device.name == "cpu":
        device.call("crucible_tree32", p, out, p.shape[0])
    elif out.size:
        device.kernel("sums", "tree32_rows").launch(-(-out.size // 8), 256, (p, out, np.int32(out.size)))
    return out


def _segments(operation: str, device, x, offsets):
    expect("x", x, np.float32, (None,))
    expect("offsets", offsets, np.int32, (None,))
    host = device.download(offsets)
    if host.size < 1 or host[0] < 0 or host[-1] > x.size or (np.diff(host) < 0).any():
        raise InputError(f"offsets must ascend within 0..{x.size}, the length of x")
    out = device.empty(offsets.size - 1)
    if device.name == "cpu":
        device.call(f"crucible_{operation}", x, offsets, out, out.size)
    elif out.size:
        squares = np.int32(operation == "sumsq256")
        device.kernel("sums", "segment_sums").launch(out.size, 256, (x, offsets, out, squares))
    return out


def sum256(device, x, offsets):
    """sum256 of each x[offsets[i]:offsets[i+1]]; offsets int32 [n+1] -> f32 [n]."""
    return _segments("sum256", device, x, offsets)


def sumsq256(device, x, offsets):
    """sumsq256 of each x[offsets[i]:offsets[i+1]]; offsets int32 [n+1] -> f32 [n]."""
    return _segments("sumsq256", device, x, offsets)
