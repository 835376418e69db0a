"""A step of a session: its ranks' announcements and shares, and its outcome.

One `State` describes a step, and one table contains the transitions:

    ANNOUNCED -> NOTED       every rank has announced its keys; the uses of the keys are known
    NOTED     -> PLANNED     its rows are pinned, or being read; *ready* when all are read
    PLANNED   -> NOTED       another step, whose turn is nearer, has taken its pins
    NOTED, PLANNED -> IN_PARTS   its rows do not fit: it is done as any call larger than the cache
    any       -> FINISHED    every rank has sent its gradients, released the step or skipped it

A trainer can finish a step while the planner works on it, so no event changes the state of a
finished step. Steps are finished in the order of their numbers.

A rank's share names tables, but its keys are kept by pool, because one search, one gather and one
update handle all tables of a pool. The id of a key in a pool is its index among the share's keys in
this pool, because announced keys are unique.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import unique
from embstore.arrays import Keys, Rows, refusal
from embstore.cache.pool import Pool
from embstore.cache.prefetch import StepPins
from embstore.commands import StepGradients, UpdateOptions
from embstore.device.values import Array, Batch, Gradients
from embstore.results import AcknowledgedUpdate
from embstore.row_keys import RowKeys
from embstore.tables.callers import bag_gradients, gradients_of
from embstore.tables.state import PoolBatch, Share, TableState


class State(Enum):
    """The progress of a step."""

    ANNOUNCED = auto()
    NOTED = auto()
    PLANNED = auto()
    IN_PARTS = auto()
    FINISHED = auto()


class Event(Enum):
    """An event in a step's life."""

    NOTE = auto()
    PLAN = auto()
    UNPIN = auto()
    DO_IN_PARTS = auto()
    FINISH = auto()


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.ANNOUNCED: {Event.NOTE: State.NOTED, Event.FINISH: State.FINISHED},
    State.NOTED: {
        Event.NOTE: State.NOTED,
        Event.PLAN: State.PLANNED,
        Event.UNPIN: State.NOTED,
        Event.DO_IN_PARTS: State.IN_PARTS,
        Event.FINISH: State.FINISHED,
    },
    State.PLANNED: {
        Event.UNPIN: State.NOTED,
        Event.DO_IN_PARTS: State.IN_PARTS,
        Event.FINISH: State.FINISHED,
    },
    State.IN_PARTS: {
        Event.UNPIN: State.IN_PARTS,
        Event.DO_IN_PARTS: State.IN_PARTS,
        Event.FINISH: State.FINISHED,
    },
    State.FINISHED: dict.fromkeys(Event, State.FINISHED),
}

Verb = Literal["update", "release", "skip"]
Positions = NDArray[np.int32]
"""Indices among the announced keys of one table."""


@dataclass(frozen=True, eq=False)
class Occurrences:
    """The occurrences of one part's keys in a call, table after table. An occurrence is given as
    the id of its key."""

    on_host: NDArray[np.int32]  # (n,), owned by this object
    ids: Array  # the same ids in the device's memory
    bounds: NDArray[np.int64]  # (tables + 1,)
    has_all: bool
    """Whether every key of the part occurs."""

    def of(self, batch: Batch) -> Batch:
        """Return a batch of the part's keys with the occurrences in this object."""
        return replace(batch, inverse=self.ids, bounds=self.bounds, is_distinct=False)

    def of_table(self, batch: Batch, place: int) -> Batch:
        """Return a batch of the part's keys with the occurrences of only one of the part's
        tables."""
        low, high = self.bounds[place : place + 2].tolist()
        bounds = np.array([0, high - low])
        return replace(batch, inverse=self.ids[low:high], bounds=bounds, is_distinct=False)


