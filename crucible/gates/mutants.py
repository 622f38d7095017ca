"""Mutants of exact kernels: text replacements on a copy of the sources, all to be caught by the gate."""

import concurrent.futures
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crucible.attention import exact
from crucible.attention.run import run
from crucible.device import get
from crucible.device.dry import Dry
from crucible.device.simt import KernelFault
from crucible.device.sources import kernels_dir
from crucible.errors import InputError
from crucible.gates import tensor_inputs
from crucible.gates.tensor_cases import Geometry, Plan
from crucible.gates.tensor_tally import measure
from crucible.kv.slices import Slice

STANDARD, CACHED = f"exact-{exact.STANDARD}", "exact-q2-k32-hybrid-cache"
KERNEL, TILE, PAGED = "attention_exact.cu", "attention_tile.cuh", "paged.cuh"
_LOAD = "load_tile(tile, kpool, kcur, pages, paged, s, base, rows.end, column);\n"
_SUM = "acc[i] = __fmaf_rn(scores[base + j], tile[j * D + lane + 32 * i], acc[i]);"


@dataclass(frozen=True)
class Mutant:
    """One text of a kernel file replaced by another, seen by running `variant`."""

    file: str
    text: str
    replacement: str
    variant: str = STANDARD


MUTANTS: dict[str, Mutant] = {
    "one key too many": Mutant(KERNEL, "s.absolute_start + row + 1 : 0", "s.absolute_start + row + 2 : 0"),
    "one key too few": Mutant(KERNEL, "s.absolute_start + row + 1 : 0", "s.absolute_start + row : 0"),
    "page index off by one": Mutant(PAGED, "table[p >> 4]", "table[(p >> 4) + 1]"),
    "head in the wrong group": Mutant(KERNEL, "column = kv_head * D", "column = (kv_head + 1) % Hkv * D"),
    "no barrier after the tile is loaded": Mutant(KERNEL, f"{_LOAD}    __syncthreads();", _LOAD),
    "no barrier before the tile is overwritten": Mutant(
        KERNEL, "__syncthreads();  // the next tile overwrites this one", ""
    ),
    "V pass in descending order": Mutant(
        KERNEL,
        "for (int j = 0; j < visible; j++) {\n#pragma unroll\n",
        "for (int j = visible - 1; j >= 0; j--) {\n#pragma unroll\n",
    ),
    "fma split in two": Mutant(
        KERNEL,
        _SUM,
        "acc[i] = __fadd_rn(__fmul_rn(scores[base + j], tile[j * D + lane + 32 * i]), acc[i]);",
    ),
    "values summed from -0": Mutant(
        KERNEL, "float acc[kLaneDims] = {};", "float acc[kLaneDims];\n  for (float& a : acc) a = -0.0f;"
    ),
    "keys of weight +0 left out": Mutant(KERNEL, _SUM, f"if (scores[base + j] != 0.0f) {_SUM}"),
    "zeros returned": Mutant(KERNEL, "fits ? __fmul_rn(acc[i], inverse)", "fits ? 0.0f"),
    "output left unwritten": Mutant(KERNEL, "if (!exists) return;\n", "if (!exists || row == 1) return;\n"),
    "hybrid-cache: the current slice of KV head 0 for every head": Mutant(
        TILE, "current + row * a.kv_dim + column", "current + row * a.kv_dim", CACHED
    ),
    "hybrid-cache: the first page in every cached place": Mutant(
        TILE, "cached[i] = table[i]", "cached[i] = table[0]", CACHED
    ),
    "fast-t32: values summed from -0": Mutant(
        "attention_fast_chain.cuh", "acc[a][c] = 0.0f;", "acc[a][c] = -0.0f;", "fast-t32"
    ),
    "fast-rows: values summed from -0": Mutant(
        "attention_fast_rows.cu", "acc[h] = 0.0f;", "acc[h] = -0.0f;", "fast-rows"
    ),
    "fast-decode: values summed from -0": Mutant(
        "attention_fast_decode.cu",
        "acc = make_float2(0.0f, 0.0f)",
        "acc = make_float2(-0.0f, -0.0f)",
        "fast-decode",
    ),
    "fast-split: values summed from -0": Mutant(
        "attention_fast_values.cu", "acc[a] = 0.0f;", "acc[a] = -0.0f;", "fast-split"
    ),
}


