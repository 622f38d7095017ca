"""The README's picture, computed: one request in many arrangements on every device, and the one digest.

python -m crucible.report.overview docs/overview.svg draws it; with `--device cuda --record FILE` the
digests of a GPU are kept as evidence, and later drawings show them beside the devices of this machine.
"""

import argparse
from pathlib import Path

import numpy as np

from crucible import device as devices
from crucible.evidence import environment, record
from crucible.evidence.record import Record
from crucible.kv.slices import Slice
from crucible.numerics.bits import compare
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


def outputs(device_name: str) -> dict[str, np.ndarray]:
    """The followed request's attention output, f32 [positions][Hq*D], in every arrangement on a device."""
    target = devices.get(device_name)
    return {name: cases.only(case, case.run(target), 0) for name, case in arrangements().items()}


def digests(found: dict[str, np.ndarray]) -> dict[str, str]:
    """Digest of each output."""
    return {name: digest(array) for name, array in found.items()}


def as_record(device_name: str, found: dict[str, np.ndarray]) -> Record:
    """The outputs as evidence: a pass when every arrangement has the bits of the first."""
    everything = np.stack(list(found.values()))
    differing = compare(np.broadcast_to(everything[0], everything.shape), everything).differing
    return Record(
        kind=KIND,
        claim=f"one request in {len(found)} arrangements has one set of attention bits on {device_name}",
        compared="attention output of one request, every arrangement against the request alone, by bits",
        verdict="fail" if differing else "pass",
        differing=differing,
        **record.counts(everything),
        facts=digests(found),
        environment=environment.capture(device_name),
    )


def draw(path: Path) -> set[str]:
    """Compute on cpu and simt, add a recorded GPU if there is one, write the picture; the digests shown."""
    from crucible.report.plots.overview import overview
    from crucible.report.plots.style import save

    columns = {name: digests(outputs(name)) for name in ("cpu", "simt")}
    gpu = root() / GPU_RECORD
    if gpu.exists():
        recorded = record.load(gpu)[0]
        card = recorded.environment.device_name.removeprefix("NVIDIA ")
        columns[f"cuda, {card}"] = dict(recorded.facts)
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
        found = outputs(arguments.device or "cpu")
        seen |= set(digests(found).values())
        record.save(arguments.record, [as_record(arguments.device or "cpu", found)])
    if arguments.picture:
        seen |= draw(arguments.picture)
    print("\n".join(sorted(seen)))
    raise SystemExit(len(seen) != 1)


if __name__ == "__main__":
    main()
