# ruff: noqa: RUF009 - the calls declare fields
"""The stats of an open store as one document: `Store.stats()`. A call that has the engine makes the
document.

REST returns the same document, together with the server's own stats; metrics and `embstore stats`
are made from this document. One pass over the slots of each level of a pool counts the resident and
dirty rows of all tables in the pool: a pass per table would stall training at every request.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embstore.cache.counters import Counters
from embstore.device.facts import DeviceFacts
from embstore.engine.upkeep_stats import (
    BackupStats,
    CommitStats,
    ReplicationStats,
    ScanStats,
    ScrubStats,
    ShardStats,
)
from embstore.hotness.stats import FrequencyStats
from embstore.lookahead.stats import SessionsStats
from embstore.stages import StageStats
from embstore.stats import (
    counter,
    document,
    flag,
    gauge,
    info,
    inline,
    label,
    part,
    ratio,
    share,
    text,
)
from embstore.storage.stats import StorageStats

if TYPE_CHECKING:
    from embstore.cache.pool import Pool
    from embstore.cache.slots import PoolSlots
    from embstore.engine.engine import Engine
    from embstore.tables.state import TableState
    from embstore.tables.tables import Tables


class CountedLevel(NamedTuple):
    """The numbers of resident and dirty rows of one level of a pool, by table id."""

    resident: dict[int, int]
    dirty: dict[int, int]


class CountedPool(NamedTuple):
    """A pool, with the counted rows of its level one and its level two."""

    pool: "Pool"
    levels: tuple[CountedLevel, CountedLevel]

    @classmethod
    def of(cls, pool: "Pool") -> "CountedPool":
        """Count the rows of a pool."""
        host = CountedLevel({}, {}) if pool.level_two is None else _rows_of(pool.level_two.slots)
        return cls(pool, (_rows_of(pool.slots), host))

    @property
    def host(self) -> "PoolSlots | None":
        """The slots of level two; None: the pool has no level two."""
        return self.pool.level_two.slots if self.pool.level_two else None

    @property
    def resident(self) -> tuple[int, int]:
        """Numbers of resident rows: of both levels together, and of level two alone."""
        two = self.host.resident_count if self.host else 0
        return self.pool.slots.resident_count + two, two

    @property
    def dirty(self) -> tuple[int, int]:
        """Numbers of dirty rows: of both levels together, and of level two alone."""
        one, two = (sum(level.dirty.values()) for level in self.levels)
        return one + two, two


class CountedTable(NamedTuple):
    """A table, and the counted rows of its pool."""

    state: "TableState"
    levels: tuple[CountedLevel, CountedLevel]

    @property
    def resident(self) -> tuple[int, int]:
        """Numbers of resident rows: of both levels together, and of level two alone."""
        one, two = (level.resident.get(self.state.table_id, 0) for level in self.levels)
        return one + two, two

    @property
    def dirty(self) -> tuple[int, int]:
        """Numbers of dirty rows: of both levels together, and of level two alone."""
        one, two = (level.dirty.get(self.state.table_id, 0) for level in self.levels)
        return one + two, two

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the cache."""
        return self.state.pool.layout.row_bytes

    @property
    def missed_rows(self) -> int:
        """Number of rows that lookups have read into the cache."""
        return self.state.pool.residency.missed_rows[self.state.number]


@dataclass
class TableStats:
    """The stats of one table."""

    rows: int = gauge("Number of rows: 0 <= key < rows.", lambda t: t.state.rows)
    dim: int = gauge("Elements of a row's weights.", lambda t: t.state.dim)
    optimizer: str = text("Kind of optimizer.", lambda t: t.state.config.optimizer.kind)
    learning_rate: float = gauge(
        "Used by updates that do not give one.", lambda t: t.state.learning_rate
    )
    t: int = gauge("Updates applied (t); a restore sets it back.", lambda t: t.state.t)
    hit_rate: float | None = ratio(
        "Keys of lookups for which no row was brought in.",
        lambda t: share(max(t.state.lookup_keys - t.missed_rows, 0), t.state.lookup_keys),
    )
    lookup_keys: int = counter(
        "Keys of lookups, repeated ones each time; of steps each once.",
        lambda t: t.state.lookup_keys,
    )
    missed_rows: int = counter("Rows that lookups have brought in.")
    skipped_updates: int = counter(
        "Updates skipped because a gradient, or its square, was not finite.",
        lambda t: t.state.skipped_updates,
    )
    resident_rows: int = gauge(
        "Rows of the table in the cache, both levels.", lambda t: t.resident[0]
    )
    host_rows: int = gauge("Those in level two, on the host.", lambda t: t.resident[1])
    dirty_rows: int = gauge(
        "Cached rows that are newer than on the disk, both levels.", lambda t: t.dirty[0]
    )
    host_dirty_rows: int = gauge("Those in level two, on the host.", lambda t: t.dirty[1])
    row_bytes: int = gauge("Size of a row, weights and state.")
    resident_bytes: int = gauge("Size of the resident rows.", lambda t: t.resident[0] * t.row_bytes)


