"""Candidates: anything with the attention signature, by name, as a Python function or as a .cu file."""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crucible import device as devices
from crucible.attention import online, user
from crucible.attention.base import Problem, Variant
from crucible.attention.variants import VARIANTS, find
from crucible.device.base import NAMES
from crucible.drift.defects import DEFECTS
from crucible.drift.dense import LIBRARY
from crucible.errors import InputError, NoKernelError
from crucible.files import shown

# f(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out): arguments as crucible.attention.run.run;
# it writes `out` and returns None, or returns an array like q.
PagedFunction = Callable[..., object]
ONLINE = tuple(f"online-{tile}" for tile in online.TILES)
DIAGNOSTICS = ("hardware-exp", "split-sum", "contracted", "tf32")


@dataclass(frozen=True)
class Candidate:
    """An attention to hold to the reference: a registered variant, or one made for this (`made`).

    `name` is what a person asked for. A candidate that was made runs eagerly: it may read back from the
    device, so nothing of it is recorded or captured.
    """

    name: str
    variant: str
    summary: str
    made: Variant | None = None

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
        return _made(name, spec, f"Python function {name}")
    if not isinstance(spec, str) or not spec:
        raise InputError(f"a candidate is a name, a file or a function, not {spec!r:.60}")
    path, _, entry = spec.rpartition(":") if ":" in spec else (spec, "", "")
    if path.endswith(".cu"):
        return _cuda_file(spec, Path(os.path.expanduser(path)), entry)
    if path.endswith(".py"):
        return _made(spec, _python_function(Path(os.path.expanduser(path)), entry), f"Python function {spec}")
    if spec in DEFECTS:
        return _made(spec, DEFECTS[spec], f"seeded defect: {DEFECTS[spec].__doc__}")
    if spec in LIBRARY:
        summary, make, where = LIBRARY[spec]
        if device.name not in where:
            raise NoKernelError(f"candidate {spec}", device.name)
        return _made(spec, make(), summary)
    if spec == "auto":
        raise InputError("auto is no candidate: it chooses among variants; name the one to diagnose")
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


def _made(name: str, function: PagedFunction, summary: str) -> Candidate:
    launch = functools.partial(_call, function)
    made = Variant(summary, False, dict.fromkeys(NAMES, launch))
    return Candidate(name, f"candidate:{name}", summary, made)


def _call(function: PagedFunction, device, p: Problem) -> None:
    if p.q is None:  # a rehearsal, which only asks for work items
        return
    found = function(device, p.q, p.kpool, p.vpool, p.tables, p.desc, p.layer, p.Hkv, p.D, p.out)
    if found is None:
        return
    if tuple(found.shape) != tuple(p.out.shape):
        raise InputError(
            f"the candidate returned shape {tuple(found.shape)}; it must be q's, {tuple(p.out.shape)}"
        )
    p.out[...] = found


def _cuda_file(spec: str, path: Path, entry: str) -> Candidate:
    if not path.is_file():
        raise InputError(f"no candidate file at {shown(str(path))}; give the path of a .cu file")

    def launch(device, p: Problem) -> None:
        # cpu and simt share the host's memory: there the CUDA source runs on simt.
        user.launch(devices.get("simt") if device.name == "cpu" else device, p, path, entry or None)

    summary = f"CUDA source {spec}"
    made = Variant(summary, False, dict.fromkeys(NAMES, launch))
    return Candidate(spec, f"candidate:{spec}", summary, made)


def _python_function(path: Path, name: str) -> PagedFunction:
    if not path.is_file():
        raise InputError(f"no candidate file at {shown(str(path))}; give the path of a .py file")
    found = importlib.util.spec_from_file_location(f"crucible_candidate_{path.stem}", path)
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:  # whatever a stranger's file raises
        raise InputError(f"{shown(str(path))} does not run: {type(error).__name__}: {error}") from None
    function = getattr(module, name or "attention", None)
    if not callable(function):
        raise InputError(f"{shown(str(path))} has no function {name or 'attention'}; give file.py:function")
    return function
