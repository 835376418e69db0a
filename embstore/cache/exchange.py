"""The exchange: missing rows come up from level two, and victims of level one go down.

A call's missing keys are looked up in level two on the GPU. Each row that is found there changes
places with a victim of level one: one kernel copies both rows over the bus at once. Keys that are
in neither level need slots too. The victims for these keys move down into free slots of level two;
if there are too few free slots, rows of level two are evicted. Where level two has no room for all
victims, the first victims are logged instead. All room is found before a row moves, so a refused
call has moved no row.

    missing keys   | absent from both    | found in level two                    |
    slots          | free ones  | victims of level one                           |
    go to          |            | places     | the slots that these rows leave   |

The host waits once, to learn how many keys are absent and how many rows are dirty. If earlier calls
missed rows and had to evict other rows, the device is asked for these numbers (`ask`) when the
batch is queued, before it is known whether rows are missing. Then the host waits only once for both
the batch and these numbers. If some keys are absent from both levels, the host waits a second time,
for these keys and for the slots of their victims. After the moves these slots are free, and the
rows of the absent keys are read as in a cache of one level.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from embstore.arrays import Keys
from embstore.cache.counters import Counters
from embstore.cache.eviction import Evictor
from embstore.cache.finder import Finder
from embstore.cache.level_two import LevelTwo
from embstore.cache.pins import PoolPins
from embstore.cache.scores import Scores
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device, DeviceLevels
from embstore.device.values import (
    Answer,
    Array,
    Batch,
    Counts,
    IndexArrays,
    Missing,
    SlotContents,
    Slots,
    TableParameters,
)
from embstore.score import PIN_ONE
from embstore.storage.storage import PoolStorage

_NO_SLOTS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Absent:
    """The keys of a call that are in neither level. Level one has free slots for them."""

    keys: Keys
    places: Slots
    """The ids of `keys`, which are indices into the call's unique keys, (n,) int64."""


@dataclass(frozen=True)
class Asked:
    """A request to the device to find the missing keys of a batch in level two. `Exchange.ask` has
    queued the request before the batch was synchronized."""

    batch: Batch
    moves: int
    """The value of `Exchange._moves` when the request was queued; if the value has grown since,
    rows may be in other slots."""
    free: int
    """The number of free slots of level one when the request was queued."""
    rebuilds: int
    """The number of rebuilds of level two's index when the request was queued. Before a rebuild,
    the keys inserted last may be missing in the index."""
    missing: Answer[Missing]
    hits: Answer[tuple[int, int]] | None
    """The number of accesses of a lookup, and the number of hits; None for other commands."""


@dataclass(frozen=True)
class _Plan:
    """The moves of a call, as pairs: each pair is a slot of level one and a slot of level two."""

    slots: Array
    first: int
    """Position of the first missing key that has a pair."""
    first_up: int
    """Position of the first pair whose row of level two comes up; all later rows come up too."""
    first_down: int
    """Position of the first pair whose row of level one goes down; all later rows go down too."""
    left: Slots
    """Slots of victims that leave for absent keys. They are free after the moves."""
    logged: int
    """The number of victims that are logged and leave the cache; they are the first of `left`."""
    dirty_down: int


