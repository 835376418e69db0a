"""One table at run time, and a command's share of it, for reads and writes alike."""

from collections.abc import Iterable, Sequence
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
from embstore.results import TableEntry
from embstore.tables.digest import TableDigest

if TYPE_CHECKING:
    from embstore.tables.sparse_digest import SparseDigest


@dataclass(eq=False)
class TableState:
    """A table of an open store. Engine thread only."""

    recorded: TableEntry
    """What the last commit recorded of it; at first, what it was made of."""
    config: TableConfig
    pool: Pool
    digest: "TableDigest | SparseDigest" = field(init=False)
    sessions: set[str] = field(default_factory=set)
    """Names of the look-ahead sessions that are open on it."""
    writer: str = ""
    """The one of them that alone may write to it; empty: everyone may."""
    lookup_keys: int = 0
    """Keys of lookups that could bring rows in, repeated ones each time; of steps each once."""
    deletions: int = 0
    """Commands that have deleted rows of it since it was opened."""
    skipped_updates: int = 0
    """That named it, and had a gradient that rule 9 refuses."""

    def __post_init__(self) -> None:
        self.table_id, self.t = self.recorded.table_id, self.recorded.t
        self.learning_rate = self.recorded.learning_rate
        self.digest = _digest_of(self.config)
        self.name = self.config.name
        self.dim = self.config.dim
        self.identity_json = self.config.identity_json()
        self.keyed_bytes = keyed_bytes(self.dim)
        self.number = self.pool.row_keys.number(self.table_id)
        """Its place in the arrays of its pool's kernels."""
        self.grow(self.recorded.rows)

    def grow(self, rows: int) -> None:
        """Grow to `rows` rows."""
        self.rows = rows
        self.limit = rows if rows < 1 << 63 else rows - (1 << 64)
        """The bound that keys are below, both unsigned: as the bits of an int64."""

    @property
    def known_rows(self) -> int:
        """The number of rows, as in profiles; 0: sparse keys."""
        return 0 if self.config.is_sparse else self.rows

    def row_keys(self, keys: Keys) -> Keys:
        """Return the row keys of keys."""
        return self.pool.row_keys.of(self.table_id, keys)

    def segment(self, keys: Keys | Array) -> tuple[int, int, Keys]:
        """Return the device's argument for keys of the table; see `DeviceKeys.unique`."""
        return self.number, self.limit, keys

    def entry(self) -> TableEntry:
        """Return what a commit records of the table: the same object while nothing changes."""
        old, now = self.recorded, (self.rows, self.learning_rate, self.t)
        if (old.rows, old.learning_rate, old.t) != now:
            self.recorded = TableEntry(self.table_id, old.identity, *now)
        return self.recorded

    def current_config(self) -> TableConfig:
        """Return the configuration with today's tunables."""
        optimizer = replace(self.config.optimizer, learning_rate=self.learning_rate)
        return replace(self.config, rows=self.rows, optimizer=optimizer)


def _digest_of(config: TableConfig) -> "TableDigest | SparseDigest":
    """Return the digest of a table; a store without sparse keys starts without theirs."""
    if not config.is_sparse:
        return TableDigest()
    from embstore.tables.sparse_digest import SparseDigest

    return SparseDigest()


@dataclass(frozen=True)
class Share:
    """A command's part of one table: keys, and in an update their gradients."""

    table: TableState
    keys: Keys  # (n,)
    gradients: Gradients | None = None
    counts: Counts | None = None  # (n,), accesses that each key of a lookup stands for; None: 1

    @cached_property
    def accesses(self) -> int:
        """Accesses that all keys together stand for."""
        return len(self.keys) if self.counts is None else int(self.counts.sum())


@dataclass(frozen=True)
class PoolBatch:
    """The shares of one pool in a command, de-duplicated together."""

    pool: Pool
    shares: list[Share]
    batch: Batch
    counts: Counts | None = None
    """Accesses that each position stands for, (n,); None: 1 each. The batch has none, because it
    may be an earlier call's, with other counts."""

    @property
    def gradients(self) -> list[Gradients]:
        """The gradients of each share."""
        return [share.gradients for share in self.shares if share.gradients is not None]

    @property
    def needs_order(self) -> bool:
        """Whether keys are needed by occurrence, and the batch has them by slot: one has no row
        here, or a sum is to be refused."""
        found = self.batch.found
        return self.batch.is_grouped and (found.missing > 0 or found.large >= 0)


def batches(
    shares: Sequence[Share], *, grouped: bool = False, of: str = "", known: bool = False
) -> list[PoolBatch]:
    """Return the command's batches, one a pool. Their kernels are queued: `synchronize` before
    anything is done with their findings.

    Parameters
    ----------
    grouped : by slot, where that is better; these may turn out to be void
    of : "lookup" or "update", if rows that are missing will come: they are asked for
        (`Exchange.ask`)
    known : wait for the findings

    Raises
    ------
    InvalidArgumentError : a key outside [0, rows) of its table, where that is known.
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
    """Return the accesses that each position stands for, (n,); None: 1 each."""
    if all(share.counts is None for share in shares):
        return None
    ones = [np.ones(len(share.keys), np.int64) for share in shares]
    given = [share.counts for share in shares]
    return np.concatenate([o if c is None else c for o, c in zip(ones, given, strict=True)])


def sums_of(parts: Sequence[PoolBatch], scale: np.float32) -> list[Array] | None:
    """Return the scaled sums of each batch; wait for the findings of the batches. None: they are
    needed by occurrence, and a batch has them by slot."""
    sums = [part.pool.writer.sum_by_key(part.batch, part.gradients, scale) for part in parts]
    if parts and parts[0].pool.device.is_queued:
        synchronize(parts)
        for part in parts:
            if part.needs_order:
                return None
    return sums


def synchronize(parts: Sequence[PoolBatch]) -> None:
    """Wait for the device, where work is queued, and refuse a key outside [0, rows) of its table.

    None is refused while a batch `needs_order`: its own may be the first that has to be named.
    """
    if len(parts) > 1:  # one wait for all of them
        parts[0].pool.device.keys.synchronize(*[part.batch for part in parts])
    for part in parts:
        part.pool.finder.synchronize(part.batch)
    if any(part.needs_order for part in parts):
        return
    for part in parts:
        if part.batch.found.outside >= 0:
            raise _out_of_range(part, part.batch.found.outside)


def check_writer(tables: Iterable[TableState], session: str) -> None:
    """Refuse a write to tables that another session holds; `session` is the writer's, if any."""
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
