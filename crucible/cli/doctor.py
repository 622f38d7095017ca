"""`crucible doctor`: what this machine has, and what of Crucible runs on it."""

import json
from collections.abc import Callable
from typing import Any

import typer

from crucible.cli.doctor_attention import attention


def _software() -> dict[str, Any]:
    import platform

    from crucible import __version__
    from crucible.evidence.environment import git_state, kernel_digest, library_versions
    from crucible.numerics.contract import CONTRACT_VERSION

    commit, dirty = git_state()
    names = (
        "numpy",
        "typer",
        "tokenizers",
        "torch",
        "cupy-cuda13x",
        "nvidia-cuda-nvrtc",
        "jupyterlab",
        "ziglang",
    )
    return {
        "crucible": __version__,
        "contract version": int(CONTRACT_VERSION),
        "kernel digest": kernel_digest(),
        "commit": commit + (" (with local changes)" if dirty else "")
        if commit
        else "none (installed package)",
        "python": platform.python_version(),
        **{name: library_versions((name,)).get(name, "not installed") for name in names},
    }


def _machine() -> dict[str, Any]:
    import os
    import platform

    from crucible.device.cpu import available_levels, chosen_level, default_threads
    from crucible.evidence.envelope import cpu_model

    found = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "threads": default_threads(),
        "vector level": f"{chosen_level()} (this processor has {', '.join(available_levels())})",
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory"] = _size(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return found


def _compiler() -> dict[str, Any]:
    from crucible.device.host import compiler

    command, version = compiler()
    return {"compiler": " ".join(command), "compiler version": version}


def _gpu() -> dict[str, Any]:
    from crucible.evidence.envelope import gpu

    card = gpu()
    if card is None:
        return {"gpu": "none seen (no NVIDIA driver, or no device)"}
    return {
        "gpu": card.name,
        "gpu memory": _size(card.memory_total),
        "driver": card.driver,
        "driver's CUDA": card.cuda,
    }


def _nvrtc() -> dict[str, Any]:
    from cupy_backends.cuda.libs import nvrtc

    major, minor = nvrtc.getVersion()
    return {"nvrtc": f"{major}.{minor} (compiles .cu files{'' if _has_gpu() else ', also without a GPU'})"}


def _has_gpu() -> bool:
    from crucible.evidence.envelope import gpu

    return gpu() is not None


def _kernels() -> dict[str, Any]:
    """Operations by device: cpu covers the contract, simt and cuda what has a .cu file."""
    from crucible.device.base import default_name
    from crucible.device.sources import kernels_dir

    stems = sorted(path.stem for path in kernels_dir().glob("*.cu"))
    found: dict[str, Any] = {
        "cpu": "every operation, the whole model (f32 and int8)",
        "simt": f"the whole model, slowly, on the host: {', '.join(stems) or 'none'}",
        "cuda": f"the whole model (f32 and int8), the same files ({_ready()})",
        "auto": default_name(),
    }
    arch = _architecture()
    for stem in stems:
        found[f"{arch} {stem}"] = _resources(stem, arch)
    return found


def _ready() -> str:
    return "ready" if _has_gpu() else "needs an NVIDIA GPU"


def _architecture() -> str:
    """The GPU's, else the one that the kernels are recorded on: NVRTC compiles for it on any machine."""
    if not _has_gpu():
        return "sm_90"
    import cupy

    return f"sm_{cupy.cuda.Device(0).compute_capability}"


def _resources(stem: str, arch: str) -> str:
    """What NVRTC gives a kernel: registers, spills, static shared memory."""
    from crucible.device.nvrtc import compile_cubin

    try:
        used = compile_cubin(stem, arch, {}).resources
    except Exception as error:  # a doctor reports what is broken instead of stopping
        return f"does not compile here: {error}"
    shown = (
        f"{r.registers} registers, {r.spill_bytes} B spilled, {r.static_shared} B shared"
        for r in used.values()
    )
    return "; ".join(shown)


def _caches() -> dict[str, Any]:
    from crucible.device.cache import cache_dir

    root = cache_dir()
    found = {"cache": str(root)}
    for folder in sorted(p for p in root.glob("*") if p.is_dir()):
        files = [p for p in folder.rglob("*") if p.is_file()]
        many = f"{len(files)} file{'' if len(files) == 1 else 's'}"
        found[f"cache/{folder.name}"] = f"{many}, {_size(sum(p.stat().st_size for p in files))}"
    return found


def _models() -> dict[str, Any]:
    from crucible.model.fetch import SOURCES, models_dir, state

    found = {}
    for name, source in SOURCES.items():
        path, what = models_dir() / source.filename, state(name)
        if what == "missing":
            found[name] = f"not here yet; run: crucible fetch {name}"
        else:
            good = "sha256 ok" if what == "ok" else f"sha256 BAD; run: crucible fetch {name}"
            found[name] = f"{path} ({_size(path.stat().st_size)}, {good})"
    return {**found, "synthetic-12x768": "made on demand"}


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


SECTIONS: dict[str, tuple[Callable[[], dict[str, Any]], ...]] = {
    "software": (_software,),
    "machine": (_machine, _compiler),
    "gpu": (_gpu, _nvrtc),
    "kernels": (_kernels,),
    "attention": (attention,),
    "caches": (_caches,),
    "models": (_models,),
}


def examine() -> dict[str, dict[str, Any]]:
    """Everything the sections find; what fails is reported as text under "problem" and stops nothing."""
    report: dict[str, dict[str, Any]] = {}
    for name, probes in SECTIONS.items():
        report[name] = {}
        for probe in probes:
            try:
                report[name].update(probe())
            except Exception as error:  # the purpose of a doctor: a broken part is a finding
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
                report[name][f"problem with {probe.__name__.strip('_')}"] = problem
    return report


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog="Example: crucible doctor --json")
    def doctor(
        json_output: bool = typer.Option(False, "--json", help="Print one JSON object."),
    ) -> None:
        """Show what this machine has: compiler, vector level, GPU, NVRTC, kernels, caches, models."""
        report = examine()
        if json_output:
            print(json.dumps(report, indent=1))
            return
        for section, found in report.items():
            print(section)
            for key, value in found.items():
                print(f"  {key:<18} {value}")
