"""The two ways of running a .cu file, and the attention vectors as cases."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from crucible.attention.run import attention
from crucible.device import get

VECTORS = Path(__file__).parents[1] / "vectors"


@pytest.fixture(params=["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """The devices that run the CUDA sources: simt everywhere, cuda where there is a GPU."""
    return get(request.param)


@dataclass
class AttentionCase:
    """Inputs of one attention call on the host, and the output that the contract gives."""

    name: str
    q: np.ndarray
    kpool: np.ndarray
    vpool: np.ndarray
    tables: np.ndarray
    desc: np.ndarray
    layer: int
    Hkv: int
    out: np.ndarray | None = None

    def run(self, device, **options) -> np.ndarray:
        arrays = (device.upload(a) for a in (self.q, self.kpool, self.vpool, self.tables, self.desc))
        D = self.q.shape[2]
        return device.download(attention(device, *arrays, self.layer, self.Hkv, D, **options))


def load_case(name: str) -> AttentionCase:
    """The vectors of `attention_<name>.npz`; a name that ends in `:chunks` means its chunk_* arrays."""
    file, _, chunks = name.partition(":")
    z = np.load(VECTORS / f"attention_{file}.npz")
    q, desc, out = (z[("chunk_" if chunks else "") + key] for key in ("q", "desc", "out"))
    pools = z["kpool"], z["vpool"], z["tables"]
    return AttentionCase(name, q, *pools, desc, int(z["layer"]), int(z["Hkv"]), out)


def case_names() -> list[str]:
    """Every attention vector file, and the chunked prefill that one of them holds."""
    files = sorted(p.stem.removeprefix("attention_") for p in VECTORS.glob("attention_*.npz"))
    return [*files, *(f"{f}:chunks" for f in files if "chunk_q" in np.load(VECTORS / f"attention_{f}.npz"))]
