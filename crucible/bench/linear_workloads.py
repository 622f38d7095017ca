"""The linear launches whose hardware counters are read (counters.py): the layers that take most of a pass."""

import functools
from collections.abc import Iterator, Sequence

from crucible.bench.counters import Workload
from crucible.bench.linear import SHAPES
from crucible.bench.linear_gpu import Bank, Buffers, Layer
from crucible.linear.apply import linear
from crucible.linear.weights import pack

LAYERS = ("qkv", "gate_up", "down")
ROWS = (16, 1024)


def workloads(
    model: str = "synthetic-12x768", layers: Sequence[str] = LAYERS, rows: Sequence[int] = ROWS
) -> Iterator[Workload]:
    """`mode layer, T rows`, and its launches: one for f32; for int8 the quantization of the rows too."""
    from crucible import device as devices

    device = devices.get("cuda")
    for shape in (s for s in SHAPES if s.model == model and s.layer in layers):
        bank = Bank(device, shape.n, shape.k, ("f32",))
        int8 = pack(device, device.upload(bank.host_w), "int8")
        for t in rows:
            layer, scratch = Layer(device, bank, t), Buffers(device)
            for mode, weight in (("f32", bank.weights["f32"][0]), ("int8", int8)):
                run = functools.partial(linear, device, layer.x, weight, layer.out, scratch)
                yield f"{mode} {shape.layer}, {t} rows", run
