"""Hardware counters of named launches: a child process under Nsight Compute (ncu), its CSV read back."""

import csv
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crucible.errors import InputError, UnavailableError

# What is asked of ncu, and the name under which it is kept; a metric that a chip lacks is left out.
METRICS = {
    "gpu__time_duration.sum": "ns",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved occupancy %",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue slots used %",
    "smsp__issue_active.avg.pct_of_peak_sustained_elapsed": "issue slots used, whole launch %",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": "fma pipe busy %",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active": "fma pipe instructions %",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "shared bank conflicts",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "shared wavefronts",
    "dram__bytes_read.sum": "DRAM bytes read",
    "launch__registers_per_thread": "registers",
    "launch__shared_mem_per_block_dynamic": "dynamic shared B",
    "launch__shared_mem_per_block_static": "static shared B",
    "launch__occupancy_limit_registers": "blocks/SM by registers",
    "launch__occupancy_limit_shared_mem": "blocks/SM by shared memory",
    "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum": "local bytes loaded",
    "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum": "local bytes stored",
}
SHOWN = (
    *("ns", "achieved occupancy %", "issue slots used %", "issue slots used, whole launch %"),
    *("fma pipe busy %", "shared bank conflicts", "shared wavefronts", "registers", "local bytes loaded"),
)
MARK = "crucible_mark"
COMMAND = ("ncu", "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off")

# A workload is a name and a callable that enqueues the launches to be measured, on the current stream.
Workload = tuple[str, Callable[[], object]]


@dataclass(frozen=True)
class Reading:
    """One kernel launch of a workload: grid and block as ncu writes them, and its counters by name."""

    workload: str
    kernel: str
    grid: str
    block: str
    counters: dict[str, float]


def read(target: str, arguments: dict | None = None, say=None, timeout: float = 300.0) -> list[Reading]:
    """Counters of every launch of the workloads that `target` ("package.module:function") returns.

    A fresh process calls the function with `arguments` (JSON), runs each workload once to warm up and
    once under ncu, kernels replayed as often as the counters need; clocks and caches are left as they are.
    UnavailableError where ncu is missing or may not read counters.
    """
    ncu = find()
    with tempfile.TemporaryDirectory() as folder:
        log, names = Path(folder) / "ncu.csv", Path(folder) / "names.json"
        command = [ncu, *COMMAND[1:], "--csv", "--page", "raw", "--print-units", "base"]
        command += ["--metrics", ",".join(METRICS), "--log-file", str(log)]
        command += [sys.executable, "-m", __name__, target, json.dumps(arguments or {}), str(names)]
        if say:
            say(f"ncu over {target}")
        here = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout,
                env={**os.environ, "PYTHONPATH": path},
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"ncu over {target} took more than {timeout:.0f} s") from None
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if not names.exists():
            raise UnavailableError(f"ncu over {target} failed: {reason(text, done.stdout + done.stderr)}")
        try:
            return grouped(parse(text), json.loads(names.read_text()))
        except InputError as error:
            why = reason(text, done.stdout + done.stderr)
            raise UnavailableError(f"ncu over {target} gave no counters ({error}): {why}") from None


def find() -> str:
    """Path of ncu; UnavailableError without one."""
    found = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if found is None:
        raise UnavailableError("hardware counters need Nsight Compute; put its ncu on the PATH")
    return found


def reason(log: str, output: str) -> str:
    """The line of ncu's or the child's output that says what went wrong."""
    lines = [line.strip() for line in (log + "\n" + output).splitlines() if line.strip()]
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        return "the driver lets only an administrator read counters (ERR_NVGPUCTRPERM)"
    marked = [line for line in lines if line.startswith(("==ERROR==", "error:"))]
    return (marked or lines or ["it said nothing"])[-1].removeprefix("==ERROR== ")


def parse(text: str) -> list[dict[str, str]]:
    """Rows of `ncu --csv --page raw`, one a launch in launch order, by heading; InputError without any.

    Lines before the header are ncu's own; the row after it holds units.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise InputError("the output of ncu holds no table")
    body = [line for line in lines[start:] if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(body))))
    rows = [row for row in rows if row["ID"]]  # units have no ID
    if not rows:
        raise InputError("the output of ncu holds no launch")
    return rows


def number(text: str) -> float | None:
    """A value of ncu's CSV: digits grouped by commas; None for n/a."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def grouped(rows: Sequence[dict[str, str]], names: Sequence[str]) -> list[Reading]:
    """Rows as readings: the launches after the n-th mark, up to the next, belong to the n-th name."""
    readings, at = [], -1
    for row in rows:
        if MARK in row["Kernel Name"]:
            at += 1
            continue
        if not 0 <= at < len(names):
            continue
        values = {name: number(row.get(metric) or "") for metric, name in METRICS.items()}
        counters = {name: value for name, value in values.items() if value is not None}
        kernel = row["Kernel Name"].split("(")[0]
        readings.append(Reading(names[at], kernel, row["Grid Size"], row["Block Size"], counters))
    missing = set(names) - {r.workload for r in readings}
    if missing:
        raise InputError(f"no launch was seen of {', '.join(sorted(missing))}")
    return readings


def text(readings: Iterable[Reading]) -> str:
    """A line a launch."""
    from crucible.bench.attention import aligned

    rows = [("workload", "kernel", *SHOWN)]
    for r in readings:
        values = (r.counters.get(name) for name in SHOWN)
        rows.append((r.workload, r.kernel, *("-" if v is None else f"{v:,.4g}" for v in values)))
    return aligned(rows)


def to_record(kind: str, readings: Sequence[Reading]):
    """One record `counters.<kind>`; facts are named `workload: kernel, counter`."""
    from crucible.evidence.environment import capture
    from crucible.evidence.record import Record

    facts: dict[str, str | float] = {"command": " ".join(COMMAND)}
    for r in readings:
        facts[f"{r.workload}: {r.kernel}, grid"] = f"{r.grid} of {r.block}"
        facts |= {f"{r.workload}: {r.kernel}, {name}": value for name, value in r.counters.items()}
    return Record(
        kind=f"counters.{kind}",
        claim="hardware counters of one launch each, read by ncu",
        compared="; ".join(dict.fromkeys(r.workload for r in readings)),
        verdict="measured",
        facts=facts,
        not_claimed=("times under ncu: a launch is replayed alone, once for each group of counters",),
        environment=capture("cuda"),
    )


def child(target: str, arguments: str, names: Path) -> None:
    """The process under ncu: warm every workload, then run each once behind a mark."""
    import cupy

    module, _, function = target.partition(":")
    workloads: list[Workload] = list(
        getattr(importlib.import_module(module), function)(**json.loads(arguments))
    )
    mark = cupy.RawKernel(f'extern "C" __global__ void {MARK}() {{}}', MARK)
    for _, call in workloads:
        call()
    mark((1,), (1,), ())
    cupy.cuda.runtime.deviceSynchronize()
    cupy.cuda.runtime.profilerStart()
    for _, call in workloads:
        mark((1,), (1,), ())
        call()
        cupy.cuda.runtime.deviceSynchronize()
    cupy.cuda.runtime.profilerStop()
    names.write_text(json.dumps([name for name, _ in workloads]))


if __name__ == "__main__":
    from crucible.errors import CrucibleError

    try:
        child(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    except CrucibleError as error:
        sys.exit(f"error: {error}")
