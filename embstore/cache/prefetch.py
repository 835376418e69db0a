"""Prefetch: the rows of steps to come, brought to a pool and pinned there.

What ScratchPipe does in five stages, in three, of which only the second takes time and none of the
engine's:

    plan     the engine thread   find the rows of a step, pin those there are; take slots for the
                                 others, whose victims leave now, and have the index lead to them:
                                 they are *pending*
    collect  any thread          read the pending rows from storage
    insert   the engine thread   write them to their slots: they have *arrived*

The index tells the planned state from the first stage on, so a step that is planned later finds a
row that is on its way, and no row is fetched twice. A victim is logged before anything is read,
so no read can be older than it. Whoever else needs a pending row waits for it (`Pool`), so that
the order of calls decides what they see, as ever.

A pinned row is no victim; pins are counts, as many as steps in flight have the row. One slot in
sixteen stays without (`Pool.pinned_max`), so that other calls get on, in parts if they must.
What does not fit is not pinned: the planner tries again later, or does the step in parts. Pins
decide where rows are and never what they are. So a step whose pins were taken (`Pool.unpin_all`) is
right all the same, only slower.
"""

import threading
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from embstore.arrays import Keys, Rows
from embstore.cache.pool import Pool
from embstore.device.base import Array, Batch, Slots
from embstore.errors import EmbstoreError
from embstore.kernels.slots import PINS_MAX
from embstore.storage.storage import Located

_OTHER_PINS = 2
"""That a slot may have beside those of steps: a collection's, and a hot set's."""
EVICTED_ROWS_MAX = 1024
"""At once, ahead of a plan: less than a millisecond of the engine's."""
_BUFFERS_MAX = 4
"""Staging buffers of finished collections that are kept for the next."""


STAGES = ("evict", "plan", "collect", "exchange", "insert")


@dataclass
class Work:
    """What prefetching cost, in seconds by stage, and how many keys it was about."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    planned_keys: int = 0
    collected_rows: int = 0


@dataclass(eq=False)
class Pins:
    """One step's rows in a pool: each in its slot until they are released."""

    slots: Array  # (u,)
    collections: list["Collection"] = field(default_factory=list)
    """On their way when the step was planned; its rows are there when these have arrived."""
    own: "Collection | None" = None  # the one that brings rows for it

    @property
    def are_collected(self) -> bool:
        """Whether nothing has to be read any more."""
        return all(collection.is_collected for collection in self.collections)

    @property
    def have_arrived(self) -> bool:
        """Whether every row is in its slot."""
        return all(collection.is_inserted for collection in self.collections)


@dataclass(frozen=True)
class _Found:
    """Where keys were when the pool had seen so many moves."""

    keys: Array
    slots: Array
    missing: int
    moves: int


