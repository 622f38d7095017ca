"""Conformance says equal only for equal bits: every vector at every level, and every way to be fooled."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from crucible import device as devices
from crucible.cli import main
from crucible.cli.conformance import register
from crucible.device.cpu import CpuDevice, available_levels
from crucible.errors import InputError, NoKernelError
from crucible.evidence.record import load
from crucible.gates import model_sections
from crucible.gates.conformance import Summary, run
from crucible.gates.sections import SECTIONS
from crucible.gates.vectors import KINDS
from crucible.model.fetch import cached

VECTORS = Path(__file__).parent.parent / "vectors"
OPERATIONS = sorted(p for p in VECTORS.glob("*.npz") if p.stem != "smollm2_chat")


@pytest.fixture(scope="module")
def command():
    """Run `crucible …` in this process: (exit code, stdout, stderr)."""

    def call(*args, capsys):
        import sys

        before, sys.argv = sys.argv, ["crucible", *map(str, args)]
        try:
            with pytest.raises(SystemExit) as stop:
                main.main()
        finally:
            sys.argv = before
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


def altered(tmp_path: Path, name: str, change) -> Path:
    arrays = dict(np.load(VECTORS / f"{name}.npz"))
    change(arrays)
    path = tmp_path / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def test_every_operation_vector_is_equal_at_every_level(cpu):
    *results, summary = run([VECTORS / p for p in OPERATIONS], cpu)
    assert [str(r) for r in results if r.verdict != "equal"] == []
    assert all(r.elements > 0 and r.cases > 0 for r in results)
    assert summary.exit_code == 0 and summary.files == len(OPERATIONS) >= 28


@pytest.mark.skipif(cached("smollm2") is None, reason="needs the model: crucible fetch smollm2")
def test_the_whole_model_is_equal():
    *results, summary = run([VECTORS / "smollm2_chat.npz"])
    assert [str(r) for r in results if r.verdict != "equal"] == []
    assert [r.section for r in results] == ["smollm2 weights", "smollm2 f32", "smollm2 int8"]
    assert summary.exit_code == 0


@pytest.mark.slow
@pytest.mark.skipif(cached("smollm2") is None, reason="needs the model: crucible fetch smollm2")
@pytest.mark.parametrize("level", available_levels()[1:])
def test_the_whole_model_is_equal_at_every_other_level(level, monkeypatch):
    monkeypatch.setattr(devices, "get", lambda name: CpuDevice(level))
    *results, summary = run([VECTORS / "smollm2_chat.npz"])
    assert [str(r) for r in results if r.verdict != "equal"] == [] and summary.exit_code == 0


@pytest.mark.parametrize("name", ["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_device_of_cuda_kernels_is_equal_in_every_section(name):
    *results, summary = run(OPERATIONS, name)
    other = [r for r in results if r.verdict != "equal"]
    assert [str(r) for r in other if r.verdict not in ("not covered", "host")] == []
    # What does not run: a shape that one attention variant leaves to others, and tables that the host makes.
    assert all(r.section.startswith("attention") or r.section == "rope tables" for r in other)
    assert {r.section for r in results} >= {"linear f32", "linear int8", "seeded", "gumbel-id", "logprobs"}
    assert summary.exit_code == 0 and summary.elements > 70_000


def test_a_missing_model_is_no_pass(monkeypatch):
    monkeypatch.setattr(model_sections, "cached", lambda name: None)
    *results, summary = run([VECTORS / "smollm2_chat.npz", VECTORS / "exp.npz"])
    missing = [r for r in results if r.verdict == "not run"]
    assert len(missing) == 3 and summary.exit_code == 3
    assert all("model file not here: run crucible fetch smollm2" in str(r) for r in missing)


@pytest.mark.parametrize(
    "name, key, section",
    [
        ("exp", "sigmoid_y", "sigmoid"),
        ("attention_g3_d64", "chunk_out", "attention exact"),
        ("linear_i8_k64", "T", "linear int8"),
        ("linear_f32_k64", "negzero_y", "linear f32"),
        ("sampling", "case_kept", "seeded"),
        ("gumbel", "ln_y", "ln"),
        ("philox", "out", "philox"),
        ("rope", "cos_2", "rope tables"),
    ],
)
def test_one_changed_bit_is_found_and_named(tmp_path, name, key, section):
    def flip(arrays):
        flat = arrays[key].reshape(-1).view(np.uint8)
        flat[0] ^= 1

    *results, summary = run([altered(tmp_path, name, flip)])
    (found,) = [r for r in results if r.verdict == "differs" and r.section == section]
    assert found.differing == 1 and summary.exit_code == 1
    assert f"first {key}[0" in str(found) and "expected" in str(found) and "ulp" in str(found)


def test_a_sign_of_zero_counts_as_a_difference(tmp_path):
    *results, summary = run(
        [altered(tmp_path, "linear_f32_k64", lambda a: a.update(negzero_y=-a["negzero_y"]))]
    )
    assert results[0].differing == 2 and summary.exit_code == 1


class Flushing(CpuDevice):
    """A device that flushes subnormal results to zero."""

    def download(self, array):
        small = np.abs(array) < np.finfo(np.float32).tiny if array.dtype == np.float32 else False
        return np.where(small, array.dtype.type(0), array)


def test_a_device_that_flushes_subnormals_is_caught():
    *results, summary = run([p for p in OPERATIONS if p.stem[:3] in ("att", "lin", "swi")], Flushing())
    caught = {r.section for r in results if r.verdict == "differs"}
    assert caught >= {"attention reference", "linear f32"} and summary.exit_code == 1


class Padding(CpuDevice):
    """A device that pads the inner dimension of a linear layer with zeros: fma(0, 0, -0) is +0."""

    def download(self, array):
        return array + np.float32(0)


def test_a_device_that_pads_k_is_caught():
    *results, summary = run([VECTORS / "linear_f32_k576.npz"], Padding())
    assert results[0].verdict == "differs" and results[0].differing == 1 and summary.exit_code == 1


DAMAGED = {
    "missing": (lambda p: None, "does not exist"),
    "empty": (lambda p: p.write_bytes(b""), "is damaged or no .npz archive"),
    "text": (lambda p: p.write_text("hello"), "is damaged or no .npz archive"),
    "truncated": (
        lambda p: p.write_bytes((VECTORS / "sums.npz").read_bytes()[:-9000]),
        "is damaged or no .npz archive",
    ),
    "a single array": (lambda p: np.save(p.open("wb"), np.ones(3)), "is a single array"),
    "pickled": (lambda p: np.savez(p, exp_x=np.array([{}], object)), "is damaged or no .npz archive"),
    "nothing of the format": (lambda p: np.savez(p, foo=np.ones(3)), "holds none of the arrays"),
    "no arrays": (lambda p: np.savez(p), "holds none of the arrays"),
    "only inputs": (lambda p: np.savez(p, exp_x=np.ones(3, "f4")), "lacks array exp_y of the exp vectors"),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_file_gets_one_sentence(tmp_path, how, command, capsys):
    make, named = DAMAGED[how]
    path = tmp_path / "v.npz"
    make(path)
    code, out, err = command("conformance", path, capsys=capsys)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and named in err and str(path) in err


def test_a_flipped_byte_in_the_archive_is_found(tmp_path):
    data = bytearray((VECTORS / "exp.npz").read_bytes())
    data[len(data) // 2] ^= 1
    path = tmp_path / "v.npz"
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        list(run([path]))


CHANGED = {
    "an array removed": ("rope", lambda a: a.pop("sin_3"), "lacks array sin_3 of the rope vectors"),
    "a family removed in part": ("rmsnorm", lambda a: a.pop("y_576_eps1"), "lacks array y_576_eps1"),
    "every array of a family": (
        "rmsnorm",
        lambda a: [a.pop(k) for k in list(a) if k != "eps"],
        "lacks array x_{i} of the rmsnorm vectors",
    ),
    "an unknown array": (
        "exp",
        lambda a: a.update(extra=a["exp_x"]),
        "extra is no part of the exp vectors",
    ),
    "half of an option": ("attention_g3_d64", lambda a: a.pop("chunk_desc"), "lacks chunk_desc"),
    "a wrong dtype": ("exp", lambda a: a.update(exp_y=a["exp_y"].astype("f8")), "exp_y has dtype float64"),
    "a wrong shape": (
        "exp",
        lambda a: a.update(exp_y=a["exp_y"][:-1]),
        "exp_y has 1999 along n",
    ),
    "empty arrays": ("exp", lambda a: a.update(exp_x=a["exp_x"][:0]), r"exp_x has shape \(0,\)"),
    "a NaN expected": ("exp", lambda a: a["exp_y"].__setitem__(3, np.nan), "exp_y holds a NaN"),
    "offsets past the end": ("sums", lambda a: a["offsets"].__setitem__(-1, 10**6), "offsets must ascend"),
    "a page outside": (
        "attention_g1_d64",
        lambda a: a["tables"].__setitem__((6, 0), 99),
        "page 99 at",
    ),
    "a layer outside": ("attention_g1_d64", lambda a: a.update(layer=np.int32(2)), "layer 2 is outside"),
    "logits outside": (
        "gumbel",
        lambda a: a["case_logits"].__setitem__(0, 50),
        "case_logits.0. = 50",
    ),
    "a bad temperature": ("gumbel", lambda a: a["case_temperature"].__setitem__(0, -1), "temperature -1.0"),
}


@pytest.mark.parametrize("how", CHANGED)
def test_a_file_only_partly_in_the_format_never_passes(tmp_path, how):
    name, change, named = CHANGED[how]
    with pytest.raises(InputError, match=named):
        list(run([altered(tmp_path, name, change)]))


def test_nothing_runs_before_every_file_is_checked(tmp_path):
    bad = tmp_path / "z.npz"
    bad.write_bytes(b"")
    with pytest.raises(InputError):
        next(run([VECTORS / "exp.npz", bad]))


def test_the_command_prints_a_line_a_section_and_exits_by_the_verdict(tmp_path, command, capsys):
    code, out, err = command("conformance", VECTORS / "exp.npz", VECTORS / "swiglu.npz", capsys=capsys)
    lines = out.splitlines()
    assert code == 0 and err == "" and len(lines) == 5
    assert [line.split()[0] for line in lines[:4]] == ["exp.npz"] * 2 + ["swiglu.npz"] * 2
    assert "2000 elements" in lines[0] and "0 differing" in lines[0] and "no bit differs" in lines[-1]
    path = altered(tmp_path, "exp", lambda a: a["exp_y"].__setitem__(0, 7))
    code, out, _ = command("conformance", path, capsys=capsys)
    assert code == 1 and "1 differing" in out and "exp_y[0] expected 7.0" in out
    empty = tmp_path / "empty"
    empty.mkdir()
    for args, named in (
        ((empty,), "holds no .npz file"),
        ((path, "--device", "tpu"), "unknown device 'tpu'"),
    ):
        code, _, err = command("conformance", *args, capsys=capsys)
        assert code == 2 and named in err


def test_a_device_without_a_kernel_says_so_and_exits_3(command, capsys, monkeypatch):
    def missing(device, v):
        raise NoKernelError("philox", device.name)

    monkeypatch.setitem(SECTIONS["philox"], "philox", missing)
    files = [VECTORS / "attention_g1_d64.npz", VECTORS / "philox.npz"]
    code, out, _ = command("conformance", *files, "--device", "simt", capsys=capsys)
    assert code == 3 and "attention reference" in out and "0 differing" in out
    assert "philox.npz" in out and out.count("no kernel yet") == 1


def test_the_help_shows_an_example():
    app = typer.Typer()
    app.command()(lambda: None)  # a second command, so that typer keeps the names
    register(app)
    result = CliRunner().invoke(app, ["conformance", "--help"])
    assert result.exit_code == 0 and "crucible conformance tests/vectors" in result.output


def test_vectors_of_every_kind_are_stored():
    kinds = {p.stem.split("_g")[0].split("_k")[0] for p in VECTORS.glob("*.npz")}
    assert all(any(k.startswith(kind) for k in kinds) for kind in KINDS)
    assert isinstance(list(itertools.islice(run([VECTORS / "exp.npz"]), 3))[-1], Summary)


def test_a_run_leaves_one_checked_record_for_every_section_that_ran(tmp_path, command, capsys):
    path = tmp_path / "record.json"
    code, out, _ = command("conformance", VECTORS / "rope.npz", "--json", path, capsys=capsys)
    assert code == 0, out
    assert [record.verdict for record in load(path)] == ["pass", "pass"]


def test_what_the_host_computes_is_no_pass_of_another_device():
    rope = VECTORS / "rope.npz"
    *results, summary = run([rope], "simt")
    assert {r.section: r.verdict for r in results} == {"rope tables": "host", "rope": "equal"}
    assert "made by host code, not by simt" in str(results[0])
    assert summary.sections == 1 and summary.elements == results[1].elements and summary.exit_code == 0
    assert str(summary).startswith("1 section of 1 file, ")
    *results, _ = run([rope], "cpu")
    assert {r.verdict for r in results} == {"equal"}


def test_a_text_file_is_refused_without_advice_to_load_it_unsafely(tmp_path):
    path = tmp_path / "notes.npz"
    path.write_text("hello, these are notes")
    with pytest.raises(InputError, match=r"no \.npz archive") as refused:
        list(run([path]))
    assert "pickle" not in str(refused.value)
