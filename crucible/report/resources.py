"""What the compiler makes of every CUDA kernel, and the committed speeds, as tables for the report."""

import re
from collections.abc import Sequence

from crucible.device.nvrtc import compile_cubin
from crucible.device.sources import kernels_dir
from crucible.errors import CrucibleError
from crucible.evidence.record import Record
from crucible.evidence.statistics import bracket
from crucible.report.tables import Table, table

ARCHITECTURE = "sm_90"


def kernel_table(arch: str = ARCHITECTURE) -> Table:
    """Registers, spills and static shared memory of each kernels/*.cu for `arch`; needs no GPU.

    Each file is compiled as it stands, so one with macros shows the variant that its defaults name.
    A file that does not compile, or a machine without NVRTC, is a row that says so.
    """
    rows: list[tuple] = []
    for path in sorted(kernels_dir().glob("*.cu")):
        try:
            found = compile_cubin(path.stem, arch).resources
            rows += [
                (path.name, entry, r.registers, r.spill_bytes, r.static_shared) for entry, r in found.items()
            ]
        except CrucibleError as error:
            rows.append((path.name, f"not compiled: {error}", "", "", ""))
    heading = ("file", "entry", "registers a thread", "bytes spilled", "static shared bytes a block")
    return table(heading, rows)


def speed_table(records: Sequence[Record]) -> Table:
    """tok/s of every contender in whole-model benchmark records, with the median ratio to each peer."""
    rows = []
    for item in records:
        if item.kind not in ("bench.prefill", "bench.decode"):
            continue
        for one in (s for s in item.samples if s.unit == "tok/s"):
            seen = bracket(one.values)
            ratio = re.compile(rf"{re.escape(one.name)} / (.+), median ratio")
            pairs = [(m.group(1), v) for name, v in item.facts.items() if (m := ratio.fullmatch(name))]
            against = ", ".join(f"{v:.2f} x {peer}" for peer, v in pairs)
            median, low, high = (round(v) for v in (seen.median, seen.low, seen.high))
            rows.append(
                (item.kind.removeprefix("bench."), one.name, median, low, high, seen.samples, against)
            )
    heading = ("phase", "engine", "tok/s (median)", "minimum", "maximum", "samples", "median ratio")
    return table(heading, rows)
