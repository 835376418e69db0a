"""The run-time state of a table, and the share of a table that a command reads or writes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from embstore.arrays import Keys, outside
from embstore.cache.pool import Pool
from embstore.checks.call_bytes import keyed_bytes
from embstore.config import TableConfig
from embstore.device.values import Array, Batch, Counts, Gradients
from embstore.errors import InvalidArgumentError, TableHeldError
from embstore.results import TableEntry, ids_with
from embstore.tables.digest import TableDigest

if TYPE_CHECKING:
    from embstore.tables.frame import Frame
    from embstore.tables.sparse_digest import SparseDigest


@dataclass(eq=False)
class TableState:
    """A table of an open store. Engine thread only."""

    recorded: TableEntry
    """The table as the last commit recorded it; before a commit, as it was created or opened."""
    config: TableConfig
    pool: Pool
    frame: "Frame"
    digest: "TableDigest | SparseDigest" = field(init=False)
    sessions: set[str] = field(default_factory=set)
    """The names of the look-ahead sessions that are open on the table."""
    writer: str = ""
    """The session that is the only writer of the table; empty: every client can write to the
    table."""
    lookup_keys: int = 0
    """The number of keys of lookups with `admit`. Repeats count, except in look-ahead steps."""
    deletions: int = 0
    """The number of commands that have deleted rows of the table since the store was opened."""
    skipped_updates: int = 0
    """The number of updates that named the table and were skipped, because rule 9 refuses a
    gradient."""

    def __post_init__(self) -> None:
        self.table_id, self.t = self.recorded.table_id, self.recorded.t
        self.written, self.update_ids = self.recorded.written, self.recorded.update_ids
        self.learning_rate = self.recorded.learning_rate
        self.digest = _digest_of(self.config)
        self.name = self.config.name
        self.dim = self.config.dim
        self.identity_json = self.config.identity_json()
        self.keyed_bytes = keyed_bytes(self.dim)
        self.number = self.pool.row_keys.number(self.table_id)
        """The table's index in the arrays of its pool's kernels."""
        self.grow(self.recorded.rows)

    def grow(self, rows: int) -> None:
        """Grow to `rows` rows."""
        self.rows = rows
        self.limit = rows if rows < 1 << 63 else rows - (1 << 64)
        """The unsigned limit of keys, as the bits of an int64."""

    def wrote(self, add_t: int) -> None:
        """Record that the running command changes rows of the table, and adds `add_t` to t."""
        self.t += add_t
        if add_t and (update_id := self.frame.update_id):
            self.update_ids = ids_with(self.update_ids, update_id)
        self.written = self.frame.command_number + 1

    @contextmanager
    def moving_rows(self) -> Iterator[None]:
        """Run a write that moves rows between shards. For clients it changes no row, so `written`,
        the number of the last command that changed rows, stays the same."""
        written = self.written
        yield
        self.written = written

    @property
    def known_rows(self) -> int:
        """The number of rows of the table for profiles; 0: the table has sparse keys."""
        return 0 if self.config.is_sparse else self.rows

    def row_keys(self, keys: Keys) -> Keys:
        """Return the row keys of the table's keys."""
        return self.pool.row_keys.of(self.table_id, keys)

    def segment(self, keys: Keys | Array) -> tuple[int, int, Keys]:
        """Return the device's argument for keys of the table; see `DeviceKeys.unique`."""
        return self.number, self.limit, keys

    def entry(self) -> TableEntry:
        """Return the table's entry in a commit. As long as nothing changes, all calls return the
        same object."""
        old = self.recorded
        now = self.rows, self.learning_rate, self.t, self.written, self.update_ids
        if (old.rows, old.learning_rate, old.t, old.written, old.update_ids) != now:
            self.recorded = TableEntry(self.table_id, old.identity, *now)
        return self.recorded

    def current_config(self) -> TableConfig:
        """Return the table's configuration with the current tunables."""
        optimizer = replace(self.config.optimizer, learning_rate=self.learning_rate)
        return replace(self.config, rows=self.rows, optimizer=optimizer)


def _digest_of(config: TableConfig) -> "TableDigest | SparseDigest":
    """Return an empty digest for a table. The module for sparse tables is imported only if
    needed."""
    if not config.is_sparse:
        return TableDigest()
    from embstore.tables.sparse_digest import SparseDigest

    return SparseDigest()


@dataclass(frozen=True)
class Share:
    """The part of one table that a command uses: keys, and for an update the gradients of the
    keys."""

    table: TableState
    keys: Keys  # (n,)
    gradients: Gradients | None = None
    counts: Counts | None = None  # (n,), accesses per key of a lookup; None: 1 each

    @cached_property
    def accesses(self) -> int:
        """The number of accesses that all keys together stand for."""
        return len(self.keys) if self.counts is None else int(self.counts.sum())


