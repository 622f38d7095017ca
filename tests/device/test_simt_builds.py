"""Other builds of the SIMT runtime: AddressSanitizer, ziglang, another architecture, many processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.device import host
from crucible.device.simt import sanitizer_environment
from crucible.device.sources import kernels_dir
from crucible.errors import CrucibleError, UnavailableError

CU = Path(__file__).parent / "cu"
VECTORS = Path(__file__).parents[1] / "vectors"

LAUNCH = """
import sys, numpy as np
from crucible.device import get
out = np.zeros(64, np.int32)
kernel = get("simt").kernel(sys.argv[1])
kernel.launch(2, 64, (out, np.int32(sys.argv[2]), np.int32(sys.argv[3])), shared=256)
assert (out == (np.arange(64) ^ 1) + 7).all()
print("clean")
"""

ATTENTION = """
import sys, numpy as np
from crucible.attention.run import attention
from crucible.device import get
from crucible.numerics.bits import assert_same_bits
for name in ("attention_g8_d64", "attention_subnormal_g8_d128"):
    z = np.load(f"{sys.argv[1]}/{name}.npz")
    pools = z["kpool"], z["vpool"], z["tables"], z["desc"]
    out = attention(get("simt"), z["q"], *pools, z["layer"], z["Hkv"], z["q"].shape[2])
    assert_same_bits(z["out"], out, name)
print("clean")
"""


def python(code: str, *args, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def sanitizer() -> dict[str, str]:
    try:
        return sanitizer_environment()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("which", "index", "line"),
    [
        (6, 64, "dynamic[argument]"),
        (6, -1, "dynamic[argument]"),
        (6, 700, "dynamic[argument]"),
        (10, 8, "fixed[argument]"),
        (10, 12, "fixed[argument]"),
        (11, 64, "out[argument]"),
    ],
)
def test_the_sanitizer_names_the_line_that_leaves_its_memory(sanitizer, which, index, line):
    done = python(LAUNCH, CU / "faults.cu", which, index, **sanitizer)
    numbered = enumerate((CU / "faults.cu").read_text().splitlines(), start=1)
    number = next(i for i, text in numbered if line in text)
    assert done.returncode == 99, done.stderr
    assert "AddressSanitizer" in done.stderr and f"faults.cu:{number}" in done.stderr


def test_the_sanitizer_is_quiet_about_a_kernel_that_stays_inside(sanitizer):
    done = python(LAUNCH, CU / "faults.cu", 0, 0, **sanitizer)
    assert done.stdout == "clean\n", done.stderr


def test_the_reference_attention_is_clean_under_the_sanitizer(sanitizer):
    done = python(ATTENTION, VECTORS, **sanitizer)
    assert done.stdout == "clean\n", done.stderr


def test_a_sanitized_build_says_what_it_needs(sanitizer):
    done = python(LAUNCH, CU / "faults.cu", 0, 0, CRUCIBLE_SIMT_SANITIZE="1")
    assert "sanitizer_environment()" in done.stderr


def _zig() -> str | None:
    command = f"{sys.executable} -m ziglang c++"
    shown = subprocess.run([*command.split(), "--version"], capture_output=True)
    return command if shown.returncode == 0 else None


def test_the_fallback_compiler_gives_the_same_bits():
    command = _zig()
    if command is None:
        pytest.skip("the ziglang wheel is not installed")
    done = python(ATTENTION, VECTORS, CXX=command)
    assert done.stdout == "clean\n", done.stderr


@pytest.mark.slow
def test_the_aarch64_switch_assembles(tmp_path):
    command = _zig()
    if command is None:
        pytest.skip("the ziglang wheel is not installed")
    unit = tmp_path / "unit.cpp"
    unit.write_text(
        '#include "simt/simt.hpp"\n'
        'extern "C" __global__ void f(int* out) { out[threadIdx.x] = __syncthreads_or(1); }\n'
        "SIMT_EXPORT(f)\n"
    )
    target = ["-target", "aarch64-linux-gnu", "-std=c++17", "-O2", "-fPIC", "-shared", f"-I{kernels_dir()}"]
    subprocess.run([*command.split(), *target, "-o", str(tmp_path / "unit.so"), str(unit)], check=True)


def test_processes_that_build_at_once_leave_one_valid_library(tmp_path):
    host.compiler()
    environment = {**os.environ, "CRUCIBLE_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", LAUNCH, str(CU / "faults.cu"), "0", "0"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)
    ]
    assert [p.communicate()[0] for p in started] == ["clean\n"] * 4
    built = [p.name for p in (tmp_path / "simt").iterdir() if p.suffix != ".lock"]
    assert len(built) == 1 and built[0].endswith(".so")


def test_faults_are_errors_of_this_project():
    from crucible.device.simt import KernelFault

    assert issubclass(KernelFault, CrucibleError)