@dataclass(eq=False)
class Exchange:
    """Moves rows between the levels of a pool. Engine thread only."""

    device: Device
    levels: DeviceLevels
    storage: PoolStorage
    slots: PoolSlots
    pins: PoolPins
    finder: Finder
    scores: Scores
    evictor: Evictor
    level_two: LevelTwo
    counters: Counters
    parameters: TableParameters
    risen: list[Keys] | None = None
    """Keys of dirty rows that came up since a list was assigned to this attribute; None: not
    recorded."""
    _asked: Asked | None = None
    _full: tuple[int, int, int] | None = None
    """The `_arena_state` at which no slab was available for missing rows."""

    def ask(self, batch: Batch, counts: Counts | None, *, is_lookup: bool) -> None:
        """Request the device to find the missing keys of a batch that is not synchronized yet. Do
        nothing unless calls of this kind usually miss rows and no slab is available for the rows.

        counts : accesses that each position of a lookup stands for; None: 1 each
        """
        finder, self._asked = self.finder, None
        misses = finder.lookups_miss if is_lookup else finder.updates_miss
        misses = misses and batch.position_count > 0
        if not (misses and self._full == self._arena_state and finder.is_asked(batch)):
            return
        slots = finder.found
        self.scores.protect(slots, batch)
        hits = None
        if is_lookup:
            hits = self.device.keys.count_accesses(batch, slots, 0, len(slots), counts)
        index = self.level_two.slots.index
        missing = self._look(index.arrays, batch.unique_keys, slots, batch)
        free = self.slots.free_count
        self._asked = Asked(batch, self._moves, free, index.rebuilds, missing, hits)

    def asked(self, keys: Array) -> Asked | None:
        """Return the request of `ask` for `keys`, the unique keys of a batch; None if there is no
        such request, or if it is not valid any more."""
        asked, self._asked = self._asked, None
        if asked is None or asked.batch.unique_keys is not keys:
            return None
        index = self.level_two.slots.index
        index.synchronize()
        return asked if self._is_right(asked) and asked.rebuilds == index.rebuilds else None

    def _is_right(self, asked: Asked) -> bool:
        """Return whether no row has moved and no slab was added since the request was queued."""
        return (asked.moves, asked.free) == (self._moves, self.slots.free_count)

    @property
    def _moves(self) -> int:
        """A number that grows whenever a row enters or leaves a slot of either level. Rows of level
        two also leave when another pool takes a slab."""
        return self.finder.moves + self.level_two.finder.moves

    @property
    def _arena_state(self) -> tuple[int, int, int]:
        """A value that changes whenever a slab that was refused may have become available."""
        arena = self.evictor.arena
        return arena.era, arena.memory_bytes, self.slots.count

    def _look(
        self, index: IndexArrays, keys: Array, slots: Array, batch: Batch | None
    ) -> Answer[Missing]:
        one, two = self.slots, self.level_two.slots
        return self.levels.look(
            keys, slots, batch, index, two.memory, one.memory, one.count, self.scores.clock,
            one.free_count, self.parameters,
        )  # fmt: skip

    def bring(
        self,
        keys: Array,
        slots: Array,
        missing: int,
        score: int | None,
        missed_rows: Counter[int] | None = None,
        asked: Asked | None = None,
        ceiling: int = PIN_ONE,
    ) -> Absent | None:
        """Move the rows of a call's missing keys up to level one, for the keys that level two has.
        `slots` contains -1 where a key is missing; the new slots of the moved rows are written
        there. Return the keys that are in neither level; level one has free slots for them.

        score : the score that the rows that come up get, because the call touches them; None: they
            are pinned instead
        missed_rows : a counter by table, to which the numbers of missing keys are added
        asked : the request of `ask` for these keys, if there is one
        ceiling : rows of this score or a higher one do not leave. If such a row would have to
            leave, no row is moved, and None is returned

        Raises
        ------
        CapacityError : the log has no room for rows that must leave, or the device has too little
            memory. No row has moved.
        """
        self.device.memory.secure(missing)
        if asked is None or not self._is_right(asked):
            needed = self.evictor.needed(missing)
            found = self._look(self.level_two.slots.index.synchronize(), keys, slots, None)()
            self._full = self._arena_state if needed else None
        else:
            found = asked.missing()
        leaving = len(found.victims)
        assert len(found.keys) == missing, "other keys were asked for"
        assert leaving == max(missing - self.slots.free_count, 0), "there are too few slots"
        if found.highest >= ceiling:
            return None
        if missed_rows is not None:
            numbers = np.flatnonzero(found.by_table)
            counts = found.by_table[numbers].tolist()
            missed_rows.update(dict(zip(numbers.tolist(), counts, strict=True)))
        absent, victims = self._known(found, missing - leaving)
        plan = self._planned(found, missing, leaving, victims)
        if len(plan.slots):
            with self.storage.irreversible:
                self._move(found, slots, plan, score)
        return absent

    def _known(self, found: Missing, free: int) -> tuple[Absent, Slots]:
        """Return the absent keys, and the slots of the victims that leave for them. Waits."""
        if not found.absent:
            return Absent(np.empty(0, np.int64), _NO_SLOTS), _NO_SLOTS
        victims = max(found.absent - free, 0)
        arrays = found.keys[: found.absent], found.places[: found.absent], found.victims[:victims]
        keys, places, slots = (ask() for ask in [self.device.memory.ask(a) for a in arrays])
        return Absent(keys, places), slots

    def _planned(self, found: Missing, missing: int, leaving: int, victims: Slots) -> _Plan:
        """Find room for all rows that move, and return the moves. Raises CapacityError."""
        free, memory = missing - leaving, self.device.memory
        if len(victims):
            before = self.evictor.dirty_max
            logged = self._make_places(found, free, victims, missing - found.absent)
            dirty_down = found.dirty_victims - (before - self.evictor.dirty_max)
            return _Plan(found.victims, free, len(victims), 0, victims, logged, dirty_down)
        pairs = found.victims
        if free > found.absent:
            pairs = memory.allocate(missing - found.absent, np.int64)
            memory.copy(found.victims, pairs[free - found.absent :])
        taken = self.slots.take(free - found.absent)
        if len(taken):
            memory.copy(memory.upload(taken), pairs[: len(taken)])
        return _Plan(pairs, found.absent, 0, len(taken), _NO_SLOTS, 0, found.dirty_victims)

    def _make_places(self, found: Missing, free: int, victims: Slots, staying: int) -> int:
        """Find slots in level two for the victims that leave for absent keys. Return the number of
        victims that got no slot; these are the first victims, and they are logged."""
        level_two, memory = self.level_two, self.device.memory
        places = level_two.make_room(len(victims), found.below, staying)
        logged = len(victims) - len(places)
        try:
            if logged:
                here = self.device.slots.read_slots(self.slots.memory, victims[:logged])()
                self._log(victims[:logged], here)
        except BaseException:
            level_two.put_back(places)
            raise
        if len(places):
            end = free + len(victims)
            memory.copy(memory.upload(places), found.below[free + logged : end])
        return logged

    def _log(self, slots: Slots, here: SlotContents) -> None:
        self.evictor.reserve(int(np.count_nonzero(here.dirty)))
        dirty = self.evictor.log_dirty(slots, here)
        self.counters.count_evictions(len(slots), dirty)
        self.device.slots.mark(self.slots.memory, slots[here.dirty], dirty=False)
        self.evictor.dirty_max -= dirty

    def _move(self, found: Missing, slots: Array, plan: _Plan, score: int | None) -> None:
        one, two, level_two = self.slots, self.level_two.slots, self.level_two
        up, down = plan.first_up, plan.first_down
        keys, below = found.keys[plan.first :], found.below[plan.first :]
        come, come_keys = plan.slots[up:], keys[up:]
        level_two.scores.tick()
        left_keys = self.levels.exchange(
            one.memory, two.memory, plan.slots, below, keys, up, down, score or 0,
            level_two.scores.first_score,
        )  # fmt: skip
        self.finder.moves += 1
        level_two.finder.moves += 1
        one.index.exchange(left_keys[down:], come_keys, come, one.memory, one.count)
        sunk = down + plan.logged
        two.index.exchange(come_keys, left_keys[sunk:], below[sunk:], two.memory, two.count)
        self.device.keys.set_slots(slots, found.places[found.absent :], come)
        if score is None:
            self.pins.pin_first(come)
        self.scores.admit(come, come_keys, touched=0 if score is None else len(come))
        level_two.scores.count_touches(len(left_keys) - sunk)
        one.free(plan.left)
        if down:  # rows that came up to free slots left slots that no victim takes
            two.free(self.device.memory.download(below[:down]))
        self._count(found, plan, len(come), len(left_keys) - sunk)
        if self.risen is not None and found.dirty:
            here = self.device.slots.read_slots(one.memory, come)()
            self.risen.append(here.keys[here.dirty])

    def _count(self, found: Missing, plan: _Plan, came: int, sunk: int) -> None:
        self.counters.misses_host += came
        self.counters.evictions_host += sunk
        self.evictor.dirty_max += found.dirty - plan.dirty_down
        self.level_two.evictor.dirty_max += plan.dirty_down - found.dirty
