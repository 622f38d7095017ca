"""The SIMT runtime: what CUDA promises holds; a broken rule is an error with its place, never a hang."""

from pathlib import Path

import numpy as np
import pytest

from crucible.device import get
from crucible.device.simt import KernelFault
from crucible.errors import InputError, UnavailableError

CU = Path(__file__).parent / "cu"
FULL = np.uint32(0xFFFFFFFF)


@pytest.fixture(scope="module", params=["native switch", "ucontext"])
def features(request):
    defines = {"SIMT_UCONTEXT": 1} if request.param == "ucontext" else {}
    return get("simt").kernel(CU / "features.cu", **defines)


@pytest.fixture(scope="module")
def faults():
    return get("simt").kernel(CU / "faults.cu")


def run(kernel, which, threads=64, blocks=1, mask=FULL, argument=0, shared=0):
    count = int(np.prod(threads)) * int(np.prod(blocks))
    out = np.full(count, -1, np.int32)
    kernel.launch(blocks, threads, (out, np.int32(which), np.uint32(mask), np.int32(argument)), shared=shared)
    return out


def test_grids_and_blocks_have_three_dimensions(features):
    out = run(features, 0, threads=(4, 3, 2), blocks=(1, 2, 1)).reshape(2, 2, 3, 4)
    block, z, y, x = np.indices(out.shape)
    assert (out == x + 100 * y + 10000 * z + 1000000 * block).all()


@pytest.mark.parametrize("threads", [1, 31, 33, 64, 1000, 1024])
def test_static_shared_memory_is_seen_after_a_barrier(features, threads):
    out = run(features, 1, threads=threads, blocks=3).reshape(3, threads)
    assert (out == np.arange(threads)[::-1]).all()


def test_dynamic_shared_memory_starts_as_nan_in_every_block(features):
    out = run(features, 2, threads=96, blocks=8, shared=4 * 96).reshape(8, 96)
    assert (out == 1 + 10 * ((np.arange(96) + 1) % 96)).all()


