"""A step of a session: what its ranks announced, what they sent, and what became of it.

What a step is, one `State` says, and one table says what follows what:

    ANNOUNCED -> NOTED       every rank has said which keys it will use; their uses are known
    NOTED     -> PLANNED     its rows are pinned or on their way; *ready* when they have arrived
    PLANNED   -> NOTED       another step, whose turn is nearer, has taken its pins
    NOTED, PLANNED -> IN_PARTS   its rows do not fit: it is done as any call larger than the cache
    any       -> FINISHED    every rank has sent its gradients, released the step or skipped it

A trainer may finish a step that the planner is at work on, so nothing moves a step that is
finished. Steps are finished in the order of their numbers.

A rank's share names tables; their keys are kept by pool, since a pool answers for all its tables in
one probe, one gather and one apply. Ids of a share's keys in a pool are their places there: what a
rank announces is unique.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import unique
from embstore.arrays import KEY_BITS, Keys
from embstore.cache.pool import Pool
from embstore.cache.prefetch import StepPins
from embstore.commands import StepGradients, UpdateOptions
from embstore.device.base import Array, Batch, Gradients
from embstore.results import AcknowledgedUpdate
from embstore.tables.callers import gradients_of
from embstore.tables.state import PoolBatch, Share, TableState


class State(Enum):
    """How far a step has come."""

    ANNOUNCED = auto()
    NOTED = auto()
    PLANNED = auto()
    IN_PARTS = auto()
    FINISHED = auto()


class Event(Enum):
    """What happens to a step."""

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
"""Of announced keys of one table."""


@dataclass(eq=False)
class Part:
    """One rank's keys in one pool."""

    pool: Pool
    tables: list[TableState]
    keys: list[Keys]
    pins: StepPins | None = None
    previous: NDArray[np.int64] | None = None
    """(u,), of each key the last step before that has it, 0 for none; None: not yet noted."""
    is_ranked: bool = False
    """Whether its rows that are in the cache were scored by their next use."""
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
        """Return the batch of all keys, by which the device works, as long as the step lasts."""
        if self._batch is None:
            named = zip(self.tables, self.keys, strict=True)
            segments = [(table.table_id, table.rows, keys) for table, keys in named]
            self._batch = self.pool.device.keys.distinct(segments)
        return self._batch

    def look(self) -> Batch:
        """Return that batch for a call, its slots found, and synchronized."""
        batch, finder = self.pool.device.keys.again(self.batch()), self.pool.finder
        pins = self.pins
        finder.look(batch, pins.slots if pins is not None and pins.have_arrived else None)
        finder.synchronize(batch)
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
        rows, slots = self.pool.reader.resident_rows(batch, count=count)
        ids = np.concatenate(places).astype(np.int32, copy=False)
        inverse, bounds = self.pool.device.memory.upload(ids), np.cumsum([0, *map(len, places)])
        places_of = replace(batch, inverse=inverse, bounds=bounds, is_distinct=False)
        return rows, slots, places_of, missing


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
        positions = {}
        for name, (index, place) in self.places.items():
            part = self.parts[index]
            assert part.previous is not None, "a step is noted before it is planned"
            low, high = part.bounds[place : place + 2]
            found = np.flatnonzero(part.previous[low:high] <= last_step)
            positions[name] = found.astype(np.int32)
        return positions

    def batches(self, shares: list[Share]) -> list[PoolBatch]:
        """Return the batch of each part, with those of its tables' shares."""
        return [
            PoolBatch(part.pool, [s for s in shares if s.table.pool is part.pool], part.look())
            for part in self.parts
        ]

    def accessed(self) -> list[Share]:
        """Return which rows the share is about: each key once."""
        return [Share(self.table(name), self.keys_of(name)) for name in self.places]

    def keys_with_gradients(self, part: StepGradients) -> Keys:
        """Return the announced keys of a table that have gradients."""
        keys = self.keys_of(part.table)
        return keys if part.positions is None else keys[part.positions]

    def gradient_shares(self, gradients: Mapping[str, StepGradients]) -> list[Share]:
        """Return the shares of the tables that have gradients, one a key, in announced order."""
        return [
            Share(table, keys, Gradients(gradients_of(table, part.gradients, len(keys))))
            for name in self.places
            if (part := gradients.get(name)) is not None
            for table, keys in ((self.table(name), self.keys_with_gradients(part)),)
        ]

    def is_whole(self, gradients: Mapping[str, StepGradients]) -> bool:
        """Whether every announced key of every table has a gradient."""
        parts = gradients.values()
        return len(parts) == len(self.places) and all(part.positions is None for part in parts)


@dataclass(frozen=True)
class Options:
    """How a rank wants its step finished; all ranks must say the same."""

    verb: Verb
    update: UpdateOptions = field(default_factory=UpdateOptions)


@dataclass(frozen=True)
class Sent:
    """What one rank sent to finish a step."""

    options: Options
    gradients: Mapping[str, StepGradients]
    rows_checksum: int | None = None
    is_finite: bool | None = None


@dataclass(eq=False)
class Attempt:
    """One try to finish a step, for everyone who waits for it."""

    result: AcknowledgedUpdate | None = None
    error: BaseException | None = None
    is_applied: bool = False
    """Every rank has sent its share, and it is being applied, or has been."""


@dataclass(eq=False)
class Step:
    """One step. Under the lock of the sessions; its pins are the engine thread's."""

    number: int
    shares: dict[int, RankShare] = field(default_factory=dict)  # by rank
    sent: dict[int, Sent] = field(default_factory=dict)  # by rank
    attempt: Attempt = field(default_factory=Attempt)
    _keys_in: dict[int, int] = field(default_factory=dict)  # by id of the pool
    state: State = State.ANNOUNCED
    is_noted: bool = False
    """Whether the uses of its keys are known."""
    inverse: NDArray[np.int32] | None = None
    """Of several ranks: the id of each of their keys among the keys of the step."""

    def move(self, event: Event) -> None:
        """Go where an event leads. Under the lock; raises KeyError where it cannot happen."""
        self.state = TRANSITIONS[self.state][event]

    @property
    def is_planned(self) -> bool:
        """Whether its rows are pinned or on their way."""
        return self.state is State.PLANNED

    @property
    def is_in_parts(self) -> bool:
        """Whether its rows do not fit."""
        return self.state is State.IN_PARTS

    def refuse(self, error: BaseException) -> None:
        """Tell everyone who waits, and be open for another try."""
        self.attempt.error = error
        self.attempt = Attempt()
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

    def by_part(self, values: NDArray[np.int64]) -> Iterator[tuple[Part, NDArray[np.int64]]]:
        """Yield each part with what `values` has for its keys, by the row keys of `note_keys`."""
        if self.inverse is not None:
            values = values[self.inverse]
        low = 0
        for part in self.parts:
            yield part, values[low : low + part.key_count]
            low += part.key_count

    @property
    def key_count(self) -> int:
        """Keys of all ranks."""
        return sum(share.key_count for share in self.shares.values())

    @property
    def is_ready(self) -> bool:
        """Whether its rows are in the cache, and stay there."""
        return self.is_planned and all(p.pins and p.pins.are_collected for p in self.parts)
