"""Prefetch: the rows of coming steps are loaded into a pool and pinned there.

ScratchPipe (ISCA 2022) does this in five stages; here there are three. Only the second stage takes
long, and it does not run in the engine thread:

    plan     engine thread   find the rows of a step, and pin the resident ones; take slots for the
                             other rows (if too few slots are free, victims leave), and insert the
                             keys of these rows as *pending*
    collect  any thread      read the pending rows from storage
    insert   engine thread   write the rows to their slots: they have *arrived*

From the first stage on, the index contains the keys of the rows under way. So a step that is
planned later finds these rows, and no row is read twice. A victim is logged before any row is read,
so a read of the victim's row returns its newest content. Other calls that need a pending row wait
for this row (finder.py), so the order of calls decides which content they see.

A step has its turn when all earlier steps are finished. A step that is planned ahead of its turn
evicts only rows with scores below a **ceiling**. If the step waited for its turn, these rows would
leave for it as well (lookahead/foresight.py).

A row is pinned once for each step in flight that uses the row (pins.py). If the rows of a step do
not fit, they are not pinned: the planner tries again later, or does the step in parts. Pins affect
where rows are, but never their content, so a step whose pins were removed is slower but gives the
same bits.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np

from embstore.arrays import Keys, Rows
from embstore.cache.pool import Pool
from embstore.device.values import Array, Batch, Slots
from embstore.errors import EmbstoreError
from embstore.score import PIN_ONE, PINS_MAX
from embstore.storage.stored_rows import Located

_OTHER_PINS = 2
"""The number of pins that a slot may have in addition to the pins of steps: one pin of a
collection, and one of a hot set."""
EVICTED_ROWS_MAX = 1024
"""The most rows that are evicted at once before a step is planned. Evicting so many rows takes the
engine thread less than a millisecond."""
_FOUND_MAX = 64
"""The most batches whose slots are remembered until the batches are planned."""
_BUFFERS_MAX = 4
"""The most staging buffers of finished collections that are kept for reuse."""


STAGES = ("note", "evict", "plan", "collect", "exchange", "insert")


@dataclass
class Work:
    """The time spent on prefetching, in seconds by stage, and the number of planned keys."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    planned_keys: int = 0
    collected_rows: int = 0


@dataclass(eq=False)
class StepPins:
    """The pins of one step's rows in a pool. Each row stays in its slot until the pins are
    released."""

    slots: Array  # (u,)
    collections: list["Collection"] = field(default_factory=list)
    """The collections under way when the step was planned. When all these collections have arrived,
    the rows of the step are in their slots."""
    own: "Collection | None" = None  # the collection of rows that no earlier step needed

    @property
    def are_collected(self) -> bool:
        """Whether all rows have been read."""
        return all(collection.is_collected for collection in self.collections)

    @property
    def have_arrived(self) -> bool:
        """Whether every row is in its slot."""
        return all(collection.is_inserted for collection in self.collections)


class Use(NamedTuple):
    """A step's use of its rows, expressed as scores."""

    rank: int
    """The rank of the step's rows: the order of their next use (embstore/score.py)."""
    ceiling: int
    """Only rows with scores below the ceiling may leave for the step's rows."""


@dataclass(frozen=True)
class Found:
    """The slots of keys, valid as long as the pool's number of moves is `moves`."""

    keys: Array
    slots: Array
    missing: int
    moves: int


