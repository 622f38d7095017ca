"""What a tile of rows and heads shares: bytes of K and V counted, and variants run on one notebook case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crucible.attention.run import attention
from crucible.device import Device
from crucible.evidence import record
from crucible.evidence.statistics import bracket
from crucible.numerics.contract import PAGE_SIZE, WARP
from crucible.report.cases import Case

F32_BYTES = 4


@dataclass(frozen=True)
class Reads:
    """Bytes of K and V that one launch asks for, whatever a cache then saves.

    `reference`: every row and query head reads its own history. `tile`: a tile of adjacent rows and of
    the heads of one KV head reads the longest of its histories. `once`: every position of every KV head,
    one time, which is the least possible.
    """

    reference: int
    tile: int
    once: int


def reads(segments: Sequence[tuple[int, int]], rows: int, Hq: int, Hkv: int, D: int) -> Reads:
    """The bytes of one shape for tiles of `rows` rows; a segment is (positions before it p, its rows t).

    A row at position P reads P + 1 positions, so a segment's rows read t*p + t*(t+1)/2.
    """
    position = 2 * D * F32_BYTES  # K and V of one KV head
    every_row = sum(t * p + t * (t + 1) // 2 for p, t in segments)
    every_tile = sum(p + min(r + rows, t) for p, t in segments for r in range(0, t, rows))
    return Reads(
        Hq * every_row * position, Hkv * every_tile * position, Hkv * sum(map(sum, segments)) * position
    )


def run(case: Case, device: Device, variant: str) -> np.ndarray:
    """The case's attention by any variant -> f32 [T][Hq*D] on the host.

    Unlike Case.run it passes K and V of the packed rows, for the hybrid variants, and an output of NaN.
    """
    arrays = (case.q, case.kpool, case.vpool, case.tables, case.desc)
    own = {name: device.upload(_own(case, pool)) for name, pool in (("k", case.kpool), ("v", case.vpool))}
    out = device.upload(np.full(case.q.shape, np.nan, np.float32))
    geometry = (0, case.kv_heads, case.head_dim)
    uploaded = [device.upload(a) for a in arrays]
    return device.download(attention(device, *uploaded, *geometry, variant=variant, out=out, **own))


def _own(case: Case, pool: np.ndarray) -> np.ndarray:
    """K or V of the packed rows [T][Hkv*D], gathered from the pages."""
    request = np.repeat(case.desc[:, 3], case.desc[:, 1])
    pages = case.tables[request, case.positions // PAGE_SIZE]
    return np.ascontiguousarray(pool[pages, 0, case.positions % PAGE_SIZE])


def leaf_order(lanes: int = WARP) -> list[int]:
    """The order in which a thread takes the leaves of the tree: leaf n is lane n with its bits reversed."""
    bits = lanes.bit_length() - 1
    return [int(f"{n:0{bits}b}"[::-1], 2) for n in range(lanes)]


def counted_tree(p: np.ndarray) -> np.ndarray:
    """tree32 of p f32 [...][32] as one thread computes it: partial sums join as a binary counter carries."""
    partial = {}
    for n, lane in enumerate(leaf_order()):
        total, level = p[..., lane], 0
        while n >> level & 1:
            total, level = partial[level] + total, level + 1
        partial[level] = total
    return partial[WARP.bit_length() - 1]


CONTENDERS = ("reference", "exact-q4-k64", "auto", "torch SDPA efficient")


@dataclass(frozen=True)
class Measured:
    """Times of the benchmark's shapes, samples[shape][contender] in microseconds, and the GPU's name."""

    where: str
    samples: Mapping[str, Mapping[str, Sequence[float]]]


READ = "one read of K and V"  # at the copy bandwidth of the same run


def measured(path: Path, live: bool = False, rounds: int = 5, part: str = "attention") -> Measured | None:
    """Times of a part of `crucible bench attention --full`, from an evidence file or measured now.

    None without the file or the part. Decode rows get a contender READ.
    """
    if live:
        from crucible.bench import attention_full as bench

        one = bench.records(bench.run(rounds, only=(part,), flex=()))[0]
    else:
        records = record.load(path) if path.exists() else []
        one = next((r for r in records if r.kind == f"bench.{part}"), None)
    if one is None:
        return None
    found: dict[str, dict[str, Sequence[float]]] = {}
    for series in one.samples:
        shape, colon, name = series.name.partition(": ")
        if colon:
            found.setdefault(shape, {})[name] = series.values
    for shape, by in found.items():
        reads = one.facts.get(f"{shape}: auto, K/V reads")
        if reads:
            by[READ] = (bracket(by["auto"]).median / reads,)
    return Measured(_card(one.environment), _contenders(found))


def _contenders(found: Mapping[str, Mapping[str, Sequence[float]]]) -> dict:
    return {shape: {n: by[n] for n in (*CONTENDERS, READ) if n in by} for shape, by in found.items()}


def _card(environment) -> str:
    return environment.device_name.removeprefix("NVIDIA ") if environment else "an unnamed GPU"
