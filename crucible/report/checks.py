"""What a report checks beside its notebooks: the stored vectors on this machine's processor and its GPU."""

from collections.abc import Callable
from functools import partial

from crucible.evidence.envelope import gpu
from crucible.evidence.record import Record
from crucible.report.notebooks import root

VECTORS = "tests/vectors"  # in a checkout; a wheel carries none


def conformance(device: str = "cpu") -> list[Record]:
    """One record of all vectors on a device, the whole model where its file is here; none without vectors."""
    from crucible.gates import conformance as gate

    folder = root() / VECTORS
    if not folder.is_dir():
        return []
    results = [line for line in gate.run([folder], device) if isinstance(line, gate.Result)]
    return [gate.combined(results, device)]


def checks() -> dict[str, Callable[[], list[Record]]]:
    """The checks of this machine by name: the vectors on cpu, and on cuda where there is an NVIDIA GPU."""
    found: dict[str, Callable[[], list[Record]]] = {"conformance": conformance}
    return found | ({"conformance-cuda": partial(conformance, "cuda")} if gpu() else {})
