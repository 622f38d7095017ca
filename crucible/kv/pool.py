"""The pool of K/V pages: who owns which page, with conservation that can be checked at any time."""

from collections.abc import Hashable, Sequence

from crucible.errors import InputError, UnavailableError
from crucible.numerics.checks import whole, whole_array


class PoolExhausted(UnavailableError):
    """The pool has fewer free pages than were asked for; nothing was taken."""


PAGE_LIMIT = 1 << 31  # pages are int32 in a page table


class PagePool:
    """Pages 0..num_pages-1, each free or owned by exactly one owner.

    `order` is the order in which free pages are handed out at first (a permutation of all pages;
    ascending by default). A freed page is handed out again before untouched ones.
    """

    def __init__(self, num_pages: int, order: Sequence[int] | None = None):
        num_pages = whole("num_pages", num_pages, 1, PAGE_LIMIT - 1)
        order = list(range(num_pages)) if order is None else whole_array("order", order).tolist()
        if sorted(order) != list(range(num_pages)):
            raise InputError(f"order of {len(order)} pages must be a permutation of 0..{num_pages - 1}")
        self.num_pages = num_pages
        self._free = order[::-1]  # handed out from the end
        self._owner: dict[int, Hashable] = {}
        self._pages: dict[Hashable, list[int]] = {}

    @property
    def used(self) -> int:
        """Pages that have an owner."""
        return len(self._owner)

    @property
    def available(self) -> int:
        """Pages that can be allocated now."""
        return len(self._free)

    def allocate(self, n: int, owner: Hashable) -> list[int]:
        """Give `owner` n more pages and return them in logical order; all or none.

        Raises PoolExhausted when fewer than n are free.
        """
        if whole("number of pages", n) < 0:
            raise InputError(f"cannot allocate {n} pages; the count must be 0 or more")
        if owner is None or not isinstance(owner, Hashable):
            raise InputError(f"owner {owner!r} cannot own pages; pass the request's identity")
        if n > len(self._free):
            raise PoolExhausted(
                f"{n} pages asked for, {len(self._free)} of {self.num_pages} free; free a request first"
            )
        pages = [self._free.pop() for _ in range(n)]
        self._owner.update(dict.fromkeys(pages, owner))
        if pages:
            self._pages.setdefault(owner, []).extend(pages)
        return pages

    def free(self, owner: Hashable) -> int:
        """Take back every page of `owner`; returns how many. InputError if it owns none."""
        if owner not in self._pages:
            raise InputError(f"owner {owner!r} owns no pages; it was freed already or never allocated")
        pages = self._pages.pop(owner)
        for page in pages:
            del self._owner[page]
        self._free.extend(reversed(pages))
        return len(pages)

    def pages_of(self, owner: Hashable) -> list[int]:
        """The pages of `owner` in logical order (empty if it has none)."""
        return list(self._pages.get(owner, ()))

    def owner_of(self, page: int) -> Hashable | None:
        """The owner of `page`, or None while it is free."""
        if not 0 <= whole("page", page) < self.num_pages:
            raise InputError(f"page {page} is outside the pool 0..{self.num_pages - 1}")
        return self._owner.get(page)

    def check(self) -> None:
        """Prove conservation: every page is free or owned, once. AssertionError names the first breach."""
        owned = [page for pages in self._pages.values() for page in pages]
        everything = sorted(owned + self._free)
        assert everything == list(range(self.num_pages)), "pages were lost, invented or owned twice"
        for owner, pages in self._pages.items():
            assert pages, f"owner {owner!r} is listed without pages"
            for page in pages:
                assert self._owner.get(page) == owner, f"page {page} is not recorded as owned by {owner!r}"
        assert len(self._owner) == len(owned), "a free page is recorded as owned"
