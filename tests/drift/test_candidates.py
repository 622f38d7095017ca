"""A candidate that is a user's comes in as asked for, and one that fails says so in a sentence."""

import sys

import numpy as np
import pytest

from crucible import device
from crucible.drift.candidates import open_candidate
from crucible.drift.dense import dense
from crucible.drift.diagnose import diagnose
from crucible.drift.paths import run
from crucible.errors import CrucibleError, InputError, NoKernelError

CPU = device.get("cpu")
KERNEL = (
    'extern "C" __global__ void {name}(const float* q, const float* k, const float* v, const int* tables, '
    "int stride, const int* desc, int S, int layer, int layers, int Hq, int Hkv, int D, float scale, int C, "
    "float* out) {{}}\n"
)


def stops():
    """As argparse does."""
    sys.exit(3)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: [1, 2], "returned list; it must be None or an array like q"),
        (lambda: np.zeros((3, 3)), "returned shape (3, 3); it must be q's"),
        (lambda: 1 / 0, "failed: ZeroDivisionError: division by zero"),
        (stops, "failed: SystemExit: 3"),
    ],
)
def test_a_function_that_fails_is_named_with_what_it_did(tiny, corpus, answer, said):
    def mine(*_):
        return answer()

    with pytest.raises(InputError) as refused:
        run(tiny, [corpus.request(0)], open_candidate(mine, CPU))
    assert str(refused.value).startswith("candidate mine ") and said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_complex_numbers_are_refused_not_cut(tiny, corpus):
    def mine(device, q, *_):
        return q.astype(complex)

    with pytest.raises(InputError, match="complex128 numbers; they must be real"):
        run(tiny, [corpus.request(0)], open_candidate(mine, CPU))


@pytest.mark.parametrize("wrong", [lambda q: None, lambda q: q[:1, :1], lambda q: 0.0])
def test_a_dense_function_must_return_an_array_of_the_shape_of_q(tiny, corpus, wrong):
    @dense
    def mine(q, k, v, start):
        return wrong(q)

    with pytest.raises(InputError, match="it must be an array of q's shape"):
        run(tiny, [corpus.request(0)], open_candidate(mine, CPU))


def test_outputs_that_nobody_wrote_are_nan(tiny, corpus, tmp_path):
    def idle(*_):
        """Writes nothing."""

    kernel = tmp_path / "idle.cu"
    kernel.write_text(KERNEL.format(name="idle"))
    for spec in (idle, str(kernel)):
        assert diagnose(tiny, corpus.request(0), open_candidate(spec, CPU)).kind == "NaN"


def test_a_users_file_may_hold_dataclasses_with_late_annotations(tmp_path):
    path = tmp_path / "late.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Tile:\n    keys: int = 32\n"
        "def attention(*_):\n    pass\n"
    )
    assert open_candidate(str(path), CPU).users


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("stops.py", b"raise SystemExit(5)", "does not run: SystemExit: 5"),
        ("bytes.cu", b"\xd4\x00", "is not UTF-8 text: byte 0"),
        ("none.cu", b"", "has no __global__ function 'none'"),
        ("wrong.cu", KERNEL.format(name="wrong").replace("{}", "{ out[0] }").encode(), "could not compile"),
    ],
)
def test_a_file_that_is_no_candidate_is_refused_before_it_is_needed(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CrucibleError, match=said):
        open_candidate(str(path), CPU)


@pytest.mark.parametrize("suffix", [".cu", ".py"])
def test_a_name_that_no_file_can_have_is_no_file(suffix):
    with pytest.raises(InputError, match="no candidate file at"):
        open_candidate("a" * 5000 + suffix, CPU)


def test_a_slip_in_any_candidates_name_gets_its_near_names():
    for slip, name in (("sdpa-mth", "sdpa-math"), ("defect-nam", "defect-nan"), ("q2-k33", "q2-k32")):
        with pytest.raises(InputError, match=f"did you mean .*{name}"):
            open_candidate(slip, CPU)
    with pytest.raises(InputError) as refused:
        open_candidate("zzz", CPU)
    assert "auto" not in str(refused.value) and "file.cu:entry" in str(refused.value)


def test_a_candidate_that_a_device_lacks_names_one_that_has_it():
    with pytest.raises(NoKernelError, match="on device cpu; use --device cuda"):
        open_candidate("sdpa-efficient", CPU)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="which names a C library declares")
def test_a_gpu_instruction_in_a_users_file_is_named_where_a_cpu_lacks_it(tmp_path):
    path = tmp_path / "fast.cu"
    path.write_text(KERNEL.format(name="fast").replace("{}", "{ out[0] = __expf(q[0]); }"))
    with pytest.raises(CrucibleError, match="calls __expf, which a CPU does not have; use --device cuda"):
        open_candidate(str(path), CPU)