@dataclass(frozen=True)
class PoolBatch:
    """A command's shares of the tables of one pool. The keys of these shares are made unique
    together."""

    pool: Pool
    shares: list[Share]
    batch: Batch
    counts: Counts | None = None
    """The accesses that each position of the batch stands for, (n,); None: one access each. Counts
    are not part of the batch, because the batch may be that of an earlier call with other
    counts."""

    @property
    def gradients(self) -> list[Gradients]:
        """The gradients of each share."""
        return [share.gradients for share in self.shares if share.gradients is not None]

    @property
    def needs_order(self) -> bool:
        """Whether the batch has its keys in the order of slots, and must be made again with keys in
        the order of occurrence, because a row is missing in the cache, or because a sum may be
        refused."""
        found = self.batch.found
        return self.batch.is_grouped and (found.missing > 0 or found.large >= 0)


def batches(
    shares: Sequence[Share], *, grouped: bool = False, of: str = "", known: bool = False
) -> list[PoolBatch]:
    """Return the batches of a command, one per pool. Kernels are queued: call `synchronize` before
    the findings (`Batch.found`) are used.

    Parameters
    ----------
    grouped : whether to group keys by slot if that is faster; a grouped batch may have to be made
        again (`PoolBatch.needs_order`)
    of : "lookup" or "update" if missing rows will be read into the cache; level two is then
        searched for these rows at once (`Exchange.ask`)
    known : whether to wait for the findings

    Raises
    ------
    InvalidArgumentError : a key is outside [0, rows) of its table, if that is known without a wait.
    """
    by_pool: dict[int, list[Share]] = {}
    for share in shares:
        by_pool.setdefault(id(share.table.pool), []).append(share)
    result = []
    for group in by_pool.values():
        pool = group[0].table.pool
        segments = [s.table.segment(s.keys) for s in group]
        counts = _counts(group)
        batch = pool.finder.resolve(segments, grouped=grouped)
        if of and pool.residency.exchange is not None:
            pool.residency.exchange.ask(batch, counts, is_lookup=of == "lookup")
        part = PoolBatch(pool, group, batch, counts)
        if not pool.device.is_queued and batch.found.outside >= 0:
            raise _out_of_range(part, batch.found.outside)
        result.append(part)
    if known and result and result[0].pool.device.is_queued:
        synchronize(result)
    return result


def _counts(shares: Sequence[Share]) -> Counts | None:
    """Return the number of accesses that each position stands for, (n,); None: one access each."""
    if all(share.counts is None for share in shares):
        return None
    ones = [np.ones(len(share.keys), np.int64) for share in shares]
    given = [share.counts for share in shares]
    return np.concatenate([o if c is None else c for o, c in zip(ones, given, strict=True)])


def sums_of(parts: Sequence[PoolBatch], scale: np.float32) -> list[Array] | None:
    """Wait for the batches' findings, and return the scaled sums of each batch. Return None if a
    batch `needs_order`."""
    sums = [part.pool.writer.sum_by_key(part.batch, part.gradients, scale) for part in parts]
    if parts and parts[0].pool.device.is_queued:
        synchronize(parts)
        for part in parts:
            if part.needs_order:
                return None
    return sums


def synchronize(parts: Sequence[PoolBatch]) -> None:
    """Wait for queued work of the device, and refuse a key outside [0, rows) of its table.

    Nothing is refused if a batch `needs_order`: the error must name the first such key, and it may
    be in that batch.
    """
    if len(parts) > 1:  # one wait for all batches
        parts[0].pool.device.keys.synchronize(*[part.batch for part in parts])
    for part in parts:
        part.pool.finder.synchronize(part.batch)
    if any(part.needs_order for part in parts):
        return
    for part in parts:
        if part.batch.found.outside >= 0:
            raise _out_of_range(part, part.batch.found.outside)


def check_writer(tables: Iterable[TableState], session: str) -> None:
    """Refuse a write to tables whose only writer is a session other than `session`."""
    for table in tables:
        if table.writer not in ("", session):
            raise TableHeldError(
                f"table {table.name!r} is held by session {table.writer!r}, its only writer until "
                "it is closed; open that session with shared=True to write at the same time"
            )


def _out_of_range(part: PoolBatch, position: int) -> InvalidArgumentError:
    bounds = part.batch.bounds
    segment = int(np.searchsorted(bounds, position, side="right")) - 1
    share = part.shares[segment]
    place = position - int(bounds[segment])
    key = part.pool.device.memory.download(share.keys[place : place + 1])
    error = outside(key, share.table.rows, share.table.name)
    assert error is not None, "it was found outside"
    return error
