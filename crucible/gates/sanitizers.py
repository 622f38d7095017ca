"""compute-sanitizer's four tools over every kernel, as one evidence record.

`python -m crucible.gates.sanitizers FILE.json` on a machine with a GPU and compute-sanitizer.
"""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from crucible.errors import UnavailableError
from crucible.evidence.environment import Environment, capture
from crucible.evidence.record import Record, save
from crucible.gates.every_kernel import entries

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
_COUNTS = re.compile(r'^\{"calls": .*\}$', re.MULTILINE)


@dataclass(frozen=True)
class Checked:
    """What one tool found, as text ("0": nothing), and the launches of each kernel that it watched."""

    tool: str
    found: str
    calls: int = 0
    launches: dict[str, int] = field(default_factory=dict)


def check(tool: str, seconds: int = 600) -> Checked:
    """One tool over every kernel."""
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "4", sys.executable, "-m"]
    try:
        done = subprocess.run(
            [*command, "crucible.gates.every_kernel"], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Checked(tool, f"not finished in {seconds} s")
    return read(tool, done.stdout + done.stderr)


def read(tool: str, text: str) -> Checked:
    """The result in a tool's output; what is not clean is shown on stderr."""
    ran, found = _COUNTS.search(text), _SUMMARY.search(text)
    if not ran or not found:
        print(text[-3000:], file=sys.stderr)
        return Checked(tool, "did not run to its end")
    if found.group(1) != "0":
        print(text[:3000], file=sys.stderr)
    counts = json.loads(ran.group())
    return Checked(tool, found.group(1), counts["calls"], counts["launches"])


def to_record(results: list[Checked], environment: Environment | None) -> Record:
    """A pass needs every tool clean over the same launches; the kernels are named with their launches."""
    launches = results[0].launches
    same = bool(launches) and all(r.launches == launches for r in results)
    missing = sorted(entries() - set(launches))
    facts: dict[str, str | int] = {r.tool: r.found for r in results}
    facts |= {"calls": results[0].calls, "launches": sum(launches.values())}
    facts |= {f"launches of {kernel}": count for kernel, count in launches.items()}
    return Record(
        kind="sanitizers",
        claim="memcheck, racecheck, initcheck and synccheck find nothing in any kernel",
        compared="every CUDA kernel on small ragged shapes, attention in every form that auto may choose at "
        "3, 4 or 8 heads a KV head of dimension 64 or 128; exact ones held to the reference",
        verdict="pass" if same and all(r.found == "0" for r in results) else "fail",
        facts=facts,
        not_claimed=("large shapes", "kernels of a user", *(f"{kernel}: not launched" for kernel in missing)),
        environment=environment,
    )


def main(path: Path) -> None:
    """Run the tools and write the record."""
    if shutil.which("compute-sanitizer") is None:
        raise UnavailableError("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    _compile()
    results = []
    with ThreadPoolExecutor(len(TOOLS)) as pool:  # the tools wait on the host far more than on the GPU
        for checked in pool.map(check, TOOLS):
            results.append(checked)
            print(checked.tool, checked.found, flush=True)
    save(path, [to_record(results, capture("cuda"))])


def _compile() -> None:
    """The attention kernels, in a process a core: each tool would otherwise compile them one by one."""
    from crucible.device import get
    from crucible.device.precompile import precompile
    from crucible.gates.every_attention_kernel import attention_sources

    precompile(get("cuda").arch, attention_sources())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
