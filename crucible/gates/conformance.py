"""Conformance: run vector files on a device and say, section by section, whether the bits agree."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from crucible import device as devices
from crucible.errors import InputError, NoKernelError, UnavailableError, UnsupportedError
from crucible.evidence.environment import capture
from crucible.evidence.record import Record
from crucible.gates import vectors
from crucible.gates.sections import HOST, SECTIONS, Section, attention_sections
from crucible.gates.vectors import VectorFile
from crucible.numerics.bits import compare

Verdict = Literal["equal", "differs", "not run", "not covered", "host"]


@dataclass(frozen=True)
class Result:
    """One section of one file: counts over all its arrays, and the first mismatch or why it did not run.

    `not run` means the device lacks a kernel or the machine a model file; `not covered` a shape that
    one attention variant leaves to another; `host` code that no device runs: equal, but no pass of one.
    """

    file: str
    section: str
    verdict: Verdict
    cases: int = 0
    elements: int = 0
    differing: int = 0
    note: str = ""
    finite: int = 0
    nonzero: int = 0

    def __str__(self) -> str:
        head = f"{self.file:<32} {self.section:<20} "
        if self.verdict in ("not run", "not covered"):
            return f"{head} {self.note}"
        counts = f"{self.cases:>6} cases {self.elements:>9} elements {self.differing:>7} differing"
        if self.verdict == "host":
            return f"{head} {counts}  {self.note}"
        return f"{head} {counts}{'  first ' + self.note if self.note else ''}"


@dataclass(frozen=True)
class Summary:
    """What a run adds up to; exit code 0 all equal, 1 a difference, 3 something did not run."""

    files: int
    sections: int
    elements: int
    differing_sections: int
    not_run: int

    @property
    def exit_code(self) -> int:
        """0, 1 or 3: a section that did not run is never a pass."""
        if self.differing_sections:
            return 1
        return 3 if self.not_run or not self.elements else 0

    def __str__(self) -> str:
        of = f"{_count(self.sections, 'section')} of {_count(self.files, 'file')}"
        parts = [f"{of}, {_count(self.elements, 'element')} compared"]
        differ = "differs" if self.differing_sections == 1 else "differ"
        parts.append(
            f"{_count(self.differing_sections, 'section')} {differ}"
            if self.differing_sections
            else "no bit differs"
        )
        if self.not_run:
            parts.append(f"{_count(self.not_run, 'section')} did not run")
        return ", ".join(parts)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def run(paths: list[Path], device: str | devices.Device = "cpu") -> Iterator[Result | Summary]:
    """Check every file first, then yield one Result per section and a Summary at the end.

    `device` is a name or a device. Raises InputError, before anything runs, for a path that is
    missing, damaged or not of the format.
    """
    files = [vectors.read(path) for path in vectors.find(paths)]
    device = devices.get(device) if isinstance(device, str) else device
    results: list[Result] = []
    for file in files:
        for result in _run_file(device, file):
            results.append(result)
            yield result
    ran = [r for r in results if r.verdict in ("equal", "differs")]
    yield Summary(
        files=len(files),
        sections=sum(r.verdict != "host" for r in results),
        elements=sum(r.elements for r in ran),
        differing_sections=sum(r.verdict == "differs" for r in ran),
        not_run=sum(r.verdict == "not run" for r in results),
    )


def _run_file(device, file: VectorFile) -> Iterator[Result]:
    try:
        sections = _sections(device, file.kind)
    except NoKernelError:
        yield Result(file.path.name, file.kind, "not run", note="no kernel yet")
        return
    results = []
    for name, section in sections.items():
        results.append(_run_section(device, file, name, section))
        yield results[-1]
    if all(r.verdict == "not covered" for r in results):
        yield Result(file.path.name, file.kind, "not run", note="no variant covers this shape")


def _sections(device, kind: str) -> dict[str, Section]:
    if kind == "attention":
        return attention_sections(device)
    if kind == "smollm2_chat":
        from crucible.gates.model_sections import MODEL_SECTIONS

        return MODEL_SECTIONS
    return SECTIONS[kind]


def _run_section(device, file: VectorFile, name: str, section: Section) -> Result:
    cases = elements = differing = finite = nonzero = 0
    first, where = "", file.path.name
    try:
        for check in section(device, file):
            if check.expected.dtype.kind == "f" and np.isnan(check.expected).any():
                raise InputError(f"expected array {check.label} holds a NaN, so it cannot be a vector")
            found = compare(check.expected, check.actual)
            cases, elements = cases + check.cases, elements + found.elements
            differing += found.differing
            finite, nonzero = finite + found.finite, nonzero + found.elements - found.zero
            if found.first and not first:
                first = f"{check.label}{found.first}"
    except NoKernelError:
        return Result(where, name, "not run", note="no kernel yet")
    except UnsupportedError as error:
        return Result(where, name, "not covered", note=str(error))
    except UnavailableError as error:
        return Result(where, name, "not run", note=str(error))
    except InputError as error:
        raise InputError(f"{file.path}, {name}: {error}") from error
    if not elements:
        raise InputError(f"{file.path}, {name}: nothing was compared")
    verdict: Verdict = "differs" if differing else "equal"
    if name in HOST and device.name != "cpu" and not differing:
        verdict, first = "host", f"made by host code, not by {device.name}: not counted"
    return Result(where, name, verdict, cases, elements, differing, first, finite, nonzero)


def records(results: list[Result], device: str) -> list[Record]:
    """One evidence record for every section that ran; the first names those that did not as not claimed."""
    environment = capture(device)
    left_out = tuple(f"{r.file}, {r.section}: {r.note}" for r in results if r.verdict == "not run")
    return [
        Record(
            kind="conformance",
            claim=f"{r.section} of {r.file} has the contract's bits on {device}",
            compared=f"{r.cases} cases against stored vectors, by bits",
            verdict="pass" if r.verdict == "equal" else "fail",
            elements=r.elements,
            finite=r.finite,
            nonzero=r.nonzero,
            differing=r.differing,
            not_claimed=left_out if i == 0 else (),
            environment=environment,
        )
        for i, r in enumerate(r for r in results if r.verdict in ("equal", "differs"))
    ]


def combined(results: list[Result], device: str) -> Record:
    """All results as one record; facts hold the elements that each section compared over all files."""
    ran = [r for r in results if r.verdict in ("equal", "differs")]
    left_out = tuple(f"{r.file}, {r.section}: {r.note}" for r in results if r.verdict == "not run")
    sections: dict[str, int] = {}
    for r in ran:
        sections[r.section] = sections.get(r.section, 0) + r.elements
    files = len({r.file for r in ran})
    differing = sum(r.differing for r in ran)
    return Record(
        kind="conformance",
        claim=f"{_count(len(ran), 'section')} of {_count(files, 'vector file')} have the contract's bits "
        f"on {device}",
        compared="stored vectors, whose expected bits another implementation made",
        verdict="pass" if ran and not differing else "fail",
        elements=sum(r.elements for r in ran),
        finite=sum(r.finite for r in ran),
        nonzero=sum(r.nonzero for r in ran),
        differing=differing,
        facts=sections,
        not_claimed=left_out,
        environment=capture(device),
    )
