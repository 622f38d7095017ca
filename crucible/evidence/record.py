"""Evidence records: what was compared, the verdict, and where it ran, as JSON that checks itself."""

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crucible.errors import InputError
from crucible.evidence.environment import Environment
from crucible.files import check_writable, read_text, shown

FORMAT = "crucible-evidence"
FORMAT_VERSION = 1
VERDICTS = ("pass", "fail", "measured")


@dataclass(frozen=True)
class Series:
    """Raw samples in the order they were taken; `groups` names the cluster of each sample, if any."""

    name: str
    unit: str
    values: tuple[float, ...]
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """One result. `elements`, `finite`, `nonzero` and `differing` count the compared values.

    `facts` holds named scalars (digests, token counts, a worst error in ulp); `samples` keeps raw
    series; `not_claimed` lists what a reader must not conclude.
    """

    kind: str
    claim: str
    compared: str
    verdict: str
    elements: int = 0
    finite: int = 0
    nonzero: int = 0
    differing: int = 0
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    samples: tuple[Series, ...] = ()
    not_claimed: tuple[str, ...] = ()
    environment: Environment | None = None

    def __post_init__(self):
        check(self)


def check(record: Record, where: str = "record") -> None:
    """Raise InputError when a record contradicts itself; a pass over NaN or all-zero output is refused."""
    if record.verdict not in VERDICTS:
        raise InputError(f"{where}: verdict {record.verdict!r} is not one of {', '.join(VERDICTS)}")
    for name in ("elements", "finite", "nonzero", "differing"):
        count = getattr(record, name)
        if not 0 <= count <= max(record.elements, 0):
            raise InputError(f"{where}: {name} = {count} must lie between 0 and elements = {record.elements}")
    if record.verdict == "pass" and record.differing:
        raise InputError(f"{where}: a pass cannot have {record.differing} differing elements")
    if record.verdict == "pass" and record.elements and not record.nonzero:
        raise InputError(f"{where}: a pass over {record.elements} elements that are all zero proves nothing")
    if record.verdict == "pass" and record.finite != record.elements:
        raise InputError(f"{where}: a pass needs finite = elements, got {record.finite} of {record.elements}")
    for series in record.samples:
        if series.groups and len(series.groups) != len(series.values):
            raise InputError(
                f"{where}: series {series.name!r}: {len(series.values)} values, {len(series.groups)} groups"
            )


def counts(array) -> dict[str, int]:
    """Counts of a compared array (any shape, numeric): elements, finite and nonzero, ready for Record."""
    import numpy as np

    array = np.asarray(array)
    return {
        "elements": int(array.size),
        "finite": int(np.isfinite(array).sum()),
        "nonzero": int(np.count_nonzero(array)),
    }


def to_json(records: Iterable[Record]) -> str:
    """The evidence file's text: fields in declared order, floats by shortest round trip, a series a line."""
    body = {"format": FORMAT, "version": FORMAT_VERSION, "records": [dataclasses.asdict(r) for r in records]}
    return _indented(body) + "\n"


def _indented(value: object, depth: int = 0) -> str:
    """JSON with one field or element a line, but lists of scalars on one."""
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and value:
        parts = (f"{json.dumps(k, ensure_ascii=False)}: {_indented(v, depth + 1)}" for k, v in value.items())
        return "{" + inner + ("," + inner).join(parts) + outer + "}"
    if isinstance(value, (list, tuple)) and any(isinstance(v, (dict, list, tuple)) for v in value):
        return "[" + inner + ("," + inner).join(_indented(v, depth + 1) for v in value) + outer + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def save(path: Path | str, records: Iterable[Record]) -> Path:
    """Write an evidence file by an atomic rename; parents are made. Returns the path; InputError."""
    path = Path(path)
    check_writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(to_json(records), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {shown(path)}: {error.strerror or error}") from None
    return path


def publish(records: Record | Sequence[Record], folder: str, stem: str) -> None:
    """Print claim, verdict and counts; save as <folder>/evidence/<stem>.json unless `folder` is empty.

    What is printed depends on the result alone, never on the machine or the time.
    """
    records = [records] if isinstance(records, Record) else list(records)
    for item in records:
        print(f"{item.verdict}: {item.claim}")
        if item.elements:
            print(f"{item.elements:,} elements, {item.differing:,} differing, {item.nonzero:,} non-zero")
    if folder:
        save(Path(folder) / "evidence" / f"{stem}.json", records)


def load(path: Path | str) -> list[Record]:
    """The records of an evidence file. Raises InputError naming the file, the record and the field."""
    path = Path(path)
    try:
        if not os.path.lexists(path):
            raise InputError(f"no evidence file at {shown(path)}; run `crucible report` to make one")
        body = json.loads(read_text(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a readable evidence file: {error}") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise InputError(f'{path} is not an evidence file: it lacks "format": "{FORMAT}"')
    if body.get("version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has evidence version {body.get('version')!r}; this Crucible reads {FORMAT_VERSION}"
        )
    if not isinstance(body.get("records"), list):
        raise InputError(f'{path} has no list called "records"')
    return [_record(item, f"{path}, record {i}") for i, item in enumerate(body["records"])]


def _record(item, where: str) -> Record:
    values = _fields(Record, item, where)
    for name in ("facts",):
        if not isinstance(values.get(name, {}), dict):
            raise InputError(f"{where}: {name} must be an object")
    samples = []
    for i, series in enumerate(_sequence(values.get("samples", []), f"{where}: samples")):
        parts = _fields(Series, series, f"{where}, series {i}")
        numbers = tuple(_sequence(parts["values"], f"{where}, series {i}: values"))
        if not all(type(v) in (int, float) and math.isfinite(v) for v in numbers):
            raise InputError(f"{where}, series {i}: values must be finite numbers")
        samples.append(Series(parts["name"], parts["unit"], numbers, tuple(parts.get("groups", ()))))
    values["samples"] = tuple(samples)
    values["not_claimed"] = tuple(_sequence(values.get("not_claimed", []), f"{where}: not_claimed"))
    if values.get("environment") is not None:
        values["environment"] = Environment(
            **_fields(Environment, values["environment"], f"{where}, environment")
        )
    try:
        return Record(**values)
    except InputError as error:
        raise InputError(str(error).replace("record", where, 1)) from None


def _sequence(value, where: str) -> list:
    if not isinstance(value, list):
        raise InputError(f"{where} must be a list, got {type(value).__name__}")
    return value


def _fields(kind: type, item, where: str) -> dict:
    """`item` as keyword arguments of `kind`: names known, required ones there, simple types right."""
    if not isinstance(item, dict):
        raise InputError(f"{where} must be an object, got {type(item).__name__}")
    known = {f.name: f for f in dataclasses.fields(kind)}
    for name in item:
        if name not in known:
            raise InputError(f"{where}: unknown field {name!r}; known: {', '.join(known)}")
    for name, spec in known.items():
        required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if required and name not in item:
            raise InputError(f"{where}: field {name!r} is missing")
        if name in item and spec.type in (str, int, bool) and type(item[name]) is not spec.type:
            raise InputError(f"{where}: field {name!r} must be {spec.type.__name__}, got {item[name]!r}")
    return dict(item)
