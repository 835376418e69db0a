"""Warming: loading the rows with the most expected lookups into the cache ahead of the lookups.

The rows with the highest counts in their profiles are chosen from all tables of a pool, as many
rows as a share of the pool's slots can hold. They are loaded piece by piece, so that other calls
can run in between. The most frequent rows are loaded last, so that under LRU they are evicted last.
Under LFU, the loaded rows start with the counts that lookups would have given them.

When a store is opened, warming runs on a thread of its own; when a caller requests warming, it runs
on the caller's thread. No bit of any row depends on which rows are warm.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.cache.pool import Pool
from embstore.commands import Progress
from embstore.errors import CorruptTableError, EmbstoreError, StoreClosedError
from embstore.hotness.accesses import within
from embstore.hotness.background import Background
from embstore.hotness.kept import KeptProfiles
from embstore.hotness.pins import PIECE_ROWS
from embstore.hotness.stats import WarmingStats
from embstore.profiles.profile import Counts
from embstore.results import Warmed
from embstore.tables.slices import Slices
from embstore.tables.tables import Tables


@dataclass(frozen=True)
class _Chosen:
    """The rows of one pool that are to be loaded, the least frequent first."""

    pool: Pool
    keys: Keys  # (n,) row keys
    counts: Counts  # (n,) accesses in the profile
    accesses: int


class Warming:
    """Loads the most frequent rows into the cache. Any thread."""

    def __init__(self, tables: Tables, kept: KeptProfiles) -> None:
        self._tables = tables
        self._kept = kept
        self._background = Background("warming")
        self._warming = threading.Lock()
        self.stats = WarmingStats()

    def start(self, share: float) -> None:
        """Load rows into a share of the slots, in the background."""

        def warm() -> None:
            with suppress(EmbstoreError):  # a later lookup of these rows raises the error
                self._warm(share, None, at_all_costs=False)

        if share:
            self._background.start(warm)

    def warm(self, share: float, progress: Progress | None) -> Warmed:
        """Load the most frequent rows, into a share of the slots.

        Raises
        ------
        CapacityError, CorruptTableError : a row cannot be loaded; the rows loaded before it stay.
        """
        stats = self._warm(share, progress, at_all_costs=True)
        return Warmed(stats.rows, stats.of, finished=True)

    def _warm(self, share: float, progress: Progress | None, *, at_all_costs: bool) -> WarmingStats:
        with Slices(self._tables.frame, progress).after_others(self._warming):
            stats = self.stats = WarmingStats(running=True)
            try:
                self._bring_all(stats, share, progress, at_all_costs=at_all_costs)
            except EmbstoreError as exc:
                stats.error = str(exc)
                raise
            finally:
                stats.running = False
            return stats

    def _bring_all(
        self, stats: WarmingStats, share: float, progress: Progress | None, *, at_all_costs: bool
    ) -> None:
        chosen = list(self._chosen(share))
        stats.of = sum(len(one.keys) for one in chosen)
        for one in chosen:
            for low in range(0, len(one.keys), PIECE_ROWS):
                piece = slice(low, low + PIECE_ROWS)
                try:
                    stats.rows += self._bring(one, piece)
                except CorruptTableError:
                    if at_all_costs:
                        raise
                if progress is not None:
                    progress(stats.rows, stats.of)

    def _chosen(self, share: float) -> Iterator[_Chosen]:
        with self._tables.reading():
            tables = self._tables.by_id.values()
            pools = [
                (pool, [t.table_id for t in tables if t.pool is pool])
                for pool in self._tables.pools.values()
            ]
        for pool, ids in pools:
            parts = [part for table_id in ids if (part := self._profiled(table_id)) is not None]
            if parts:
                yield self._most_frequent(pool, share, parts)

    def _profiled(self, table_id: int) -> tuple[Keys, NDArray[np.float64]] | None:
        """Return the row keys in a table's profile, and the estimated number of accesses of each
        row."""
        kept = self._kept.profile("imported", table_id)
        if kept is None or not len(kept[0].keys):
            return None
        table, rate = kept
        with self._tables.reading():
            if table_id not in self._tables.by_id:
                return None
            table = within(table, self._tables.by_id[table_id].rows)
            row_keys = self._tables.by_id[table_id].row_keys(table.keys)
        return row_keys, table.counts / rate

    def _most_frequent(
        self, pool: Pool, share: float, parts: list[tuple[Keys, NDArray[np.float64]]]
    ) -> _Chosen:
        keys = np.concatenate([part[0] for part in parts])
        counts = np.concatenate([part[1] for part in parts])
        while share * pool.slots.count < len(keys):
            with self._tables.background():
                if not pool.evictor.grow():
                    break
        room = int(share * min(pool.slots.count, pool.pins.most))
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
        with self._tables.background():
            if self._background.is_stopping:
                raise StoreClosedError("the store was closed while the cache was warmed")
            ids = [table_id for table_id in pool.tables if table_id in self._tables.by_id]
            here = np.isin(
                pool.row_keys.table_ids(keys), ids
            )  # a table may have been dropped meanwhile
            room = pool.residency.part_keys(int(np.count_nonzero(here))) if here.any() else 0
            keys, counts = keys[here][:room], counts[here][:room]
            if room:
                slots = pool.residency.make_resident(pool.device.memory.upload(keys))
                pool.scores.seed(slots, counts, one.accesses)
        return len(keys)

    def stop(self) -> None:
        """Ask the running work to end soon, and start no more work."""
        self._background.stop()

    def join_threads(self) -> None:
        """Wait for the background work. The caller must not have the engine."""
        self._background.join()