@pytest.mark.parametrize(
    ("which", "argument", "expected"),
    [
        (3, 5, lambda lane: np.where(lane + 5 < 32, lane + 5, lane)),
        (4, 5, lambda lane: np.where(lane >= 5, lane - 5, lane)),
        (5, 9, lambda lane: lane ^ 9),
        (6, 35, lambda lane: np.full_like(lane, 3)),
        (7, 3, lambda lane: np.where(lane % 8 + 3 < 8, lane + 3, lane)),
        (8, 3, lambda lane: np.where(lane % 8 >= 3, lane - 3, lane)),
        (9, 11, lambda lane: lane // 8 * 8 + 3),
        (10, 12, lambda lane: np.where((lane ^ 12) <= (lane | 7), lane ^ 12, lane)),
    ],
    ids=["down", "up", "xor", "index", "down width 8", "up width 8", "index width 8", "xor width 8"],
)
def test_shuffles_read_the_lane_that_cuda_names(features, which, argument, expected):
    out = run(features, which, argument=argument).reshape(2, 32)
    lane = np.arange(32)
    assert (out == expected(lane) + np.array([[0], [32]])).all()


def test_a_shuffle_carries_eight_bytes(features):
    assert (run(features, 19, threads=32, argument=17) == 17).all()


def test_votes_count_the_lanes_of_their_mask(features):
    out = run(features, 11, threads=32, mask=0x0F0F00F1).view(np.uint32)
    lanes = np.arange(32)
    inside = (0x0F0F00F1 >> lanes & 1).astype(bool)
    assert (out[inside] == (0xAAAAAAAA & 0x0F0F00F1)).all()
    assert (out[~inside] == 0xFFFFFFFF).all()


def test_any_and_all_speak_for_one_warp(features):
    out = run(features, 12, argument=32).reshape(2, 32)
    assert (out[0] == 10).all() and (out[1] == 1).all()


def test_block_votes_reach_every_thread(features):
    assert (run(features, 13, threads=70, argument=7) == 7 + 10000).all()
    assert (run(features, 13, threads=70, argument=70) == 70 + 100000).all()


def test_threads_that_left_are_not_waited_for(features):
    out = run(features, 14, threads=256, argument=70)
    assert (out[:70] == np.arange(70)[::-1]).all() and (out[70:] == -1).all()


def test_a_ragged_last_warp_shuffles_among_the_lanes_it_has(features):
    out = run(features, 5, threads=40, argument=1)
    assert (out == (np.arange(40) ^ 1)).all()


def test_disjoint_masks_of_one_warp_do_not_meet(features):
    t = np.arange(64)
    assert (run(features, 15) == np.where(t % 32 < 16, t ^ 1, t ^ 2)).all()


def test_a_spin_on_another_threads_flag_ends(features):
    assert run(features, 16, threads=128, argument=100)[0] == 1


def test_atomics_add_up_over_blocks_on_several_os_threads(features):
    out = np.array([0, -1, 1 << 20, 0], np.int32)
    features.launch(200, 64, (out, np.int32(17), FULL, np.int32(0)))
    assert out.tolist() == [200 * 2016, 199, 0, -1]


def test_named_barriers_join_producers_and_consumers(features):
    assert (run(features, 18)[32:] == np.arange(32) + 7).all()


def test_subnormals_survive_where_the_caller_flushes_them(features):
    tiny = np.array([1e-20], np.float32)
    expected = (tiny * tiny).view(np.int32)
    assert expected[0] != 0
    assert (run(features, 20, blocks=16, argument=int(tiny.view(np.int32)[0])) == expected).all()


def broken(faults, which, argument=0, threads=64, blocks=2, shared=256):
    out = np.zeros(64, np.int32)
    with pytest.raises(KernelFault) as caught:
        faults.launch(blocks, threads, (out, np.int32(which), np.int32(argument)), shared=shared)
    error = caught.value
    assert error.kernel == "faults" and str(error).startswith(
        f"kernel faults, block ({error.block[0]},0,0): "
    )
    faults.launch(2, 64, (out, np.int32(0), np.int32(0)), shared=256)  # the kernel can be used again
    assert (out[:64] == (np.arange(64) ^ 1) + 7).all()
    return error


def line_of(text: str, nth: int = 0) -> int:
    lines = (CU / "faults.cu").read_text().splitlines()
    return [i for i, line in enumerate(lines, start=1) if text in line][nth]


def test_a_deadlock_names_who_waits_where(faults):
    error = broken(faults, 1)
    assert (error.kind, error.block, error.thread) == ("deadlock", (0, 0, 0), (0, 0, 0))
    assert f"16 threads, (0,0,0) to (15,0,0), wait in __syncthreads at faults.cu:{line_of('t < 16')}" in str(
        error
    )
    assert "16 threads, (16,0,0) to (31,0,0), wait in __syncwarp" in str(error)


def test_a_barrier_in_both_branches_is_divergent(faults):
    error = broken(faults, 2)
    assert (error.kind, error.thread) == ("divergent barrier", (32, 0, 0))
    first = line_of("      __syncthreads();")
    assert f"faults.cu:{first + 2}" in str(error) and f"faults.cu:{first}" in str(error)


def test_a_shuffle_from_a_lane_that_left_is_refused(faults):
    error = broken(faults, 3)
    assert (error.kind, error.thread) == ("inactive lane", (32, 0, 0))
    assert "reads lane 16 of its warp in __shfl_down_sync" in str(error) and "has exited" in str(error)


def test_a_shuffle_from_a_lane_that_never_was_is_refused(faults):
    error = broken(faults, 3, threads=40)
    assert error.kind == "inactive lane" and "does not exist" in str(error)


def test_a_lane_outside_its_own_mask_is_refused(faults):
    error = broken(faults, 4)
    assert (error.kind, error.thread) == ("mask mismatch", (16, 0, 0))


def test_lanes_that_disagree_on_a_collective_are_refused(faults):
    error = broken(faults, 5)
    assert error.kind == "mask mismatch"
    assert "__ballot_sync" in str(error) and "__shfl_xor_sync" in str(error)


@pytest.mark.parametrize("index", [64, -1, 500])
def test_a_write_outside_dynamic_shared_memory_is_noticed_without_a_sanitizer(faults, index):
    assert broken(faults, 6, argument=index).kind == "shared memory overrun"


def test_a_spin_that_nobody_ends_is_reported(faults):
    error = broken(faults, 7)
    assert (error.kind, error.thread) == ("spin", (0, 0, 0)) and "atomicAdd" in str(error)


def test_the_lowest_failing_block_is_reported_whatever_ran_first(faults):
    for _ in range(20):
        assert broken(faults, 8, blocks=40).block == (3, 0, 0)


def test_a_width_that_is_no_power_of_two_is_refused(faults):
    assert "width 12" in str(broken(faults, 9))


def test_a_named_barrier_that_stays_short_is_a_deadlock(faults):
    assert "bar.sync" in str(broken(faults, 12))


def test_a_named_barrier_with_two_counts_is_divergent(faults):
    error = broken(faults, 13)
    assert error.kind == "divergent barrier" and "96" in str(error) and "64" in str(error)


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [
        (0, 32, "grid.x is 0"),
        ((1, 65536), 32, "grid.y is 65536"),
        (1, (1, 1, 65), "block.z is 65"),
        (1, (64, 32), "2048 threads"),
        ((1, 1, 1, 1), 32, "one to three"),
    ],
)
def test_a_launch_outside_cudas_limits_is_refused(faults, grid, block, says):
    with pytest.raises(InputError, match=says):
        faults.launch(grid, block, (np.zeros(8, np.int32), np.int32(0), np.int32(0)))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((np.zeros(8, np.int32), np.int32(0)), "takes 3 arguments, 2 given"),
        ((np.zeros(8, np.float32), np.int32(0), np.int32(0)), "dtype float32"),
        ((np.zeros(8, np.int64), np.int32(0), np.int32(0)), "dtype int64"),
        ((np.zeros((8, 8), np.int32).T, np.int32(0), np.int32(0)), "not C-contiguous"),
        ((np.zeros(8, np.int32), np.int64(0), np.int32(0)), "int64 scalar"),
        ((np.zeros(8, np.int32), np.float32(0), np.int32(0)), "float32 scalar"),
        ((np.zeros(8, np.int32), 0, np.int32(0)), "builtins.int"),
        ((np.int32(1), np.int32(0), np.int32(0)), "a pointer to int32"),
        ((np.zeros(8, np.int32), np.zeros(8, np.int32), np.int32(0)), "is an array"),
    ],
)
def test_arguments_that_do_not_fit_the_kernel_are_refused(faults, args, says):
    with pytest.raises(InputError, match=says):
        faults.launch(1, 32, args)


def test_a_read_only_array_is_not_written(faults):
    out = np.zeros(64, np.int32)
    out.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        faults.launch(1, 32, (out, np.int32(0), np.int32(0)))


def test_more_shared_memory_than_a_gpu_has_is_refused(faults):
    with pytest.raises(InputError, match="limit here is 232448"):
        faults.launch(1, 32, (np.zeros(8, np.int32), np.int32(0), np.int32(0)), shared=232449)


def test_unknown_kernels_and_entries_are_named():
    with pytest.raises(InputError, match=r"kernels/ has .*attention_reference"):
        get("simt").kernel("no_such_kernel")
    with pytest.raises(InputError, match="no kernel file"):
        get("simt").kernel(CU / "missing.cu")
    with pytest.raises(InputError, match="no __global__ function 'other'"):
        get("simt").kernel(CU / "faults.cu", "other")


def test_a_compile_error_names_the_line_of_the_source(tmp_path):
    bad = tmp_path / "bad.cu"
    bad.write_text('extern "C" __global__ void bad(int* out) {\n  out[0] = undeclared;\n}\n')
    with pytest.raises(UnavailableError, match=r"bad\.cu:2"):
        get("simt").kernel(bad)
