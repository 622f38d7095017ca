"""Decode steps that start before the last one's tokens are read: the host's work hides behind the device's.

While the host reads the tokens of a step, the device runs the next one for the same rows. If meanwhile a
request ends or leaves, its row of that step is dropped; the others' rows are right whoever was beside them,
which is what the arithmetic contract promises.
"""

from collections.abc import Sequence
from typing import NamedTuple

from crucible.errors import InputError
from crucible.model.cache import KVCache
from crucible.model.decoding import Decoding
from crucible.model.transformer import Transformer
from crucible.sampling.params import SamplingParams
from crucible.sampling.sample import Sample

NO_SLOT = -1  # of a row under way whose request has left


class Row(NamedTuple):
    """A decode row: its request's table row, the position it feeds, its token, draw number and sampling."""

    slot: int
    position: int
    token: int
    draw: int
    params: SamplingParams


class Ahead:
    """Runs decode steps of one transformer over one cache, one step ahead where it can.

    A step ahead writes positions that its requests have pages for, and nothing that is shared: full pages
    are shared when their last position is known to be stored.
    """

    def __init__(self, transformer: Transformer, cache: KVCache, variant: str | None):
        self._transformer, self._cache, self._variant = transformer, cache, variant
        self._decoding: Decoding | None = None
        self._rows: tuple[Row, ...] = ()  # those of the oldest step under way, or of the last one collected
        self.narrowed = self.dropped = 0  # steps ahead of which some rows, or none, were of use

    def covers(self, rows: Sequence[Row]) -> bool:
        """Whether the step under way runs these rows (and perhaps more)."""
        if self._decoding is None or not self._decoding.pending:
            return False
        if len(rows) == len(self._rows):
            return tuple(rows) == self._rows
        under_way = {row.slot: row for row in self._rows}
        return all(row == under_way.get(row.slot) for row in rows)

    def run(self, rows: Sequence[Row], go_on: bool = True) -> list[Sample]:
        """The tokens of a step of these rows; with `go_on` the next one is under way afterwards if it can be.

        InputError for logits outside the contract: then nothing is under way, and which row it was is
        not said.
        """
        rows = tuple(rows)
        same = rows == self._rows
        try:
            if not self.covers(rows):
                self._start(rows)
            elif not same:
                return self._collect_some(rows)
            decoding = self._decoding
            if go_on and decoding.pending < 2 and decoding.runs_ahead:
                decoding.enqueue()
            samples = decoding.collect()
        except InputError:
            self.drain()
            raise
        self._advance(samples)
        return samples

    def leave(self, slot: int) -> None:
        """The request of this table row is gone: a row under way for it is nobody's.

        Another request in the same table row may feed the same token at the same position with the same draw.
        """
        self._rows = tuple(row._replace(slot=NO_SLOT) if row.slot == slot else row for row in self._rows)

    def drain(self) -> None:
        """Wait for what is under way and forget it."""
        decoding, self._decoding, self._rows = self._decoding, None, ()
        while decoding is not None and decoding.pending:
            self.dropped += 1
            try:
                decoding.collect()
            except InputError:  # of a step that nobody asked for: its rows run again, and show it then
                continue

    def _start(self, rows: tuple[Row, ...]) -> None:
        """Begin a step with what the host knows, anew unless the same requests go on."""
        if self._decoding is None or self._decoding.pending or rows != self._rows:
            self.drain()
            slots, positions, tokens, draws, params = zip(*rows, strict=True)
            for slot, position in zip(slots, positions, strict=True):
                if self._cache.stored[slot] < position:
                    raise RuntimeError(
                        f"position {position} of table row {slot} does not follow what is stored"
                    )
                self._cache.stored[slot] = position  # a step ahead that was dropped may have stored one more
            self._decoding = Decoding(
                self._transformer, self._cache, slots, tokens, params, draws, variant=self._variant
            )
            self._rows = rows
        self._decoding.enqueue()

    def _collect_some(self, rows: tuple[Row, ...]) -> list[Sample]:
        """The tokens of some rows of the step under way; the next step begins anew."""
        self.narrowed += 1
        by_slot = zip((row.slot for row in self._rows), self._decoding.collect(), strict=True)
        chosen = dict(by_slot)
        assert not self._decoding.pending
        self._decoding, self._rows = None, ()
        return [chosen[row.slot] for row in rows]

    def _advance(self, samples: Sequence[Sample]) -> None:
        pairs = zip(self._rows, samples, strict=True)
        self._rows = tuple(Row(r.slot, r.position + 1, s.token, r.draw + 1, r.params) for r, s in pairs)