@dataclass(eq=False)
class Part:
    """One rank's keys in one pool."""

    pool: Pool
    tables: list[TableState]
    keys: list[Keys]
    pins: StepPins | None = None
    previous: NDArray[np.int64] | None = None
    """For each key, (u,), the last earlier step that uses the key; 0: no earlier step uses it. None
    instead of an array: the step is not noted."""
    is_ranked: bool = False
    """Whether the part's rows in the cache were scored by their next use."""
    _batch: Batch | None = None
    _occurrences: Occurrences | None = None
    """The occurrences in the last call that had any. They are kept because the update of a step
    usually has the same occurrences as its lookup."""

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Bounds of the ids of each table, (tables + 1,)."""
        return np.cumsum([0, *(len(keys) for keys in self.keys)])

    @property
    def key_count(self) -> int:
        """The number of keys of all tables."""
        return sum(map(len, self.keys))

    @property
    def row_keys(self) -> Keys:
        """The row keys, in the order of the ids."""
        pairs = zip(self.tables, self.keys, strict=True)
        return np.concatenate([table.row_keys(keys) for table, keys in pairs])

    def batch(self) -> Batch:
        """Return the batch of all keys of the part, in the device's form. It is made once per
        step."""
        if self._batch is None:
            named = zip(self.tables, self.keys, strict=True)
            segments = [table.segment(keys) for table, keys in named]
            self._batch = self.pool.device.keys.distinct(segments)
        return self._batch

    def look(self) -> Batch:
        """Return the batch of all keys, for one call. The slots of the keys are known when the
        method returns: the host waits for the device."""
        batch, finder = self.pool.device.keys.again(self.batch()), self.pool.finder
        pins = self.pins
        finder.look(batch, pins.slots if pins is not None and pins.have_arrived else None)
        finder.synchronize(batch)
        return batch

    def occurrences(self, inverses: Sequence[NDArray[Any]]) -> Occurrences:
        """Return the occurrences given by `inverses`: for each table, (n,) 32-bit indices of the
        table's keys.

        Raises
        ------
        InvalidArgumentError : an index is not below the number of keys.
        """
        on_host = np.empty(sum(map(len, inverses)), np.int32)
        bounds = np.cumsum([0, *map(len, inverses)])
        for table, keys, inverse, first, low, high in zip(
            self.tables, self.keys, inverses, self.bounds, bounds, bounds[1:], strict=False
        ):
            if len(inverse) and inverse.max() >= len(keys):
                expected = f"inverse in [0, {len(keys)}), the announced keys"
                raise refusal(table.name, expected, inverse.max())
            np.add(inverse.view(np.int32), np.int32(first), out=on_host[low:high])
        kept = self._occurrences
        if kept is None or not (
            np.array_equal(kept.bounds, bounds) and np.array_equal(kept.on_host, on_host)
        ):
            occurs = np.zeros(self.key_count, np.bool_)
            occurs[on_host] = True
            ids = self.pool.device.memory.upload(on_host)
            kept = self._occurrences = Occurrences(on_host, ids, bounds, bool(occurs.all()))
        return kept

    def rows(self, *, count: bool) -> tuple[Array, Array, Batch, int]:
        """Return an array of rows, the slots in it, the batch of all keys, and the number of rows
        that were missing.

        count : whether the lookup is counted in the pool's stats
        """
        batch = self.look()
        missing = batch.found.missing
        rows, slots = self.pool.reader.resident_rows(batch, count=count)
        return rows, slots, batch, missing


@dataclass(frozen=True, eq=False)
class KeptSums:
    """The gradients of one rank for one table, summed by key. The sums stay in the device's memory
    until the other ranks' gradients arrive."""

    table: str
    sums: Array  # (n, dim)
    positions: Positions | None  # (n,) ascending, of announced keys; None: all
    gradients: Rows  # copy of the sums on the host for a log; without one (0, dim)
    inverse: ClassVar[None] = None


