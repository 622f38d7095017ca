"""NVRTC without a GPU: our flags hold, every kernel compiles for every target, the cache key sees headers."""

import shutil

import pytest

from crucible.device import cubin, nvrtc
from crucible.device.sources import kernels_dir
from crucible.errors import InputError, UnavailableError

KERNELS = sorted(p.stem for p in kernels_dir().glob("*.cu"))

PLAIN = """
extern "C" __global__ void plain(const float* a, float* out, int n, double wide, unsigned char small) {
  const float x = a[threadIdx.x], y = a[n];
  out[threadIdx.x] = x * y + a[0];
  out[threadIdx.x + 32] = x / y;
  out[threadIdx.x + 64] = sqrtf(x);
  out[96] = static_cast<float>(wide) + small;
}
"""


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.cu"
    path.write_text(PLAIN)
    return path


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("stem", KERNELS)
def test_every_kernel_compiles_for_every_target(stem, arch):
    built = nvrtc.compile_cubin(stem, arch)
    assert built.path.stat().st_size > 1000
    assert built.resources, "no entry"
    for entry, used in built.resources.items():
        assert 0 < used.registers <= 255 and used.static_shared <= 48 * 1024
        assert built.parameter_sizes[entry]


def test_nothing_is_flushed_contracted_or_approximated(plain):
    code = nvrtc.ptx(plain, "sm_90")
    assert ".ftz" not in code and "approx" not in code and "fma." not in code
    for operation in ("mul.rn.f32", "add.rn.f32", "div.rn.f32", "sqrt.rn.f32"):
        assert operation in code or operation.replace(".rn", "") in code


@pytest.mark.parametrize("stem", KERNELS)
def test_no_kernel_flushes_subnormals(stem):
    code = nvrtc.ptx(stem, "sm_90")
    assert ".ftz" not in code and "approx" not in code


def test_the_check_would_see_flushing(plain, monkeypatch):
    monkeypatch.setattr(nvrtc, "FLAGS", ("--std=c++17", "--ftz=true", "--fmad=true"))
    code = nvrtc.ptx(plain, "sm_90")
    assert ".ftz" in code and "fma." in code


def test_a_log_without_the_resources_of_an_entry_is_refused_and_not_kept(plain, monkeypatch):
    monkeypatch.setenv("CRUCIBLE_CACHE", str(plain.parent / "cache"))
    compiled = nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda *a: (compiled(*a)[0], ""))
    with pytest.raises(UnavailableError, match="did not report what plain uses"):
        nvrtc.compile_cubin(plain, "sm_90")
    monkeypatch.setattr(nvrtc, "_compile", compiled)
    assert nvrtc.compile_cubin(plain, "sm_90").resources["plain"].registers


def test_parameter_sizes_come_from_the_cubin(plain):
    built = nvrtc.compile_cubin(plain, "sm_90")
    assert built.parameter_sizes == {"plain": (8, 8, 4, 8, 1)}


def test_an_included_header_is_part_of_the_key(tmp_path):
    for file in kernels_dir().glob("*.cu*"):
        shutil.copy(file, tmp_path)
    source, header = tmp_path / "attention_reference.cu", tmp_path / "contract.cuh"
    key = nvrtc.cubin_key(source, "sm_90", {})
    assert nvrtc.cubin_key(source, "sm_90", {}) == key
    others = {
        nvrtc.cubin_key(source, "sm_80", {}),
        nvrtc.cubin_key(source, "sm_90", {"TILE": 4}),
    }
    header.write_text(header.read_text() + "// changed\n")  # included by paged.cuh, not by the source
    others.add(nvrtc.cubin_key(source, "sm_90", {}))
    assert key not in others and len(others) == 3


def test_flags_are_part_of_the_key(plain, monkeypatch):
    key = nvrtc.cubin_key(plain, "sm_90", {})
    monkeypatch.setattr(nvrtc, "FLAGS", (*nvrtc.FLAGS, "--use_fast_math"))
    assert nvrtc.cubin_key(plain, "sm_90", {}) != key


def test_resources_are_read_from_both_forms_of_the_log():
    old = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, 272+8 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'two' for 'sm_80'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 19 registers, 1 barriers, 256 bytes smem, 385 bytes cmem[0]
"""
    new = """
ptxas info    : Compiling entry function 'three' for 'sm_90'
ptxas info    : Function properties for three
ptxas         .     400 bytes stack frame, 4 bytes spill stores, 6 bytes spill loads
ptxas info    : Used 34 registers, used 2 barriers, 400 bytes cumulative stack size, 48 bytes smem
ptxas info    : Compile time = 39.186 ms
"""
    assert nvrtc.parse_log(old) == {
        "one": nvrtc.Resources(40, 8, 12, 16, 280, 0),
        "two": nvrtc.Resources(19, 0, 0, 0, 256, 1),
    }
    three = nvrtc.parse_log(new)["three"]
    assert three == nvrtc.Resources(34, 4, 6, 400, 48, 2) and three.spill_bytes == 10


def test_a_lost_description_is_made_again(plain, monkeypatch, tmp_path):
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path / "cache"))
    built = nvrtc.compile_cubin(plain, "sm_90")
    built.path.with_suffix(".json").unlink()
    assert nvrtc.compile_cubin(plain, "sm_90") == built


def test_a_compile_error_names_the_line(tmp_path):
    bad = tmp_path / "bad.cu"
    bad.write_text('extern "C" __global__ void bad(int* out) {\n  out[0] = undeclared;\n}\n')
    with pytest.raises(UnavailableError, match=r"bad\.cu\(2\)"):
        nvrtc.compile_cubin(bad, "sm_90")


def test_an_architecture_is_checked_by_its_form():
    with pytest.raises(InputError, match="compute_90"):
        nvrtc.compile_cubin("rope", "compute_90")


def test_something_that_is_no_cubin_is_refused():
    with pytest.raises(ValueError, match="ELF"):
        cubin.sections(b"not an object file")
