"""CUBINs of many kernels before they are needed: side by side in processes, into the shared cache."""

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

# A kernel file's stem and its macros.
Source = tuple[str, dict[str, int]]


def precompile(arch: str, sources: Iterable[Source], processes: int | None = None) -> int:
    """Compile every distinct source for `arch` ("sm_90"); returns how many there were.

    NVRTC takes one program at a time in a process, so a process a core does it; `processes` bounds them.
    Raises what compile_cubin raises.
    """
    from crucible.device.nvrtc import compile_cubin

    jobs = {(stem, tuple(sorted(defines.items()))): defines for stem, defines in sources}
    stems, defines = [stem for stem, _ in jobs], list(jobs.values())
    count = min(processes or os.cpu_count() or 1, len(jobs))
    if count <= 1:
        for stem, macros in zip(stems, defines, strict=True):
            compile_cubin(stem, arch, macros)
        return len(jobs)
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_cubin, stems, [arch] * len(jobs), defines))
    return len(jobs)
