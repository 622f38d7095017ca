"""Every CUDA kernel on small ragged shapes, each exact one held to the reference's bits.

`python -m crucible.gates.every_kernel` is what the sanitizers watch (crucible.gates.sanitizers). It prints
how many launches each kernel had, as JSON.
"""

import json
import re
from collections.abc import Iterator

from crucible import device as devices
from crucible.device.counted import Counted
from crucible.device.sources import kernels_dir
from crucible.gates.every_attention_kernel import attention_launches
from crucible.gates.every_int8_kernel import int8_launches
from crucible.gates.every_linear_kernel import linear_launches
from crucible.gates.every_small_kernel import block_launches, sampling_launches

_ENTRY = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)|[A-Z_]+)?\s*(\w+)\s*\(")


def entries() -> set[str]:
    """The names of all kernels in kernels/*.cu."""
    return {name for path in kernels_dir().glob("*.cu") for name in _ENTRY.findall(path.read_text())}


def launches(device) -> Iterator[str]:
    """Launch kernel after kernel on a device, yielding what ran; AssertionError if exact bits differ."""
    yield from attention_launches(device)
    yield from linear_launches(device)
    yield from int8_launches(device)
    yield from block_launches(device)
    yield from sampling_launches(device)


def main(name: str = "cuda") -> None:
    """Launch everything and print {"calls": …, "launches": {kernel: count}} as the last line."""
    device = Counted(devices.get(name))
    calls = sum(1 for _ in launches(device))
    print(json.dumps({"calls": calls, "launches": dict(sorted(device.launches.items()))}))


if __name__ == "__main__":
    main()
