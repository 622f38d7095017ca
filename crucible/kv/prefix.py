"""Pages in service: one writer each, or full and shared by content; counted, copied on write, evicted by age.

A page is free, private (one holder, who may write it), shared (full, immutable, held by any number of
holders) or cached (shared and held by nobody: it waits for a hit or for its eviction). Shared pages form a
tree: a node is the tokens of one page below the node of the page before it, so equal nodes mean equal
tokens from position 0 on, compared as tokens and not by a hash that could collide.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from crucible.errors import InputError
from crucible.kv.pool import PoolExhausted
from crucible.numerics.checks import whole, whole_array
from crucible.numerics.contract import PAGE_SIZE

_SIBLINGS = 64  # children of a node that the search for a partly equal page looks at


@dataclass(eq=False, slots=True)
class Node:
    """A full page in the tree; `refs` counts its holders, `siblings` is where it is found by its tokens."""

    parent: "Node | None"
    siblings: dict[tuple[int, ...], "Node"] = field(repr=False)
    tokens: tuple[int, ...]
    page: int
    refs: int = 1
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Match:
    """What the cache holds of a text: whole pages, then the first `tail_rows` rows of one more page.

    The tail's page goes on differently, so a holder gets a copy of it and never the page itself.
    """

    nodes: tuple[Node, ...] = ()
    tail: Node | None = None
    tail_rows: int = 0

    @property
    def rows(self) -> int:
        """Positions from 0 on whose K and V are there."""
        return len(self.nodes) * PAGE_SIZE + self.tail_rows

    @property
    def live(self) -> int:
        """Whole pages that somebody holds: taking them costs no page."""
        return sum(node.refs > 0 for node in self.nodes)


NO_MATCH = Match()


@dataclass(slots=True)
class _Holding:
    nodes: list[Node] = field(default_factory=list)  # the first pages, shared
    private: list[int] = field(default_factory=list)  # the pages after them
    pinned: Node | None = None  # source of a copy that is yet to be made


class PrefixPool:
    """Pages 0..num_pages-1 with holders, sharing by content and least-recently-used eviction.

    `order` is the order in which free pages are handed out. With share=False nothing is ever shared or
    cached. The `namespace` of `match` and `commit` is all that decides a page's bits beside its tokens
    (model digest, contract version): pages of different namespaces never meet.
    """

    def __init__(self, num_pages: int, order: Sequence[int] | None = None, share: bool = True):
        num_pages = whole("num_pages", num_pages, 1)
        order = list(range(num_pages)) if order is None else whole_array("order", order).tolist()
        if sorted(order) != list(range(num_pages)):
            raise InputError(f"order of {len(order)} pages must be a permutation of 0..{num_pages - 1}")
        self.num_pages, self.share = num_pages, share
        self._free = order[::-1]  # handed out from the end
        self._roots: dict[Hashable, dict[tuple[int, ...], Node]] = {}
        self._cached: OrderedDict[Node, None] = OrderedDict()  # refs 0, the next to be evicted first
        self._held: dict[Hashable, _Holding] = {}
        self.hits = self.saved_rows = self.copies = self.evictions = self.adopted = 0

    @property
    def free(self) -> int:
        """Pages that hold nothing of use."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that nobody holds but a later request may hit."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Pages that can be allocated now: free ones, and cached ones by eviction."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.num_pages - self.available

    def match(self, tokens: Sequence[int], namespace: Hashable) -> Match:
        """What is there of `tokens`, all but the last (whose logits must be computed); changes nothing."""
        last = len(tokens) - 1
        if not self.share or last < 1:
            return NO_MATCH
        nodes: list[Node] = []
        children, at = self._roots.get(namespace, {}), 0
        while at + PAGE_SIZE <= last:
            node = children.get(tuple(tokens[at : at + PAGE_SIZE]))
            if node is None:
                break
            nodes.append(node)
            children, at = node.children, at + PAGE_SIZE
        tail, rows = None, 0
        rest = tokens[at : min(at + PAGE_SIZE, last)]
        for index, node in enumerate(children.values()):
            if index == _SIBLINGS or rows == len(rest):
                break
            if node.tokens[: rows + 1] == tuple(rest[: rows + 1]):
                same = rows + 1
                while same < len(rest) and node.tokens[same] == rest[same]:
                    same += 1
                tail, rows = node, same
        return Match(tuple(nodes), tail, rows) if nodes or tail else NO_MATCH

    def take(self, holder: Hashable, match: Match, tail: bool = True) -> None:
        """Make `holder` hold the whole pages of a match that is up to date.

        With `tail` the tail's page stays until `unpin`, so that it can be copied. Take for every new
        holder before allocating for any: an allocation may evict what a match found.
        """
        if holder is None or holder in self._held:
            raise InputError(f"holder {holder!r} holds pages already; release them first")
        holding = self._held[holder] = _Holding()
        for node in match.nodes:
            self._acquire(node)
            holding.nodes.append(node)
        if tail and match.tail is not None:
            self._acquire(match.tail)
            holding.pinned = match.tail
        rows = match.rows if tail else match.rows - match.tail_rows
        if rows:
            self.hits += 1
            self.saved_rows += rows
            self.copies += holding.pinned is not None

    def unpin(self, holder: Hashable) -> None:
        """The tail of `holder`'s match has been copied: let its page go."""
        holding = self._holding(holder)
        if holding.pinned is not None:
            self._drop(holding.pinned)
            holding.pinned = None

    def allocate(self, n: int, holder: Hashable) -> list[int]:
        """Give `holder` n more private pages, evicting cached ones where too few are free; all or none."""
        if n > self.available or n < 0:
            raise PoolExhausted(f"{n} pages asked for, {self.available} of {self.num_pages} to be had")
        if holder not in self._held:
            self._held[holder] = _Holding()
        while len(self._free) < n:
            self._evict()
        pages = [self._free.pop() for _ in range(n)]
        self._held[holder].private.extend(pages)
        return pages

    def commit(self, holder: Hashable, tokens: Sequence[int], stored: int, namespace: Hashable) -> bool:
        """Share the pages of `holder` that its first `stored` tokens fill; True if its pages changed.

        A page whose content is in the tree already is given back and the other one held in its place:
        by contract they have the same bits.
        """
        holding = self._holding(holder)
        if not self.share:
            return False
        changed = False
        full = stored // PAGE_SIZE
        while holding.private and len(holding.nodes) < full:
            at = len(holding.nodes) * PAGE_SIZE
            parent = holding.nodes[-1] if holding.nodes else None
            children = self._roots.setdefault(namespace, {}) if parent is None else parent.children
            block = tuple(tokens[at : at + PAGE_SIZE])
            page = holding.private.pop(0)
            node = children.get(block)
            if node is None:
                node = children[block] = Node(parent, children, block, page)
            else:
                self._acquire(node)
                self._free.append(page)
                self.adopted += 1
                changed = True
            holding.nodes.append(node)
        return changed

    def release(self, holder: Hashable) -> int:
        """Take back all that `holder` holds; its shared pages stay cached. Returns its page count."""
        holding = self._holding(holder)
        del self._held[holder]
        if holding.pinned is not None:
            self._drop(holding.pinned)
        # The deepest first: a node always leaves before its parent, so eviction meets leaves only.
        for node in reversed(holding.nodes):
            self._drop(node)
        self._free.extend(reversed(holding.private))
        return len(holding.nodes) + len(holding.private)

    def pages_of(self, holder: Hashable) -> list[int]:
        """The pages of `holder` in logical order (empty if it holds none)."""
        holding = self._held.get(holder)
        return [] if holding is None else [*(node.page for node in holding.nodes), *holding.private]

    def shared_of(self, holder: Hashable) -> int:
        """How many of `holder`'s pages, from the first on, are shared and must not be written."""
        holding = self._held.get(holder)
        return 0 if holding is None else len(holding.nodes)

    def exclusive(self, holder: Hashable) -> int:
        """Pages that would become available if `holder` alone released."""
        holding = self._holding(holder)
        return len(holding.private) + sum(node.refs == 1 for node in holding.nodes)

    def clear(self) -> int:
        """Evict everything that nobody holds; returns how many pages."""
        count = len(self._cached)
        while self._cached:
            self._evict()
        return count

    def check(self) -> None:
        """Prove conservation and the state of every page; AssertionError names the first breach."""
        nodes: list[Node] = []
        level = [node for roots in self._roots.values() for node in roots.values()]
        while level:
            nodes += level
            level = [child for node in level for child in node.children.values()]
        private = [page for held in self._held.values() for page in held.private]
        everything = sorted([*self._free, *private, *(node.page for node in nodes)])
        assert everything == list(range(self.num_pages)), "pages were lost, invented or have two states"
        counts = dict.fromkeys(nodes, 0)
        for holder, held in self._held.items():
            above = None
            for node in held.nodes:
                assert node in counts, f"holder {holder!r} holds page {node.page}, which was evicted"
                assert node.parent is above, f"the pages of holder {holder!r} are no path of the tree"
                counts[node] += 1
                above = node
            if held.pinned is not None:
                counts[held.pinned] += 1
        for node, count in counts.items():
            assert node.refs == count, f"page {node.page} counts {node.refs} holders and has {count}"
            assert (node in self._cached) == (count == 0), f"page {node.page} is cached and held, or neither"
            assert len(node.tokens) == PAGE_SIZE, f"page {node.page} is shared and not full"

    def _holding(self, holder: Hashable) -> _Holding:
        if holder not in self._held:
            raise InputError(f"holder {holder!r} holds no pages; it released them or never had any")
        return self._held[holder]

    def _acquire(self, node: Node) -> None:
        if node.refs == 0:
            del self._cached[node]
        node.refs += 1

    def _drop(self, node: Node) -> None:
        node.refs -= 1
        if node.refs == 0:
            self._cached[node] = None

    def _evict(self) -> None:
        node, _ = self._cached.popitem(last=False)
        assert not node.children, f"page {node.page} is evicted before the pages that follow it"
        del node.siblings[node.tokens]
        self._free.append(node.page)
        self.evictions += 1
