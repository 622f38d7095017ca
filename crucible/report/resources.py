"""What the compiler makes of every CUDA kernel, as a table for the report."""

from crucible.device.nvrtc import compile_cubin
from crucible.device.sources import kernels_dir
from crucible.errors import CrucibleError
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
