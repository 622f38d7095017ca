"""Candidates: anything with the attention signature, by name, as a Python function or as a .cu file."""

import contextlib
import difflib
import functools
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crucible import device as devices
from crucible.attention import online, user
from crucible.attention.base import Problem, Variant
from crucible.attention.variants import SHORT, VARIANTS, find
from crucible.device.base import NAMES
from crucible.drift.defects import DEFECTS
from crucible.drift.dense import LIBRARY
from crucible.errors import CrucibleError, InputError, NoKernelError
from crucible.files import brief, shown

# f(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out): arguments as crucible.attention.run.run;
# it writes `out` and returns None, or returns an array like q.
PagedFunction = Callable[..., object]
ONLINE = tuple(f"online-{tile}" for tile in online.TILES)
DIAGNOSTICS = ("hardware-exp", "split-sum", "contracted", "tf32")


@dataclass(frozen=True)
class Candidate:
    """An attention to hold to the reference: a registered variant, or one made for this (`made`).

    `name` is what a person asked for. A candidate that was made runs eagerly: it may read back from the
    device, so nothing of it is recorded or captured. One that is a user's (`users`) may have the reference's
    bits or others: nobody promised either.
    """

    name: str
    variant: str
    summary: str
    made: Variant | None = None
    users: bool = False

    @property
    def graph(self) -> bool:
        """Whether passes with it may be recorded and replayed."""
        return self.made is None

    @property
    def exact(self) -> bool:
        """Whether it claims the reference's bits."""
        return self.made is None and VARIANTS[self.variant].exact

    @contextlib.contextmanager
    def installed(self) -> Iterator[str]:
        """The variant's name for a forward pass, registered while the block runs."""
        if self.made is None:
            yield self.variant
            return
        if self.variant in VARIANTS:
            raise InputError(f"candidate {self.name} is being run already; end that run first")
        VARIANTS[self.variant] = self.made
        try:
            yield self.variant
        finally:
            del VARIANTS[self.variant]


def open_candidate(spec: str | PagedFunction, device) -> Candidate:
    """The candidate that `spec` names on a device.

    spec: an attention variant (q2-k32, split-sum …), library attention (sdpa-math, flex …), a seeded defect
    (defect-nan …), `file.py:function` (default function: attention), `file.cu:entry` (default entry: the
    file's stem; the arguments, grid, block and shared memory of kernels/attention_reference.cu), or a Python
    function with the paged signature (crucible.drift.dense.dense makes one of a function over dense keys).
    InputError for a name or a file that is not there, NoKernelError where the device lacks it.
    """
    if callable(spec):
        name = getattr(spec, "__name__", "function")
        return _made(name, spec, f"Python function {name}", users=True)
    if not isinstance(spec, str) or not spec:
        raise InputError(f"a candidate is a name, a file or a function, not {spec!r:.60}")
    path, _, entry = spec.rpartition(":") if ":" in spec else (spec, "", "")
    if path.endswith(".cu"):
        return _cuda_file(spec, _file(path), entry, device)
    if path.endswith(".py"):
        return _made(spec, _python_function(_file(path), entry), f"Python function {spec}", users=True)
    if spec in DEFECTS:
        return _made(spec, DEFECTS[spec], f"seeded defect: {DEFECTS[spec].__doc__}")
    if spec in LIBRARY:
        summary, make, where = LIBRARY[spec]
        if device.name not in where:
            raise NoKernelError(f"candidate {spec}", device.name, where[0])
        return _made(spec, make(), summary)
    if spec == "auto":
        raise InputError("auto is no candidate: it chooses among variants; name the one to diagnose")
    if spec not in (*VARIANTS, *SHORT):
        raise InputError(f"unknown candidate {brief(spec, 60)}; {_hint(spec)}")
    variant = find(spec, "candidate")
    return Candidate(spec, variant, VARIANTS[variant].summary)


