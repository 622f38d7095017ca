"""Small paged cases whose unseen slots hold NaN, and the reference's output for each."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest

from crucible.attention.plan import plan_of
from crucible.attention.run import Result, run
from crucible.attention.shapes import LAYER, Case, case
from crucible.device import get


@pytest.fixture(params=["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """The devices that run the CUDA sources: simt everywhere, cuda where there is a GPU."""
    return get(request.param)


@dataclass(frozen=True)
class Prepared:
    """A case in a device's memory."""

    device: object
    case: Case
    arrays: tuple

    def run(self, variant: str, planned: bool = True, **options) -> np.ndarray:
        """The variant's output on the host; `out` starts as NaN."""
        return self.launch(variant, planned, **options).out

    def launch(self, variant: str, planned: bool = True, **options) -> Result:
        """The same, with what was launched."""
        c = self.case
        out = self.device.upload(np.full(c.q.shape, np.nan, np.float32))
        made = plan_of(self.device, c.packed.desc, c.Hkv) if planned else None
        args = (*self.arrays, LAYER, c.Hkv, c.D)
        result = run(self.device, *args, variant, out, plan=made, **options)
        return Result(self.device.download(result.out), result.launch)


def prepare(device, c: Case) -> Prepared:
    arrays = (c.q, c.kpool, c.vpool, c.tables, c.packed.desc)
    return Prepared(device, c, tuple(device.upload(a) for a in arrays))


@functools.cache
def made(
    device, segments: tuple, G: int, D: int, Hkv: int = 2, seed: int = 11
) -> tuple[Prepared, np.ndarray]:
    """A prepared case and what the reference gives for it on the cpu device."""
    c = case(segments, G * Hkv, Hkv, D, seed)
    return prepare(device, c), prepare(get("cpu"), c).run("reference", planned=False)
