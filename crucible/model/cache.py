"""The paged K/V cache of a model: device pools, page accounting and page tables (contract section 5)."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crucible.device import Device
from crucible.errors import InputError, UnavailableError
from crucible.kv.pool import PAGE_LIMIT, PagePool
from crucible.kv.table import NO_PAGE, PageTables
from crucible.model.config import ModelConfig
from crucible.numerics.checks import whole
from crucible.numerics.contract import PAGE_SIZE


def pages_for(positions: int) -> int:
    """Pages that hold `positions` positions."""
    return -(-positions // PAGE_SIZE)


def check_cache(cache) -> None:
    """InputError for anything that is no KVCache."""
    if not isinstance(cache, KVCache):
        raise InputError(f"cache is {type(cache).__name__}; pass one that the model's new_cache made")


@dataclass(eq=False)
class KVCache:
    """K and V pools [pages][layers][16][kv_dim] f32 on the device, with who owns which page.

    A request is a row of `tables`; `reserve` gives it pages, `release` takes them back. `owners`
    int32 [pages] says whose a page is (-1: free); `stored` [requests] how many positions from 0
    on hold K and V; `prepared` holds the forward passes recorded over these pools.
    """

    config: ModelConfig
    device: Device
    kpool: Any
    vpool: Any
    pages: PagePool
    tables: PageTables
    owners: np.ndarray
    stored: list[int]
    prepared: dict[tuple, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def create(
        cls,
        device: Device,
        config: ModelConfig,
        num_pages: int,
        max_requests: int = 1,
        page_seed: int | None = None,
    ) -> "KVCache":
        """A cache of `num_pages` pages.

        `page_seed` hands the pages out in a shuffled order and fills them with NaN first, so that
        a read of a slot that nobody wrote shows in the result.
        """
        num_pages = whole("num_pages", num_pages, 1, PAGE_LIMIT - 1)
        max_requests = whole("max_requests", max_requests, 1, PAGE_LIMIT - 1)
        if page_seed is not None:
            page_seed = whole("page_seed", page_seed, 0)
        shape = (num_pages, config.layers, PAGE_SIZE, config.kv_dim)
        try:
            pools = [device.empty(shape), device.empty(shape)]
            tables = PageTables(max_requests, min(num_pages, pages_for(config.context)))
        except (MemoryError, ValueError):  # NumPy's ValueError: more bytes than an address can count
            raise UnavailableError(
                f"a cache of {num_pages} pages for {max_requests} requests does not fit this machine's "
                "memory; ask for fewer"
            ) from None
        order = None
        if page_seed is not None:
            order = list(range(num_pages))
            random.Random(page_seed).shuffle(order)
            for pool in pools:
                pool.fill(np.nan)
        owners = np.full(num_pages, NO_PAGE, np.int32)
        return cls(
            config,
            device,
            *pools,
            PagePool(num_pages, order),
            tables,
            owners,
            [0] * max_requests,
        )

    def reserve(self, request: int, positions: int) -> list[int]:
        """Give table row `request` pages for `positions` positions in all, keeping those it has.

        Raises PoolExhausted when too few pages are free, InputError for more than the context.
        """
        if whole("positions", positions, 0) > self.config.context:
            raise InputError(f"{positions} positions do not fit the context of {self.config.context}")
        self.tables.check(request, pages_for(positions))  # before any page is taken
        more = pages_for(positions) - len(self.pages.pages_of(request))
        self.pages.allocate(max(more, 0), request)
        pages = self.pages.pages_of(request)
        self.tables.set(request, pages)
        self.owners[pages] = request
        return pages

    def release(self, request: int) -> None:
        """Take back every page of table row `request`."""
        self.tables.check(request, 0)
        self.owners[self.pages.pages_of(request)] = NO_PAGE
        self.pages.free(request)
        self.tables.clear(request)
        self.stored[request] = 0

    def check_history(self, desc: np.ndarray) -> None:
        """InputError if a row of a call would attend to a position that holds no K and V.

        desc int32 [S][4] within the tables. Slices of one request may continue each other in any order.
        """
        segments, stored = desc.tolist(), self.stored
        if all(start <= stored[request] for _, _, start, request in segments):
            return
        reach = {request: stored[request] for *_, request in segments}
        for i in sorted(range(len(segments)), key=lambda i: segments[i][2]):
            _, length, begin, request = segments[i]
            if begin > reach[request]:
                raise InputError(
                    f"segment {i} starts at position {begin} of request {request}, which has stored "
                    f"{reach[request]}; run the positions before it first"
                )
            reach[request] = max(reach[request], begin + length)

    def note(self, desc: np.ndarray) -> None:
        """Record that the positions of a call's descriptors hold K and V now."""
        for _, length, start, request in desc.tolist():
            self.stored[request] = max(self.stored[request], start + length)

    def note_each(self, requests: list[int], lengths: list[int]) -> None:
        """Record that `lengths` positions of the requests hold K and V now."""
        for request, length in zip(requests, lengths, strict=True):
            self.stored[request] = max(self.stored[request], length)

    def read(self, request: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """K and V of positions 0..length-1 in order, each f32 [layers][length][kv_dim] on the host.

        InputError for positions that the request has not stored.
        """
        self.tables.check(request, 0)
        if whole("length", length, 0) > self.stored[request]:
            raise InputError(
                f"length {length} is past the {self.stored[request]} positions of request {request}"
            )
        rows = self.device.upload(self.tables.array[request][: pages_for(length)])
        found = []
        for pool in (self.kpool, self.vpool):
            pages = self.device.download(pool[rows])  # [n][layers][16][kv_dim]
            logical = pages.swapaxes(0, 1).reshape(self.config.layers, -1, self.config.kv_dim)
            found.append(np.ascontiguousarray(logical[:, :length]))
        return found[0], found[1]