@dataclass(eq=False)
class RankShare:
    """One rank's announcement of a step."""

    parts: list[Part]
    places: dict[str, tuple[int, int]]
    """The location of each table, in announced order: the index of its part, and its index in the
    part."""
    counted: set[bool] = field(default_factory=set)
    """The lookups that are already in the stats: True for the early lookup, False for the late
    lookup."""

    @classmethod
    def of(cls, tables: Mapping[str, TableState], keys: Mapping[str, Keys]) -> "RankShare":
        """Return the share of a rank that announces these keys. The keys of a table are unique."""
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
        """The number of keys of all tables."""
        return sum(part.key_count for part in self.parts)

    def equals(self, other: "RankShare") -> bool:
        """Return whether both shares name the same tables and keys, in the same order."""
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
        """The shape of each table's rows, (u, dim)."""
        return {n: (len(self.keys_of(n)), self.table(n).dim) for n in self.places}

    def final_positions(self, last_step: int) -> dict[str, Positions]:
        """Return, for each table, the positions of the rows that no step between `last_step` and
        this step uses."""
        positions = {}
        for name, (index, place) in self.places.items():
            part = self.parts[index]
            assert part.previous is not None, "a step is noted before it is planned"
            low, high = part.bounds[place : place + 2]
            found = np.flatnonzero(part.previous[low:high] <= last_step)
            positions[name] = found.astype(np.int32)
        return positions

    def batches(
        self, shares: list[Share], gradients: Mapping[str, StepGradients | KeptSums]
    ) -> list[PoolBatch] | None:
        """Return the batch of each part, with its tables' shares. Return None if some keys have no
        gradient, or if one table has gradients of keys and another table gradients of
        occurrences."""
        given = gradients.values()
        if len(given) < len(self.places) or any(part.positions is not None for part in given):
            return None
        inverses = {p.table: p.inverse for p in given if p.inverse is not None}
        if 0 < len(inverses) < len(given):
            return None
        all_named: list[Occurrences | None] = [None] * len(self.parts)
        if inverses:
            named = [p.occurrences([inverses[t.name] for t in p.tables]) for p in self.parts]
            if not all(own.has_all for own in named):
                return None
            all_named = [*named]
        return [
            PoolBatch(
                part.pool,
                [share for share in shares if share.table.pool is part.pool],
                part.look() if own is None else own.of(part.look()),
            )
            for part, own in zip(self.parts, all_named, strict=True)
        ]

    def accessed(self) -> list[Share]:
        """Return the rows that this share uses, as one `Share` per table. Each key occurs once."""
        return [Share(self.table(name), self.keys_of(name)) for name in self.places]

    def keys_with_gradients(self, part: StepGradients | KeptSums) -> Keys:
        """Return the announced keys of a table that have gradients. A key is repeated if it occurs
        several times."""
        keys = self.keys_of(part.table)
        chosen = part.positions if part.inverse is None else part.inverse
        return keys if chosen is None else keys[chosen]

    def gradient_shares(self, gradients: Mapping[str, StepGradients | KeptSums]) -> list[Share]:
        """Return the shares of the tables that have gradients, in announced order."""
        return [
            self._gradient_share(part)
            for name in self.places
            if (part := gradients.get(name)) is not None
        ]

    def _gradient_share(self, part: StepGradients | KeptSums) -> Share:
        table, keys = self.table(part.table), self.keys_with_gradients(part)
        if isinstance(part, KeptSums):
            return Share(table, keys, Gradients(part.sums))
        count = len(keys) if part.bags is None else len(part.bags.offsets) - 1
        rows = gradients_of(table, part.gradients, count)
        named = Gradients(rows) if part.bags is None else bag_gradients(rows, part.bags)
        return Share(table, keys, named)


@dataclass(frozen=True)
class Options:
    """The verb and options by which a rank finishes its step. All ranks must send the same verb and
    options."""

    verb: Verb
    update: UpdateOptions = field(default_factory=UpdateOptions)


@dataclass(frozen=True)
class Sent:
    """One rank's share to finish a step."""

    options: Options
    gradients: Mapping[str, StepGradients | KeptSums]
    rows_checksum: int | None = None
    is_finite: bool | None = None