def available(device) -> list[str]:
    """Names of every candidate that a device has, library attention included where torch is installed.

    The cpu device has one arithmetic for the online tiles of the same keys; each is listed once there.
    """
    tiles = [f"online-q2-k{keys}" for keys in online.KEYS] if device.name == "cpu" else list(ONLINE)
    names = tiles + [n for n in DIAGNOSTICS if device.name in VARIANTS[n].launchers]
    if importlib.util.find_spec("torch") is not None:
        names += [n for n, (_, _, where) in LIBRARY.items() if device.name in where]
    return names


def _hint(spec: str) -> str:
    near = difflib.get_close_matches(spec[:60].lower(), (*VARIANTS, *SHORT, *LIBRARY, *DEFECTS), 4, 0.5)
    if near:
        return f"did you mean {', '.join(near)}?"
    return "give a name such as q2-k32, split-sum or sdpa-math, or file.py:function or file.cu:entry"


def _made(name: str, function: PagedFunction, summary: str, users: bool = False) -> Candidate:
    launch = functools.partial(_call, name, function)
    made = Variant(summary, False, dict.fromkeys(NAMES, launch))
    return Candidate(name, f"candidate:{name}", summary, made, users)


def _call(name: str, function: PagedFunction, device, p: Problem) -> None:
    if p.q is None:  # a rehearsal, which only asks for work items
        return
    p.out[...] = np.nan  # what is not written shows, and is the same in every run
    try:
        found = function(device, p.q, p.kpool, p.vpool, p.tables, p.desc, p.layer, p.Hkv, p.D, p.out)
        if found is not None:
            _check(name, found, p.out)
            p.out[...] = found
    except CrucibleError:
        raise
    except (Exception, SystemExit) as error:  # whatever a stranger's function raises
        own = getattr(inspect.unwrap(function), "__code__", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{f.filename}, line {f.lineno}" for f in frames if own and f.filename == own.co_filename]
        where = f" ({shown(lines[-1])})" if lines else ""
        raise InputError(f"candidate {shown(name)} failed: {_told(error)}{where}") from error


def _check(name: str, found, out) -> None:
    if not hasattr(found, "shape"):
        what = type(found).__name__
        raise InputError(f"candidate {shown(name)} returned {what}; it must be None or an array like q")
    if tuple(found.shape) != tuple(out.shape):
        raise InputError(
            f"candidate {shown(name)} returned shape {tuple(found.shape)}; it must be q's, {tuple(out.shape)}"
        )
    if np.iscomplexobj(found):
        raise InputError(f"candidate {shown(name)} returned {found.dtype} numbers; they must be real")


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _file(path: str) -> Path:
    """The file of a candidate; InputError where there is none."""
    found = Path(os.path.expanduser(path))
    if not os.path.isfile(found):  # False too for a name that no file can have
        raise InputError(f"no candidate file at {shown(found)}; give the path of a {found.suffix} file")
    return found


def _cuda_file(spec: str, path: Path, entry: str, device) -> Candidate:
    def on(device):
        # cpu and simt share the host's memory: there the CUDA source runs on simt.
        return devices.get("simt") if device.name == "cpu" else device

    def launch(device, p: Problem) -> None:
        if p.q is not None:
            p.out[...] = np.nan
        user.launch(on(device), p, path, entry or None)

    on(device).kernel(path, entry or None)  # one that does not compile is refused here
    summary = f"CUDA source {spec}"
    made = Variant(summary, False, dict.fromkeys(NAMES, launch))
    return Candidate(spec, f"candidate:{spec}", summary, made, users=True)


def _python_function(path: Path, name: str) -> PagedFunction:
    found = importlib.util.spec_from_file_location(f"crucible_candidate_{path.stem}", path)
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses and pickle look a class's module up there
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a stranger's file raises
        raise InputError(f"{shown(path)} does not run: {_told(error)}") from error
    function = getattr(module, name or "attention", None)
    if not callable(function):
        raise InputError(f"{shown(path)} has no function {name or 'attention'}; give file.py:function")
    return function
