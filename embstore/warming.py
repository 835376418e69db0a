"""Warming: the rows that will be asked for most come to the cache before they are asked for.

Rows are chosen by their profiled counts over all tables of a pool, for a share of its slots, and
brought in piece by piece, so that calls get on in between. The most frequent come last: under LRU
they leave last then. Under LFU they start with the counts that they would have by now.

At opening this goes on in a thread of its own, as does what is missing of the hot set; where
somebody asks for it, it is done in their thread. Which rows are warm changes no bit of any.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.cache.pool import Pool
from embstore.engine import Engine
from embstore.errors import (
    CorruptTableError,
    EmbstoreError,
    InvalidArgumentError,
    StoreClosedError,
)
from embstore.frequency.accesses import within
from embstore.frequency.profile import Counts
from embstore.hotpins import PIECE_ROWS, HotPins, turn
from embstore.popularity import lfu_counts

Progress = Callable[[int, int], None]
"""Is told how many rows have been done, and of how many."""


@dataclass(frozen=True)
class _Chosen:
    """The rows of one pool that are to be warm, the least frequent first."""

    pool: Pool
    keys: Keys  # (n,) row keys
    counts: Counts  # (n,) in the profile
    accesses: int


class Warming:
    """Brings rows in. Any thread."""

    def __init__(self, engine: Engine, hot_pins: HotPins) -> None:
        self._engine = engine
        self._hot_pins = hot_pins
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._warming = threading.Lock()
        self._done = self._wanted = 0
        self._is_running = False
        self._starting = threading.Lock()
        self._is_asked = False  # to pin what is wanted, once more
        hot_pins.lost = self._pin_again

    def start(self, share: float) -> None:
        """Warm in the background, and pin what is wanted; nothing to do, no thread."""
        if share or not self._hot_pins.is_complete:
            with self._starting:
                self._start(share)

    def _pin_again(self) -> None:
        with self._starting:
            if self._is_asked or self._stopping.is_set():
                return
            self._start(0.0)

    def _start(self, share: float) -> None:
        before, self._is_asked = self._thread, True
        self._thread = threading.Thread(
            target=self._run, args=(share, before), name="warming", daemon=True
        )
        self._thread.start()

    def _run(self, share: float, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        with self._starting:
            self._is_asked = False
        self._hot_pins.pin_wanted()
        if share:
            with suppress(EmbstoreError):  # whoever asks for the rows is told
                self._warm(share, None, at_all_costs=False)

    def warm(self, share: float, progress: Progress | None) -> int:
        """Bring the most frequent rows in, for a share of the slots; return how many they are.

        Raises
        ------
        InvalidArgumentError : the share is not in (0, 1].
        CapacityError, CorruptTableError : some rows are warm.
        """
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise InvalidArgumentError(
                f"expected share to be above 0 and at most 1, found {share!r}"
            )
        return self._warm(float(share), progress, at_all_costs=True)

    def _warm(self, share: float, progress: Progress | None, *, at_all_costs: bool) -> int:
        with turn(self._warming, self._engine):
            self._is_running = True
            try:
                return self._bring_all(share, progress, at_all_costs)
            finally:
                self._is_running = False

    def _bring_all(self, share: float, progress: Progress | None, at_all_costs: bool) -> int:
        chosen = list(self._chosen(share))
        self._done, self._wanted = 0, sum(len(one.keys) for one in chosen)
        for one in chosen:
            for low in range(0, len(one.keys), PIECE_ROWS):
                piece = slice(low, low + PIECE_ROWS)
                try:
                    self._done += self._bring(one, piece)
                except CorruptTableError:
                    if at_all_costs:
                        raise
                if progress is not None:
                    progress(self._done, self._wanted)
        return self._done

    def _chosen(self, share: float) -> Iterator[_Chosen]:
        with self._engine.reading():
            pools = {
                id(pool): (
                    pool,
                    [t.table_id for t in self._engine.tables.values() if t.pool is pool],
                )
                for pool in self._engine.pools.values()
            }
        for pool, ids in pools.values():
            parts = [part for table_id in ids if (part := self._profiled(table_id)) is not None]
            if parts:
                yield self._most_frequent(pool, share, parts)

    def _profiled(self, table_id: int) -> tuple[Keys, NDArray[np.float64]] | None:
        """Return the row keys of a table that have a profile, and about how many accesses each."""
        kept = self._engine.frequencies.kept.profile("imported", table_id)
        if kept is None or not len(kept[0].keys):
            return None
        table, rate = kept
        with self._engine.reading():
            if table_id not in self._engine.tables:
                return None
            table = within(table, self._engine.tables[table_id].rows)
        return table_id << KEY_BITS | table.keys, table.counts / rate

    def _most_frequent(
        self, pool: Pool, share: float, parts: list[tuple[Keys, NDArray[np.float64]]]
    ) -> _Chosen:
        keys = np.concatenate([part[0] for part in parts])
        counts = np.concatenate([part[1] for part in parts])
        while share * pool.slot_count < len(keys):
            with self._engine.background():
                if not pool.grow():
                    break
        room = int(share * min(pool.slot_count, pool.pinned_max))
        accesses = int(counts.sum())
        if not room:
            keys, counts = keys[:0], counts[:0]
        elif room < len(keys):
            top = np.argpartition(counts, len(counts) - room)[len(counts) - room :]
            keys, counts = keys[top], counts[top]
        order = np.argsort(counts, kind="stable")
        return _Chosen(pool, keys[order], counts[order].astype(np.int64), accesses)

    def _bring(self, one: _Chosen, piece: slice) -> int:
        pool, keys, counts = one.pool, one.keys[piece], one.counts[piece]
        with self._engine.background():
            if self._stopping.is_set():
                raise StoreClosedError("the store was closed while the cache was warmed")
            ids = [table_id for table_id in pool.tables if table_id in self._engine.tables]
            here = np.isin(keys >> KEY_BITS, ids)  # a table may have been dropped meanwhile
            room = pool.part_keys(int(np.count_nonzero(here))) if here.any() else 0
            keys, counts = keys[here][:room], counts[here][:room]
            if room:
                slots = pool.hold(pool.device.upload(keys))
                pool.policy.seed(slots, lfu_counts(counts, one.accesses, pool))
        return len(keys)

    def facts(self) -> dict[str, Any]:
        """Return how far the last warm-up is."""
        return {"rows": self._done, "of": self._wanted, "running": self._is_running}

    def stop(self) -> None:
        """Have what runs end soon, and nothing begin."""
        self._stopping.set()
        self._hot_pins.lost = _nothing  # no circle keeps what is closed

    def join(self) -> None:
        """Wait for its end. Not with the engine."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _nothing() -> None:
    """Pin nothing again: the store is closed."""
