"""Blocks of a cluster reach each other's shared memory and meet, on the GPU and in its twin on simt."""

from pathlib import Path

import numpy as np
import pytest

from crucible.attention import fast
from crucible.errors import InputError


def test_a_cluster_shares_memory_and_meets(device):
    if not fast.has_clusters(device):
        pytest.skip("the GPU has no thread block clusters")
    kernel = device.kernel(Path(__file__).parent / "cluster_probe.cu")
    between, out = device.zeros((12 * 64,), np.int32), device.zeros((12, 2, 64))
    kernel.launch(12, 64, (between, out), shared=256, cluster=4)
    found = device.download(out)
    left = np.arange(12) // 4 * 4 + (np.arange(12) + 3) % 4
    assert (found[:, 0] == left[:, None] * 64 + np.arange(64)[::-1]).all()
    assert (found[:, 1] == 1 + 2 + 3 + 4).all()


def test_a_grid_that_clusters_do_not_divide_is_refused(device):
    kernel = device.kernel(Path(__file__).parent / "cluster_probe.cu")
    arrays = device.zeros((12 * 64,), np.int32), device.zeros((12, 2, 64))
    with pytest.raises(InputError, match="10 blocks; clusters of 4 do not divide them"):
        kernel.launch(10, 64, arrays, shared=256, cluster=4)
