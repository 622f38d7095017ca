"""A packed call on the host, and what it left: its place in memory, its times, how it ran."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible.attention.run import Launch
from crucible.model.graphs import Captured


@dataclass(frozen=True)
class Timing:
    """Host seconds of one call: checking and packing, enqueueing the one copy, enqueueing the launches.

    `path` says how it ran: eager, captured (eager kernels recorded first, then launched as a graph) or
    graph; `upload_bytes` went to the device in `uploads` copies.
    """

    prepare_seconds: float
    upload_seconds: float
    launch_seconds: float
    upload_bytes: int
    uploads: int
    path: str


@dataclass(frozen=True)
class Ran:
    """What a call left on the device: logits f32 [R][V], and the results of sampling where it was asked for.

    Valid until the next call, but for logits that are `owned`. `entry` is the capture that ran or was made.
    """

    logits: Any
    results: Any
    launches: frozenset[Launch]
    timing: Timing | None = None
    owned: bool = False
    entry: Captured | None = None


@dataclass(frozen=True)
class Step:
    """A checked call on the host: ids, positions [T], descriptors [S][4], rows [R] or None for all.

    `sampling` holds the fields of a SampleBatch [R] where tokens are wanted; `advance` leaves the inputs of
    the next decode step in the block; `started` is when the call began.
    """

    ids: np.ndarray
    positions: np.ndarray
    desc: np.ndarray
    rows: np.ndarray | None
    sampling: Mapping[str, np.ndarray] | None = None
    advance: bool = False
    started: float | None = None

    @property
    def wanted(self) -> int:
        return self.ids.size if self.rows is None else self.rows.size
