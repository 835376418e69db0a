"""A step of a session: what its ranks announced, what they sent, and what became of it.

A step is *announced* when every rank has said which keys it will use, *planned* when its rows are
pinned or on their way, *ready* when they have arrived, and *finished* when every rank has sent its
gradients, released the step or skipped it. Steps are finished in the order of their numbers.

A rank's share names tables; their keys are kept by pool, since a pool answers for all its tables in
one probe, one gather and one apply. Ids of a share's keys in a pool are their places there: what a
rank announces is unique.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embstore import writes
from embstore.arithmetic import unique
from embstore.arrays import KEY_BITS, Keys, Rows
from embstore.cache.pool import Pool
from embstore.cache.prefetch import Pins
from embstore.device.base import Array, Batch, Gradients
from embstore.results import AcknowledgedUpdate
from embstore.tablestate import PoolBatch, Share, TableState

Verb = Literal["update", "release", "skip"]
Positions = NDArray[np.int32]
"""Of announced keys of one table."""


@dataclass(eq=False)
class Part:
    """One rank's keys in one pool."""

    pool: Pool
    tables: list[TableState]
    keys: list[Keys]
    pins: Pins | None = None
    previous: NDArray[np.int64] | None = None
    """(u,), of each key the last step before that has it, 0 for none; None: not yet noted."""
    _batch: Batch | None = None

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Where the ids of each table begin, and end."""
        return np.cumsum([0, *(len(keys) for keys in self.keys)])

    @property
    def key_count(self) -> int:
        """Keys of all tables."""
        return sum(map(len, self.keys))

    @property
    def row_keys(self) -> Keys:
        """The row keys, by id."""
        pairs = zip(self.tables, self.keys, strict=True)
        return np.concatenate([table.table_id << KEY_BITS | keys for table, keys in pairs])

    def batch(self) -> Batch:
        """Return the batch of all keys, by which the device works; for one call."""
        if self._batch is not None:
            return self._batch
        device = self.pool.device
        pairs = zip(self.tables, self.keys, strict=True)
        batch = device.distinct([(table.table_id, table.rows, keys) for table, keys in pairs])
        if device.keeps_batches:
            self._batch = batch
        return batch

    def look(self) -> Batch:
        """Return that batch, its slots known or looked for, and settled."""
        batch = self.batch()
        pins = self.pins
        if pins is not None and pins.have_arrived:
            self.pool.know(batch, pins.slots)
        else:
            self.pool.look(batch)
        self.pool.settle(batch)
        return batch

    def look_at(
        self, places: list[NDArray[np.int64]], *, count: bool
    ) -> tuple[Array, Array, Batch, int]:
        """Return rows, slots and a batch of positions, by which some ids of each table are read,
        and how many of all rows were missing.

        count : whether the lookup is counted in the pool's figures
        """
        batch = self.look()
        missing = batch.found.missing
        rows, slots = self.pool.resident_rows(batch, count=count)
        ids = np.concatenate(places)
        bounds = np.cumsum([0, *map(len, places)])
        return rows, slots, self._subset(batch, ids, bounds), missing

    def _subset(self, batch: Batch, ids: NDArray[np.int64], bounds: NDArray[np.int64]) -> Batch:
        inverse = self.pool.device.upload(np.ascontiguousarray(ids, np.int32))
        return replace(batch, inverse=inverse, bounds=bounds)


@dataclass(eq=False)
class RankShare:
    """What one rank announced of a step."""

    parts: list[Part]
    places: dict[str, tuple[int, int]]
    """Of each table, in announced order: its part, and which table of the part it is."""
    counted: set[bool] = field(default_factory=set)
    """Which of its lookups the figures have: the early one, the other."""

    @classmethod
    def of(cls, tables: Mapping[str, TableState], keys: Mapping[str, Keys]) -> "RankShare":
        """Return the share of a rank that announces these keys, each array unique."""
        parts: dict[int, Part] = {}
        places = {}
        for name, named in keys.items():
            table = tables[name]
            part = parts.setdefault(id(table.pool), Part(table.pool, [], []))
            places[name] = list(parts).index(id(table.pool)), len(part.tables)
            part.tables.append(table)
            part.keys.append(named)
        return cls(list(parts.values()), places)

    @property
    def key_count(self) -> int:
        """Keys of all tables."""
        return sum(part.key_count for part in self.parts)

    def equals(self, other: "RankShare") -> bool:
        """Whether it names the same tables and keys, in the same order."""
        return list(self.places) == list(other.places) and all(
            np.array_equal(self.keys_of(name), other.keys_of(name)) for name in self.places
        )

    def keys_of(self, table: str) -> Keys:
        """Return the announced keys of a table."""
        part, place = self.places[table]
        return self.parts[part].keys[place]

    def table(self, name: str) -> TableState:
        """Return a table of the share."""
        part, place = self.places[name]
        return self.parts[part].tables[place]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The rows of each table, (u, dim)."""
        return {n: (len(self.keys_of(n)), self.table(n).dim) for n in self.places}

    def final_positions(self, last_step: int) -> dict[str, Positions]:
        """Return whose rows no step after `last_step` and before this one has."""
        return {
            name: np.flatnonzero(self._previous(name) <= last_step).astype(np.int32)
            for name in self.places
        }

    def _previous(self, table: str) -> NDArray[np.int64]:
        index, place = self.places[table]
        part = self.parts[index]
        assert part.previous is not None, "a step is noted before it is planned"
        low, high = part.bounds[place : place + 2]
        return part.previous[low:high]

    def batches(self, gradients: Mapping[str, Rows]) -> list[PoolBatch]:
        """Return the share's batches with one gradient a key."""
        result = []
        for part in self.parts:
            pairs = zip(part.tables, part.keys, strict=True)
            shares = [Share(t, keys, Gradients(gradients[t.name])) for t, keys in pairs]
            result.append(PoolBatch(part.pool, shares, part.look()))
        return result

    def accessed(self) -> list[Share]:
        """Return which rows the share is about: each key once."""
        return [Share(self.table(name), self.keys_of(name)) for name in self.places]

    def gradient_shares(self, gradients: Mapping[str, Rows]) -> list[Share]:
        """Return the tables' shares in announced order, with one gradient a key."""
        return [
            Share(self.table(name), self.keys_of(name), Gradients(gradients[name]))
            for name in self.places
        ]


