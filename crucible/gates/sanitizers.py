"""compute-sanitizer's four tools over every kernel, as one evidence record.

`python -m crucible.gates.sanitizers FILE.json` on a machine with a GPU and compute-sanitizer.
"""

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crucible.errors import UnavailableError
from crucible.evidence.environment import capture
from crucible.evidence.record import Record, save

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
_LAUNCHES = re.compile(r"(\d+) launches, exact bits equal")


def check(tool: str, seconds: int = 600) -> tuple[str, int]:
    """(findings as text, kernels launched) of one tool; text "0" means clean."""
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "4", sys.executable, "-m"]
    try:
        done = subprocess.run(
            [*command, "crucible.gates.every_kernel"], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"not finished in {seconds} s", 0
    text = done.stdout + done.stderr
    ran, found = _LAUNCHES.search(text), _SUMMARY.search(text)
    if not ran or not found:
        print(text[-3000:], file=sys.stderr)
        return "did not run to its end", 0
    if found.group(1) != "0":
        print(text[:3000], file=sys.stderr)
    return found.group(1), int(ran.group(1))


def main(path: Path) -> None:
    """Run the tools and write the record."""
    if shutil.which("compute-sanitizer") is None:
        raise UnavailableError("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    facts: dict[str, str | int] = {}
    with ThreadPoolExecutor(len(TOOLS)) as pool:  # the tools wait on the host far more than on the GPU
        for tool, (found, ran) in zip(TOOLS, pool.map(check, TOOLS), strict=True):
            facts |= {tool: found, "launches": ran}
            print(tool, found, flush=True)
    clean = all(facts[tool] == "0" for tool in TOOLS)
    record = Record(
        kind="sanitizers",
        claim="memcheck, racecheck, initcheck and synccheck find nothing in any kernel",
        compared="every CUDA kernel once on small ragged shapes, exact ones held to the reference",
        verdict="pass" if clean else "fail",
        facts=facts,
        not_claimed=("large shapes", "kernels of a user"),
        environment=capture("cuda"),
    )
    save(path, [record])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