class Collection:
    """Rows that were planned together, on their way to their slots."""

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
        """Read the rows. Any thread, once; what goes wrong is kept for `finish`."""
        begun = perf_counter()
        try:
            self._prefetch.pool.storage.collect(self._located, self._rows)
        except BaseException as exc:
            self._error = exc
        self._seconds = perf_counter() - begun
        self._collected.set()

    @property
    def is_collected(self) -> bool:
        """Whether the rows have been read, or could not be."""
        return self._collected.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether a row of it could not be read."""
        return self._error is not None

    def finish(self) -> None:
        """Wait for the rows and write them to their slots. Engine thread, in order of planning.

        Rows that cannot be read leave the index again; whoever asks for them is told why.
        """
        self._collected.wait()
        pool, work = self._prefetch.pool, self._prefetch.work
        assert pool.arriving[0] is self
        begun = perf_counter()
        if self._error is None:
            self._place()
        inserted = perf_counter()
        del pool.arriving[0]
        with pool.storage.no_way_back():  # what stays pending would be read all the same
            if self._error is None:
                pool.device.arrive(pool.memory, self._slots)
                pool.unpin(self._slots)
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
            pool.storage.note_read(self._located, pool.layout.stride)
            pool.place_rows(self._keys, self._slots, self._rows, self._located.found)
        except BaseException as exc:  # no memory on the device, say
            self._error = exc

    def _give_up(self) -> None:
        pool = self._prefetch.pool
        pool.unpin_all()
        pool.unpin(self._slots)
        pool.forget_rows(self._keys, self._slots)


class Prefetch:
    """Plans and pins the rows of steps in one pool. Engine thread only, but for `Collection`."""

    def __init__(self, pool: Pool, work: Work) -> None:
        self.pool = pool
        self.work = work
        self._pins = 0  # steps that have pins now
        self._planned: list[tuple[Keys, Slots]] = []
        self._cleared = 0  # rows that the batches cleared so far will bring
        self._found: _Found | None = None
        self._buffers: list[Rows] = []

    def can_fit(self, count: int) -> bool:
        """Say whether so many rows could be pinned if no others were; add the slabs it needs."""
        while count > self.pool.pinned_max and self.pool.grow():
            pass
        return count <= self.pool.pinned_max

    def clear(self, batch: Batch) -> int:
        """Return how many rows should leave before a batch is planned, for it to find free slots.

        Victims that must be logged cost many times what planning itself does; so they leave before,
        a few at a time (`evict`), and calls get on in between. Here, and not while steps are
        planned, a pool gets the slabs that there are: they may come from another pool, whose rows
        then leave. Batches are cleared one after the other, and `forget_cleared` comes before the
        first.
        """
        pool, found = self.pool, self._find(batch.unique_keys)
        begun = perf_counter()
        self._cleared += found.missing
        while not self._has_room(self._cleared) and pool.grow():
            pass
        wanted = min(self._cleared, self.pool.pinned_max - pool.pinned_count) - pool.free_count
        if wanted > 0:  # the rows that are there shall not be among those that leave
            pool.policy.tick()
            pool.policy.touch(found.slots, len(found.slots) - found.missing, pool.slot_count)
        self.work.seconds["evict"] += perf_counter() - begun
        return wanted

    def evict(self, rows: int) -> int:
        """Have some of so many rows leave; return how many are left.

        Raises
        ------
        CapacityError : no room in the log.
        """
        begun = perf_counter()
        evicted = self.pool.evict(min(rows, EVICTED_ROWS_MAX))
        self.work.seconds["evict"] += perf_counter() - begun
        return rows - evicted if evicted else 0

    def _find(self, keys: Array) -> _Found:
        """Find keys, unless that was done last and no row has moved since."""
        found, pool = self._found, self.pool
        if found is None or found.keys is not keys or found.moves != pool.moves:
            begun = perf_counter()
            slots = pool.device.allocate(len(keys), np.int64)
            missing = pool.device.find(pool.index.arrays, keys, slots)
            found = self._found = _Found(keys, slots, missing, pool.moves)
            self.work.seconds["plan"] += perf_counter() - begun
        return found

    def forget_cleared(self) -> None:
        """Begin to clear for other batches."""
        self._cleared = 0

    def _has_room(self, missing: int) -> bool:
        """Say whether so many rows may come without another leaving."""
        return missing <= min(self.pool.free_count, self.pool.pinned_max - self.pool.pinned_count)

    def plan(self, batch: Batch) -> Pins | None:
        """Pin the rows of a batch of distinct keys; None if there is no room. Nothing waits.

        Absent rows have slots then, and are to be collected: `begin`, before which no slab may
        change hands.

        Raises
        ------
        CapacityError : no room in the log for the rows that must leave. Nothing is pinned.
        """
        keys = batch.unique_keys
        found, self._found = self._find(keys), None
        slots, missing = found.slots, found.missing
        begun = perf_counter()
        self.pool.pin(slots)
        try:
            if not self._may_pin(missing):
                self.pool.unpin(slots)
                return None
            if missing:
                self._take(keys, slots, missing)
        except BaseException:
            self.pool.unpin(slots)
            raise
        pins = Pins(slots)
        self._pins += 1
        self.work.planned_keys += len(keys)
        self.work.seconds["plan"] += perf_counter() - begun
        return pins

    def _may_pin(self, missing: int) -> bool:
        needed = self.pool.pinned_count + missing
        return needed <= self.pool.pinned_max and self._pins < PINS_MAX - _OTHER_PINS

    def _take(self, keys: Array, slots: Array, missing: int) -> None:
        pool = self.pool
        pool.policy.tick()
        places, absent = pool.device.absent(keys, slots, missing)
        taken = pool.take_slots(missing)
        pool.await_rows(absent, taken)
        self.pool.pin(taken)  # until they have arrived, whatever becomes of the step
        self.pool.pin(taken)
        pool.device.set_slots(slots, places, taken)
        self._planned.append((absent, taken))

    def begin(self) -> Collection | None:
        """Return what is to be collected of all that was planned since; None: nothing."""
        if not self._planned:
            return None
        begun = perf_counter()
        keys, slots = (np.concatenate(column) for column in zip(*self._planned, strict=True))
        self._planned.clear()
        collection = Collection(self, keys, slots, self.pool.storage.locate(keys))
        self.pool.arriving.append(collection)
        self.work.seconds["plan"] += perf_counter() - begun
        return collection

    def await_arrivals(self, pins: Pins, own: Collection | None) -> None:
        """Have pins know what they wait for: all that is on its way now."""
        pins.collections = [c for c in self.pool.arriving if isinstance(c, Collection)]
        pins.own = own

    def release(self, pins: Pins) -> None:
        """Take a step's pins back; its rows stay as long as the policy lets them."""
        self.pool.unpin(pins.slots)
        self._pins -= 1

    def buffer(self, rows: int) -> Rows:
        """Return a host buffer for so many rows of the pool."""
        stride = self.pool.layout.stride
        for place, kept in enumerate(self._buffers):
            if len(kept) >= rows:
                return self._buffers.pop(place)[:rows]
        return np.empty((rows + rows // 4, stride), np.float32)[:rows]

    def keep_buffer(self, rows: Rows) -> None:
        """Take a buffer back."""
        whole = rows if rows.base is None else rows.base
        if len(self._buffers) == _BUFFERS_MAX:
            self._buffers.pop(0)
        self._buffers.append(whole)