@dataclass(frozen=True)
class Options:
    """How a rank wants its step finished; all ranks must say the same."""

    verb: Verb
    learning_rate: float | None = None
    gradient_scale: float = 1.0
    on_nonfinite: writes.OnNonfinite = "refuse"


@dataclass(frozen=True)
class Sent:
    """What one rank sent to finish a step."""

    options: Options
    gradients: Mapping[str, Rows]


@dataclass(eq=False)
class Attempt:
    """One try to finish a step, for everyone who waits for it."""

    result: AcknowledgedUpdate | None = None
    error: BaseException | None = None


@dataclass(eq=False)
class Step:
    """One step. Under the lock of the sessions; its pins are the engine thread's."""

    number: int
    shares: dict[int, RankShare] = field(default_factory=dict)  # by rank
    sent: dict[int, Sent] = field(default_factory=dict)  # by rank
    attempt: Attempt = field(default_factory=Attempt)
    _keys_in: dict[int, int] = field(default_factory=dict)  # by id of the pool
    is_noted: bool = False  # previous uses are known
    inverse: NDArray[np.int32] | None = None
    """Of several ranks: the id of each of their keys among the keys of the step."""
    is_planned: bool = False
    is_finishing: bool = False  # every rank has sent its share, and it is being applied
    in_parts: bool = False  # its rows do not fit: it is not pinned, but done as any call

    def refuse(self, error: BaseException) -> None:
        """Tell everyone who waits, and be open for another try."""
        self.attempt.error = error
        self.attempt, self.is_finishing = Attempt(), False
        self.sent.clear()

    @property
    def parts(self) -> list[Part]:
        """The parts of all ranks, in rank order."""
        return [part for rank in sorted(self.shares) for part in self.shares[rank].parts]

    def keys_in(self, pool: Pool) -> int:
        """Return how many different keys of all ranks are in a pool."""
        return self._keys_in[id(pool)]

    def note_keys(self) -> Keys:
        """Return the row keys of all parts, each once, and remember whose they are."""
        keys = [part.row_keys for part in self.parts]
        row_keys = np.concatenate([np.empty(0, np.int64), *keys])
        if len(self.shares) > 1:
            row_keys, self.inverse = unique(row_keys)
        for pool in {id(part.pool): part.pool for part in self.parts}.values():
            named = np.concatenate(
                [k for k, p in zip(keys, self.parts, strict=True) if p.pool is pool]
            )
            self._keys_in[id(pool)] = len(named if self.inverse is None else unique(named)[0])
        return row_keys

    @property
    def key_count(self) -> int:
        """Keys of all ranks."""
        return sum(share.key_count for share in self.shares.values())

    @property
    def is_ready(self) -> bool:
        """Whether its rows are in the cache, and stay there."""
        return self.is_planned and all(p.pins and p.pins.are_collected for p in self.parts)
