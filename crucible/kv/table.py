"""Page tables on the host: row i maps the positions of request i to physical pages."""

from collections.abc import Sequence

import numpy as np

from crucible.errors import InputError
from crucible.numerics.checks import whole

NO_PAGE = -1


class PageTables:
    """Tables of `max_requests` requests with room for `stride` pages each; unused entries hold NO_PAGE."""

    def __init__(self, max_requests: int, stride: int):
        if whole("max_requests", max_requests) < 1 or whole("stride", stride) < 1:
            raise InputError(f"page tables [{max_requests}][{stride}] need at least one request and one page")
        self.array = np.full((max_requests, stride), NO_PAGE, np.int32)

    def set(self, i: int, pages: Sequence[int]) -> None:
        """Make `pages` (in logical order) the whole table of request i."""
        row = self._row(i)
        self.check(i, len(pages))
        if any(page < 0 for page in pages):
            raise InputError(f"page {min(pages)} in the table of request {i} must be 0 or more")
        row[:] = NO_PAGE
        row[: len(pages)] = pages

    def check(self, i: int, pages: int) -> None:
        """InputError unless request i exists and its table has room for `pages` pages."""
        self._row(i)
        stride = self.array.shape[1]
        if pages > stride:
            raise InputError(f"{pages} pages exceed the {stride} of a page table; shorten the request")

    def clear(self, i: int) -> None:
        """Empty the table of request i."""
        self._row(i)[:] = NO_PAGE

    def _row(self, i: int) -> np.ndarray:
        if not 0 <= whole("request", i) < self.array.shape[0]:
            raise InputError(f"request {i} is outside the page tables 0..{self.array.shape[0] - 1}")
        return self.array[i]
