"""The README's picture, computed: one request in many arrangements on every device, and the one digest.

python -m crucible.report.overview docs/overview.svg draws it; with `--device cuda --record FILE` the
digests of a GPU are kept as evidence, and later drawings show them beside the devices of this machine.
"""

import argparse
from pathlib import Path

from crucible import device as devices
from crucible.evidence import environment, record
from crucible.evidence.record import Record
from crucible.kv.slices import Slice
from crucible.numerics.digest import digest
from crucible.report import cases
from crucible.report.notebooks import root

LENGTHS = (46, 20, 30, 9)  # request 0 is the one that is followed
GEOMETRY = dict(heads=6, kv_heads=2, head_dim=64, num_pages=11)
KIND = "overview"
GPU_RECORD = "outputs/h200/overview.json"


def _chunks(size: int) -> list[Slice]:
    return [Slice(0, at, min(size, LENGTHS[0] - at)) for at in range(0, LENGTHS[0], size)]


def arrangements() -> dict[str, cases.Case]:
    """The followed request alone, in company, in chunks, token by token, on other pages, and all at once."""
    whole = [Slice(i, 0, n) for i, n in enumerate(LENGTHS)]
    busy = [whole[1], *_chunks(7), whole[2], whole[3]]
    made = {
        "alone": ([whole[0]], None),
        "in a packed batch": ([whole[1], whole[0], whole[2], whole[3]], None),
        "in chunks of 7": (_chunks(7), None),
        "token by token": (_chunks(1), None),
        "on shuffled pages": ([whole[0]], 5),
        "all at once": (busy, 11),
    }
    return {
        name: cases.make(LENGTHS, slices=slices, page_seed=seed, **GEOMETRY)
        for name, (slices, seed) in made.items()
    }


def digests(device_name: str) -> dict[str, str]:
    """Digest of the followed request's attention output in every arrangement on a device."""
    target = devices.get(device_name)
    return {name: digest(cases.only(case, case.run(target), 0)) for name, case in arrangements().items()}


def as_record(device_name: str, found: dict[str, str]) -> Record:
    """The digests as evidence: a pass when the arrangements share one."""
    elements = LENGTHS[0] * GEOMETRY["heads"] * GEOMETRY["head_dim"] * len(found)
    same = len(set(found.values())) == 1
    return Record(
        kind=KIND,
        claim=f"one request in {len(found)} arrangements has one attention digest on {device_name}",
        compared="attention output of one request by digest, arrangement against arrangement",
        verdict="pass" if same else "fail",
        elements=elements,
        finite=elements,
        nonzero=elements,
        facts=found,
        environment=environment.capture(device_name),
    )


def draw(path: Path) -> set[str]:
    """Compute on cpu and simt, add a recorded GPU if there is one, write the picture; the digests shown."""
    from crucible.report.plots.overview import overview
    from crucible.report.plots.style import save

    columns = {name: digests(name) for name in ("cpu", "simt")}
    gpu = root() / GPU_RECORD
    if gpu.exists():
        columns["cuda"] = dict(record.load(gpu)[0].facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(overview(arrangements(), columns, LENGTHS, GEOMETRY["num_pages"]), path)
    return {d for found in columns.values() for d in found.values()}


def main() -> None:
    """Command line of the module; exit code 1 when the digests differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path, help="where to draw, .svg or .png")
    parser.add_argument("--device", help="compute on this device only, for --record")
    parser.add_argument("--record", type=Path, help="evidence file to write the device's digests to")
    arguments = parser.parse_args()
    seen: set[str] = set()
    if arguments.record:
        found = digests(arguments.device or "cpu")
        seen |= set(found.values())
        record.save(arguments.record, [as_record(arguments.device or "cpu", found)])
    if arguments.picture:
        seen |= draw(arguments.picture)
    print("\n".join(sorted(seen)))
    raise SystemExit(len(seen) != 1)


if __name__ == "__main__":
    main()