@dataclass
class PoolStats:
    """The rows of all tables of one layout, which share slots. Counts begin when the pool is
    made."""

    dim: int = label("Elements of a row's weights.", lambda p: p.pool.layout.dim)
    optimizer: str = label("Kind of optimizer.", lambda p: p.pool.layout.optimizer)
    slots: int = gauge("Rows that level one has room for.", lambda p: p.pool.slots.count)
    host_slots: int = gauge(
        "Rows that level two, on the host, has room for.",
        lambda p: p.host.count if p.host else 0,
    )
    resident_rows: int = gauge("Rows in the pool, both levels.", lambda p: p.resident[0])
    host_rows: int = gauge("Those in level two, on the host.", lambda p: p.resident[1])
    dirty_rows: int = gauge(
        "Cached rows that are newer than on the disk, both levels.", lambda p: p.dirty[0]
    )
    host_dirty_rows: int = gauge("Those in level two, on the host.", lambda p: p.dirty[1])
    memory_bytes: int = gauge("Memory of rows and index.", lambda p: p.pool.slots.memory_bytes)
    occupancy: float | None = ratio(
        "Slots of level one with a row.",
        lambda p: share(p.pool.slots.resident_count, p.pool.slots.count),
    )
    counters: Counters = inline(lambda p: p.pool.counters)


@dataclass
class SplitStats:
    """One pool's part of the cache, according to the last decision. The decision is based on
    estimates of the misses of lookups.

    Values are 0 if there was no decision since the last change of the pools or of the cache's size.
    """

    dim: int = label("Elements of a row's weights.", lambda p: p.pool.layout.dim)
    optimizer: str = label("Kind of optimizer.", lambda p: p.pool.layout.optimizer)
    memory_bytes: int = gauge("Memory that the pool takes.", lambda p: p.pool.slots.memory_bytes)
    bytes_before: int = gauge(
        "Memory of the pool before the change.", lambda p: p.split.bytes_before
    )
    bytes_aimed: int = gauge("Memory of the pool after the change.", lambda p: p.split.bytes_aimed)
    miss_rate_before: float = gauge(
        "Expected share of misses with the memory before the change.",
        lambda p: p.split.miss_rate_before,
    )
    miss_rate_aimed: float = gauge(
        "Expected share of misses with the memory after the change.",
        lambda p: p.split.miss_rate_aimed,
    )


@dataclass
class SplittingStats:
    """The division of the cache between pools."""

    how: str = text(
        "How memory is divided: by expected misses (measured), or in the order of demand (demand)."
    )
    decisions: int = counter("Changes of the split.")
    moved_bytes: int = counter("Bytes that pools have released for others.")
    refused: int = counter("Moves for which the log had no room.")
    pools: list[SplitStats] = part(
        "By layout of rows.", lambda s: s.splits, metric="cache_split_pool"
    )


@dataclass
class CacheStats:
    """The whole cache."""

    budget_bytes: int = gauge("Memory that the cache may take.", lambda t: t.arena.budget_bytes)
    memory_bytes: int = gauge("Memory that the cache takes.", lambda t: t.arena.memory_bytes)
    staging_bytes: int = gauge(
        "Memory of it that all pools share for rows on their way.", lambda t: t.arena.staging_bytes
    )
    host_budget_bytes: int = gauge(
        "Pinned memory of the host that level two of a GPU's cache may take; 0: there is none.",
        lambda t: t.host_cache.budget_bytes,
    )
    host_budget_reason: str = text("Why level two may take as much.", lambda t: t.host_cache.reason)
    host_memory_bytes: int = gauge(
        "Memory of the host that level two takes.",
        lambda t: t.host_arena.memory_bytes if t.host_arena else 0,
    )
    access_hit_rate: float | None = ratio(
        "Accesses that hit.", lambda t: share(_sum(t, "access_hits"), _sum(t, "accesses"))
    )
    unique_hit_rate: float | None = ratio(
        "Unique keys that hit.", lambda t: share(_sum(t, "unique_hits"), _sum(t, "unique_keys"))
    )
    host_hit_rate: float | None = ratio(
        "Rows missing in level one that level two had; none until a row went down.",
        lambda t: share(_sum(t, "misses_host"), _sum(t, "misses_below")),
    )
    pools: list[PoolStats] = part(
        "By layout of rows.", lambda t: map(CountedPool.of, t.pools.values()), metric="pool"
    )
    split: SplittingStats = part(
        "How the cache is split between pools.", lambda t: t.splitting, metric="cache_split"
    )


