"""Options and skips for every test: `--slow` adds the long sweeps, `gpu` tests need a CUDA GPU."""

import functools

import pytest


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run the long sweeps")


@functools.cache
def _has_gpu() -> bool:
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:  # no driver, no cupy, no GPU: each is a machine without one
        return False


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="long sweep; run with --slow"))
        if "gpu" in item.keywords and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
