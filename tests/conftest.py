"""Options and fixtures of every layer: slow and gpu selection, one cpu device per vector level."""

import functools

import pytest

from crucible.device.cpu import CpuDevice, available_levels


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the long sweeps too")


@functools.cache
def _no_gpu() -> str | None:
    """Why the cuda device cannot be had here, or None."""
    from crucible import device
    from crucible.errors import CrucibleError

    try:
        device.get("cuda")
    except (CrucibleError, ImportError) as error:
        return str(error)
    return None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="long sweep; run with --slow"))
        if "gpu" in item.keywords and _no_gpu() is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a CUDA GPU: {_no_gpu()}"))


@functools.cache
def _cpu(level: str) -> CpuDevice:
    return CpuDevice(level)


@pytest.fixture(params=available_levels())
def cpu(request) -> CpuDevice:
    """The cpu device, once per vector level that this processor can run."""
    return _cpu(request.param)
