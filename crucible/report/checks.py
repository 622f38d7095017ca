"""What a report checks beside its notebooks: the stored vectors on this machine's processor."""

from crucible.evidence.record import Record
from crucible.report.notebooks import root

VECTORS = "tests/vectors"  # in a checkout; a wheel carries none


def conformance() -> list[Record]:
    """One record of all vectors on cpu, the whole model where its file is here; none without vectors."""
    from crucible.gates import conformance as gate

    folder = root() / VECTORS
    if not folder.is_dir():
        return []
    results = [line for line in gate.run([folder], "cpu") if isinstance(line, gate.Result)]
    return [gate.combined(results, "cpu")]


CHECKS = {"conformance": conformance}