@dataclass(frozen=True)
class Caught:
    """A mutant and the checks of the gate that see it; `how` is what the first of them said."""

    mutant: str
    checks: tuple[str, ...]
    how: str


class Mutated:
    """A device whose kernels come from a folder of changed sources."""

    def __init__(self, device, folder: Path):
        self._device, self._folder = device, folder

    def __getattr__(self, name):
        return getattr(self._device, name)

    def kernel(self, stem, entry=None, **defines):
        """As the device's own, from the folder."""
        return self._device.kernel(self._folder / f"{stem}.cu", entry, **defines)


def mutate(device, folder: Path, file: str, text: str, replacement: str) -> Mutated:
    """The device with one text of one kernel file replaced; InputError if the text is no longer there."""
    folder.mkdir(exist_ok=True)
    for source in kernels_dir().glob("*.cu*"):
        shutil.copy(source, folder)
    original = (folder / file).read_text()
    if text not in original:
        raise InputError(f"kernels/{file} no longer holds {text!r}; adapt the mutant")
    (folder / file).write_text(original.replace(text, replacement))
    return Mutated(device, folder)


def case(content: str = "normal") -> tensor_inputs.Case:
    """Ragged tiles of three requests over two groups, with histories on both sides of a K tile."""
    slices = (Slice(0, 60, 6), Slice(1, 0, 5), Slice(2, 90, 1))
    return tensor_inputs.make(Plan("mutants", slices, 20260908, Geometry(4, 2, 64), content))


def caught(names: tuple[str, ...] = tuple(MUTANTS)) -> Iterator[Caught]:
    """Run each mutant on simt over two cases; yields what caught it (no checks: it lived)."""
    simt = get("simt")
    cases = [case(), case("zeros")]
    expected = [_output(simt, given, "reference") for given in cases]
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(MUTANTS[name], Path(folder, str(i))) for i, name in enumerate(names)]
        devices = [mutate(simt, at, m.file, m.text, m.replacement) for m, at in jobs]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            list(workers.map(lambda job: _compile(*job), zip(devices, names, strict=True)))
        for name, device in zip(names, devices, strict=True):
            found = _checks(device, MUTANTS[name].variant, cases, expected)
            yield Caught(name, tuple(found), next(iter(found.values()), ""))


def _compile(device, name: str) -> None:
    dry = Dry(device)
    _output(dry, case(), MUTANTS[name].variant)
    for stem, defines in dry.sources:
        device.kernel(stem, **defines)


def _checks(device, variant: str, cases, expected) -> dict[str, str]:
    """What the checks that see something say, by name."""
    found = {}
    harmless = tensor_inputs.harmless(cases[0])
    poisoned, keep = tensor_inputs.poisoned(harmless, "later")
    try:
        found = _judge(expected[0], _output(device, cases[0], variant))
        zeros = measure(expected[1], _output(device, cases[1], variant))
        if zeros.differing:
            found["zeros against the reference"] = str(zeros)
        # With numbers instead of NaN around it, what remains is that a later key moved a row.
        before, after = (_output(device, c, variant)[keep] for c in (harmless, poisoned))
        if not np.array_equal(before.view(np.uint32), after.view(np.uint32)):
            found["future poison"] = "a row changed when a later key became NaN"
    except KernelFault as fault:
        found["kernel fault"] = str(fault)
    return found


def _judge(reference: np.ndarray, out: np.ndarray) -> dict[str, str]:
    tally = measure(reference, out)
    found = {}
    if tally.finite != tally.elements:
        found["finite count"] = str(tally)
    if not tally.nonzero:
        found["non-zero count"] = str(tally)
    if tally.differing:
        found["bits against the reference"] = str(tally)
    return found


def _output(device, given: tensor_inputs.Case, variant: str) -> np.ndarray:
    positional, keyword = given.on(device)
    out = np.full(given.q.shape, np.nan, np.float32)
    return run(device, *positional, **keyword, variant=variant, out=out).out