@dataclass(eq=False)
class Attempt:
    """One attempt to finish a step, shared by all waits for its outcome."""

    result: AcknowledgedUpdate | None = None
    error: BaseException | None = None
    is_applied: bool = False
    """Whether every rank has sent its share, so that the step is being applied, or was applied."""


@dataclass(eq=False)
class Step:
    """One step. Use it only under the lock of the sessions; only the engine thread uses the step's
    pins."""

    number: int
    shares: dict[int, RankShare] = field(default_factory=dict)  # by rank
    sent: dict[int, Sent] = field(default_factory=dict)  # by rank
    attempt: Attempt = field(default_factory=Attempt)
    _keys_in: dict[int, int] = field(default_factory=dict)  # by id of the pool
    state: State = State.ANNOUNCED
    is_noted: bool = False
    """Whether the uses of the step's keys are known."""
    inverse: dict[RowKeys, NDArray[np.int32]] = field(default_factory=dict)
    """With several ranks: the id of each key of each rank among the distinct keys of the step."""

    def move(self, event: Event) -> None:
        """Move to the state to which an event leads. Under the lock. Raises KeyError if the event
        cannot occur in the present state."""
        self.state = TRANSITIONS[self.state][event]

    @property
    def is_planned(self) -> bool:
        """Whether the step's rows are pinned or being read."""
        return self.state is State.PLANNED

    @property
    def is_in_parts(self) -> bool:
        """Whether the step's rows do not fit into the cache."""
        return self.state is State.IN_PARTS

    def refuse(self, error: BaseException) -> None:
        """End all waits with the error, and open the step for another attempt."""
        self.attempt.error = error
        self.attempt = Attempt()
        self.sent.clear()

    @property
    def parts(self) -> list[Part]:
        """The parts of all ranks' shares, in rank order."""
        return [part for rank in sorted(self.shares) for part in self.shares[rank].parts]

    def keys_in(self, pool: Pool) -> int:
        """Return the number of distinct keys of all ranks in a pool."""
        return self._keys_in[id(pool)]

    def note_keys(self) -> dict[RowKeys, Keys]:
        """Return the distinct row keys of all parts, by kind of row keys. Remember the index of
        each part's keys among them."""
        named: dict[RowKeys, list[Keys]] = {}
        in_pools: dict[int, list[Keys]] = {}
        for part in self.parts:
            keys = part.row_keys
            named.setdefault(part.pool.row_keys, []).append(keys)
            in_pools.setdefault(id(part.pool), []).append(keys)
        found = {row_keys: np.concatenate(keys) for row_keys, keys in named.items()}
        if len(self.shares) > 1:
            for row_keys, keys in found.items():
                found[row_keys], self.inverse[row_keys] = unique(keys)
        for pool, own in in_pools.items():
            joined = np.concatenate(own)
            self._keys_in[pool] = len(unique(joined)[0] if self.inverse else joined)
        return found

    def by_part(
        self, values: Mapping[RowKeys, NDArray[np.int64]]
    ) -> Iterator[tuple[Part, NDArray[np.int64]]]:
        """Yield each part with the values of its keys. `values` has a value for each row key of
        `note_keys`."""
        given = {k: own[self.inverse[k]] if self.inverse else own for k, own in values.items()}
        low = dict.fromkeys(given, 0)
        for part in self.parts:
            row_keys, high = part.pool.row_keys, low[part.pool.row_keys] + part.key_count
            yield part, given[row_keys][low[row_keys] : high]
            low[row_keys] = high

    @property
    def key_count(self) -> int:
        """The number of keys of all ranks."""
        return sum(share.key_count for share in self.shares.values())

    @property
    def is_ready(self) -> bool:
        """Whether all rows of the step have been read, and are pinned."""
        return self.is_planned and all(p.pins and p.pins.are_collected for p in self.parts)