class Collection:
    """Rows that were planned together, under way to their slots."""

    def __init__(self, prefetch: "Prefetch", keys: Keys, slots: Slots, located: Located) -> None:
        self.is_inserted = False
        self._prefetch = prefetch
        self._keys = keys
        self._slots = slots
        self._located = located
        self._rows = prefetch.buffer(len(keys))
        self._error: BaseException | None = None
        self._seconds = 0.0
        self._collected = threading.Event()

    def collect(self) -> None:
        """Read the rows from storage. Any thread may call this method, once; an error is stored for
        `finish`."""
        begun = perf_counter()
        try:
            self._prefetch.pool.storage.rows.collect(self._located, self._rows)
        except BaseException as exc:
            self._error = exc
        self._seconds = perf_counter() - begun
        self._collected.set()

    @property
    def is_collected(self) -> bool:
        """Whether the rows have been read, or reading them has failed."""
        return self._collected.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether reading a row has failed."""
        return self._error is not None

    def finish(self) -> None:
        """Wait for the rows and write them to their slots. Engine thread, in order of planning.

        Rows that cannot be read are removed from the index; a later call that needs them reads them
        again and gets the error.
        """
        self._collected.wait()
        pool, work = self._prefetch.pool, self._prefetch.work
        assert pool.finder.arriving[0] is self
        begun = perf_counter()
        if self._error is None:
            self._place()
        inserted = perf_counter()
        with pool.storage.irreversible:  # a slot left pending would be used without its row
            del pool.finder.arriving[0]
            if self._error is None:
                pool.device.slots.arrive(pool.slots.memory, self._slots)
                pool.pins.unpin(self._slots)
            else:
                self._give_up()
        self.is_inserted = True
        self._prefetch.keep_buffer(self._rows)
        work.collected_rows += len(self._keys)
        work.seconds["collect"] += self._seconds
        work.seconds["exchange"] += inserted - begun
        work.seconds["insert"] += perf_counter() - inserted
        if self._error is not None and not isinstance(self._error, EmbstoreError):
            raise self._error

    def _place(self) -> None:
        pool = self._prefetch.pool
        try:
            pool.storage.rows.count_read(self._located, pool.layout.record_bytes)
            pool.residency.place_rows(self._keys, self._slots, self._rows, self._located.found)
        except BaseException as exc:  # the device has no memory, for example
            self._error = exc

    def _give_up(self) -> None:
        pool = self._prefetch.pool
        pool.pins.reclaim()
        pool.pins.unpin(self._slots)
        pool.evictor.free(self._slots, self._keys)


class Prefetch:
    """Plans and pins the rows of steps in one pool. Engine thread only, except for `Collection`."""

    def __init__(self, pool: Pool, work: Work) -> None:
        self.pool = pool
        self.work = work
        self._pins = 0  # steps that have pins now
        self._planned: list[tuple[Keys, Slots]] = []
        self._cleared = 0  # rows to be read for the batches cleared so far
        self._found: OrderedDict[int, Found] = OrderedDict()  # by id of the keys
        self._buffers: list[Rows] = []

    def can_fit(self, count: int) -> bool:
        """Add slabs for `count` rows; return whether these rows could be pinned if no other rows
        were pinned."""
        while count > self.pool.pins.most and self.pool.evictor.grow():
            pass
        return count <= self.pool.pins.most

    def clear(self, batch: Batch, use: Use) -> int:
        """Return the number of rows that should leave before a batch is planned.

        Logging a victim costs many times as much as planning a row. Therefore victims leave before
        the plan, a few at a time (`evict`), and calls run in between. A pool gets slabs here, and
        not while steps are planned, because a slab may be taken from another pool, whose rows then
        leave. Batches are cleared one after the other; call `forget_cleared` before the first one.
        """
        begun = perf_counter()
        pool, found = self.pool, self.find(batch)
        self.work.seconds["plan"] += perf_counter() - begun
        begun = perf_counter()
        self._cleared += found.missing
        while (
            self._cleared > min(pool.slots.free_count, pool.pins.most - pool.pins.count)
            and pool.evictor.grow()
        ):
            pass
        wanted = min(self._cleared, pool.pins.most - pool.pins.count) - pool.slots.free_count
        if pool.level_two is not None:  # rows move to level two, and are not logged
            wanted = 0
        if wanted > 0:  # calls may have touched the batch's rows: they must not leave
            pool.scores.foresee(found.slots, np.full(len(found.slots), use.rank))
            wanted = wanted if self._may_leave(wanted, use.ceiling) else 0
        self.work.seconds["evict"] += perf_counter() - begun
        return wanted

    def _may_leave(self, rows: int, ceiling: int) -> bool:
        """Return whether the next `rows` victims have scores below the ceiling."""
        if rows <= 0 or ceiling == PIN_ONE:
            return True
        self.pool.scores.tick()
        return self.pool.scores.highest_of(rows) < ceiling

    def evict(self, rows: int) -> int:
        """Evict up to `rows` rows. Return how many remain to be evicted, 0 if no row could be
        evicted.

        Raises
        ------
        CapacityError : the log has no room.
        """
        begun = perf_counter()
        evicted = self.pool.evictor.evict(min(rows, EVICTED_ROWS_MAX))
        self.work.seconds["evict"] += perf_counter() - begun
        return rows - evicted if evicted else 0

    def find(self, batch: Batch) -> Found:
        """Return the slots of a batch's keys. If the slots were found recently, and no row has
        moved since, they are not searched again."""
        pool, keys = self.pool, batch.unique_keys
        found = self._found.get(id(keys))
        if found is None or found.keys is not keys or found.moves != pool.finder.moves:
            found = Found(keys, *pool.finder.locate(keys), pool.finder.moves)
            self._found[id(keys)] = found
            if len(self._found) > _FOUND_MAX:
                self._found.popitem(last=False)
        return found

    def forget_cleared(self) -> None:
        """Forget the cleared batches, before other batches are cleared."""
        self._cleared = 0

    def plan(self, batch: Batch, use: Use) -> StepPins | None:
        """Pin the rows of a batch of distinct keys, without waiting for reads. Return None if there
        is no room.

        Absent rows get slots; the caller must call `begin` to collect these rows. Until then no
        slab may move to another pool.

        Raises
        ------
        CapacityError : the log has no room for the rows that must leave. Nothing is pinned.
        """
        begun = perf_counter()
        keys = batch.unique_keys
        found = self.find(batch)
        self._found.pop(id(keys), None)  # from here on the slots belong to the step
        slots, missing = found.slots, found.missing
        self.pool.pins.pin(slots)
        try:
            is_full = self.pool.pins.count + missing > self.pool.pins.most
            if (
                is_full
                or self._pins >= PINS_MAX - _OTHER_PINS
                or (missing and not self._take(keys, slots, missing, use.ceiling))
            ):
                self.pool.pins.unpin(slots)
                return None
        except BaseException:
            self.pool.pins.unpin(slots)
            raise
        pins = StepPins(slots)
        self._pins += 1
        self.work.planned_keys += len(keys)
        self.work.seconds["plan"] += perf_counter() - begun
        return pins

    def _take(self, keys: Array, slots: Array, missing: int, ceiling: int) -> bool:
        """Give slots to missing keys. Give none, and return False, if rows with scores at or above
        the ceiling would have to leave."""
        pool = self.pool
        if pool.residency.exchange is not None:
            pool.scores.tick()
            absent = pool.residency.exchange.bring(keys, slots, missing, None, ceiling=ceiling)
            if absent is None:
                return False
            places, absent_keys, victims = absent.places, absent.keys, None
        elif self._may_leave(missing - pool.slots.free_count, ceiling):
            pool.scores.tick()
            answer = pool.device.keys.absent(keys, slots, missing)
            victims = pool.evictor.ask_victims(missing)
            places, absent_keys = answer()
        else:
            return False
        if len(absent_keys):
            self._await(slots, places, absent_keys, pool.residency.take(len(absent_keys), victims))
        return True

    def _await(self, slots: Array, places: Slots, keys: Keys, taken: Slots) -> None:
        """Insert keys as pending; the next `begin` returns a collection of their rows."""
        pool = self.pool
        with pool.storage.irreversible:  # a slot left pending would be used without its row
            pool.residency.insert_pending(keys, taken)
            pool.pins.pin(taken)
            pool.device.keys.set_slots(slots, places, taken)
            pool.pins.pin(taken)  # until they have arrived, even if the step ends
            self._planned.append((keys, taken))

    def begin(self) -> Collection | None:
        """Return a collection of all rows that were planned since the last call, None if there are
        none."""
        if not self._planned:
            return None
        begun = perf_counter()
        keys, slots = (np.concatenate(column) for column in zip(*self._planned, strict=True))
        self._planned.clear()
        collection = Collection(self, keys, slots, self.pool.storage.rows.locate(keys))
        self.pool.finder.arriving.append(collection)
        self.work.seconds["plan"] += perf_counter() - begun
        return collection

    def await_arrivals(self, pins: StepPins, own: Collection | None) -> None:
        """Store in a step's pins the collections that are under way, for which the step must
        wait."""
        pins.collections = [c for c in self.pool.finder.arriving if isinstance(c, Collection)]
        pins.own = own

    def release(self, pins: StepPins) -> None:
        """Remove a step's pins; its rows stay resident until they become victims."""
        self.pool.pins.unpin(pins.slots)
        self._pins -= 1

    def buffer(self, rows: int) -> Rows:
        """Return a host buffer for `rows` rows of the pool."""
        layout = self.pool.layout
        for place, kept in enumerate(self._buffers):
            if len(kept) >= rows:
                return self._buffers.pop(place)[:rows]
        return np.empty((rows + rows // 4, layout.stride), layout.element)[:rows]

    def keep_buffer(self, rows: Rows) -> None:
        """Keep a buffer for reuse."""
        whole = rows if rows.base is None else rows.base
        if len(self._buffers) == _BUFFERS_MAX:
            self._buffers.pop(0)
        self._buffers.append(whole)
