"""Mutants of the exact kernel: text replacements on a copy of the sources, all to be caught by the gate."""

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
from crucible.device.simt import KernelFault
from crucible.device.sources import kernels_dir
from crucible.errors import InputError
from crucible.gates import tensor_inputs
from crucible.gates.tensor_cases import Geometry, Plan
from crucible.gates.tensor_tally import measure
from crucible.kv.slices import Slice

VARIANT = f"exact-{exact.STANDARD}"
KERNEL, TILE, PAGED = "attention_exact.cu", "attention_tile.cuh", "paged.cuh"
_LOAD = "load_tile(tile, kpool, kcur, pages, paged, s, base, rows.end, column);\n"
_SUM = "acc[i] = __fmaf_rn(scores[base + j], tile[j * D + lane + 32 * i], acc[i]);"

# name -> (file, text, replacement)
MUTANTS: dict[str, tuple[str, str, str]] = {
    "one key too many": (KERNEL, "s.absolute_start + row + 1 : 0", "s.absolute_start + row + 2 : 0"),
    "one key too few": (KERNEL, "s.absolute_start + row + 1 : 0", "s.absolute_start + row : 0"),
    "page index off by one": (PAGED, "table[p >> 4]", "table[(p >> 4) + 1]"),
    "head in the wrong group": (KERNEL, "column = kv_head * D", "column = (kv_head + 1) % Hkv * D"),
    "no barrier after the tile is loaded": (KERNEL, f"{_LOAD}    __syncthreads();", _LOAD),
    "no barrier before the tile is overwritten": (
        KERNEL,
        "__syncthreads();  // the next tile overwrites this one",
        "",
    ),
    "V pass in descending order": (
        KERNEL,
        "for (int j = 0; j < visible; j++) {\n#pragma unroll\n",
        "for (int j = visible - 1; j >= 0; j--) {\n#pragma unroll\n",
    ),
    "fma split in two": (
        KERNEL,
        _SUM,
        "acc[i] = __fadd_rn(__fmul_rn(scores[base + j], tile[j * D + lane + 32 * i]), acc[i]);",
    ),
    "zeros returned": (KERNEL, "fits ? __fmul_rn(acc[i], inverse)", "fits ? 0.0f"),
    "output left unwritten": (KERNEL, "if (!exists) return;\n", "if (!exists || row == 1) return;\n"),
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


def case() -> tensor_inputs.Case:
    """Ragged tiles of two requests over two groups, with histories on both sides of a K tile."""
    slices = (Slice(0, 60, 6), Slice(1, 0, 5), Slice(2, 150, 1))
    return tensor_inputs.make(Plan("mutants", slices, 20260908, Geometry(4, 2, 64)))


def caught(names: tuple[str, ...] = tuple(MUTANTS)) -> Iterator[Caught]:
    """Run each mutant on simt over one case; yields what caught it (no checks: it lived)."""
    simt, given = get("simt"), case()
    harmless = tensor_inputs.harmless(given)
    poisoned, keep = tensor_inputs.poisoned(harmless, "later")
    reference = _output(simt, given, "reference")
    with tempfile.TemporaryDirectory() as folder:
        devices = [mutate(simt, Path(folder, str(i)), *MUTANTS[name]) for i, name in enumerate(names)]
        defines = exact.STANDARD.defines(given.plan.geometry.D)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            list(workers.map(lambda device: device.kernel("attention_exact", **defines), devices))
        for name, device in zip(names, devices, strict=True):
            found = {}
            try:
                out = _output(device, given, VARIANT)
                found = _judge(reference, out)
                # With numbers instead of NaN around it, what remains is that a later key moved a row.
                before, after = (_output(device, c, VARIANT)[keep] for c in (harmless, poisoned))
                if not np.array_equal(before.view(np.uint32), after.view(np.uint32)):
                    found["future poison"] = "a row changed when a later key became NaN"
            except KernelFault as fault:
                found["kernel fault"] = str(fault)
            yield Caught(name, tuple(found), next(iter(found.values()), ""))


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