@dataclass
class CommandLogStats:
    """The command log, which contains the commands after the last commit."""

    durability: str = text(
        "What survives a crash: the last commit, all but the last moments, or every command.",
        lambda e: e.log.level if e.log else "checkpoint",
    )
    commands: int = counter(
        "Records appended: commands, and answers at commits.",
        lambda e: e.log.files.appended if e.log else 0,
    )
    waiting: int = gauge(
        "Records that are not on the disk yet.",
        lambda e: e.log.files.appended - e.log.files.durable if e.log else 0,
    )
    syncs: int = counter(
        "Syncs of the log; several records share one.", lambda e: e.log.files.syncs if e.log else 0
    )
    bytes: int = gauge("Size of the log.", lambda e: e.log.files.segments.bytes if e.log else 0)
    replay_s: float = gauge(
        "About the time that it would take to execute the log again after a crash.",
        lambda e: e.log.replay_s if e.log else 0.0,
    )
    replayed_commands: int = gauge(
        "Commands that were executed again when the store was opened.",
        lambda e: e.recovered_commands,
    )
    replayed_s: float = gauge("Time that took.", lambda e: e.recovered_s)


def _sum(tables: "Tables", name: str) -> int:
    return sum(getattr(pool.counters, name) for pool in tables.pools.values())


@dataclass
class StoreStats:
    """A store's state, and its counters since it was opened."""

    store_id: str = info(
        "Id of the directory, which never changes.",
        lambda e: e.storage.catalogue.store_id,
        metric="build",
    )
    epoch: int = gauge(
        "1 at first; grows with each restore, and with each crash that lost commands.",
        lambda e: e.storage.catalogue.epoch,
    )
    command: int = gauge(
        "Number of the last acknowledged mutating command.",
        lambda e: e.tables.frame.command_number,
    )
    device: str = info(
        "Where rows are cached and computed.", lambda e: e.device.name, metric="device"
    )
    policy: str = text("Which rows leave the cache first.", lambda e: e.tables.policy)
    read_only: bool = flag("Nothing can be written.", lambda e: e.storage.read_only)
    device_facts: DeviceFacts = part("The device.", lambda e: dict(e.device_facts), metric="device")
    tables: dict[str, TableStats] = part(
        "By name.", lambda e: _counted_tables(e.tables), metric="table", label="table"
    )
    cache: CacheStats = part("The whole cache.", lambda e: e.tables, metric="cache")
    storage: StorageStats = part("Log, base and merges.", metric="")
    command_log: CommandLogStats = part(
        "Commands that no commit has yet, where they are logged.",
        lambda e: e,
        metric="command_log",
    )
    commits: CommitStats = part("Commits that the store makes by itself.", metric="")
    backups: BackupStats = part("Backups.", metric="")
    scans: ScanStats = part("Scans of tables.", metric="")
    scrubber: ScrubStats = part("Files that are checked in the background.", metric="")
    replication: ReplicationStats = part(
        "What the store is among its copies.", metric="replication"
    )
    shard: ShardStats = part("Which shard of a cluster the store is.", metric="shard")
    stages: dict[str, StageStats] = part(
        "The work of calls.", lambda e: e.tables.stages.by_name, metric="stage", label="stage"
    )
    sessions: SessionsStats = part("Look-ahead sessions.", lambda e: e.sessions.stats(), metric="")
    frequency: FrequencyStats = part("Access frequencies.", lambda e: e, metric="")


def store_stats(engine: "Engine") -> dict[str, Any]:
    """Return the stats of a store; see `Store.stats`."""
    return document(StoreStats, engine)


def table_stats(table: "TableState") -> dict[str, Any]:
    """Return the stats of one table; see `Table.stats`."""
    return document(TableStats, CountedTable(table, CountedPool.of(table.pool).levels))


def _counted_tables(tables: "Tables") -> dict[str, CountedTable]:
    """Return all tables by name, with the counted rows of their pools."""
    levels = {id(pool): CountedPool.of(pool).levels for pool in tables.pools.values()}
    return {t.name: CountedTable(t, levels[id(t.pool)]) for t in tables.by_id.values()}


def _rows_of(slots: "PoolSlots") -> CountedLevel:
    """Return the number of resident rows, and the number of dirty rows, of each table id."""
    here = slots.contents()
    ids = slots.row_keys.table_ids(here.keys)  # -1 if the slot is free
    return CountedLevel(_counts_of(ids[ids >= 0]), _counts_of(ids[here.dirty]))


def _counts_of(ids: Any) -> dict[int, int]:
    if not len(ids):
        return {}
    lowest = int(ids.min())  # ids only grow, and the ids of a pool are often close together
    counts = np.bincount(ids - lowest)
    return {lowest + int(i): int(counts[i]) for i in np.flatnonzero(counts)}
