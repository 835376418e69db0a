"""Eviction policies: a score for each slot, and victims in order of score.

The **clock** counts calls (and parts of calls): every row that a call touches gets the call's
clock, once, however often its key is repeated. A row of the running call therefore has the current
clock, and is no victim while the call runs; a call needs no other pins. Above the clock a score has
a **count**, which decides first:

    lru    0
    lfu    calls that touched the row since it came
    rank   the level of the row's profiled frequency (levels.py), which it brings along

LFU ages: after `AGEING_TOUCHES` touches for every slot all counts are halved, so a set that was hot
leaves after a few halvings (a count of 1,000 is worth nothing after ten). A row that comes starts
with the count of the row that would be the next to leave, and the newest clock: it is never the
next one itself, however often the rows around it have been used. Counting from 1, it would be, and
two new rows in turn would push each other out of a cache full of rows used twice.

Rank takes no notice of what is used now, but among rows of one level the one used longest ago
leaves first; rows without a profile are of level 0. It needs no bookkeeping on the device.

Victims are selected for many evictions at once, because selection reads every score: the slots of
lowest score are queued in ascending order with their scores. A queued slot whose score has changed
was touched, or is another row's by now, and is passed over. Under LRU the queue is exact: whatever
is touched later scores above everything in it. Elsewhere new rows may undercut the end of the
queue; it is kept short instead.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.device.base import Array, Device, SlotMemory, Slots
from embstore.kernels.slots import (
    CLOCK_BITS,
    COUNT_KEEP,
    COUNT_NONE,
    COUNT_UP,
    FORESEEN,
)

POLICIES = ("lru", "lfu", "rank")
AGEING_TOUCHES = 10
_COUNTING = {"lru": COUNT_NONE, "lfu": COUNT_UP, "rank": COUNT_KEEP}
_QUEUE_SHARES = {"lru": 8, "lfu": 64, "rank": 64}
"""One slot in so many is queued at a time: at 64, that many scores are read for one victim."""
_LOOKED_AT = 64

Levels = Callable[[Keys], NDArray[np.int64]]
"""Returns the levels of row keys, which fit a count."""


@dataclass
class Policy:
    """Scores and victims of one pool, whose slots `memory` holds. Engine thread only."""

    device: Device
    memory: SlotMemory
    name: str
    levels: Levels
    is_foreseeing: bool = False
    """Whether slots may be FORESEEN, which have no levels."""
    clock: int = 0
    _queue: Slots = field(default_factory=lambda: np.empty(0, np.int64))
    _queued_scores: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _next: int = 0
    _touches: int = 0

    def tick(self) -> None:
        """Begin a call, or a part of one: what was touched before may be evicted again."""
        self.clock += 1

    def touch(self, slots: Array | Slots, touched: int, slot_count: int) -> None:
        """Score slots that the running call uses; `touched` of them are not -1."""
        self.device.touch(self.memory, slots, self.clock, _COUNTING[self.name])
        self._touches += touched
        if self.name == "lfu" and self._touches >= AGEING_TOUCHES * slot_count:
            self.device.age_scores(self.memory, slot_count)
            self._touches = 0
            self.forget()

    def admit(self, slots: Slots, keys: Keys, slot_count: int, *, is_full: bool) -> None:
        """Score slots that were just given to rows, and are touched by the running call or pending.

        is_full : whether there is no other free slot, so that the next row to come has a victim
        """
        if self.name == "rank":
            self.device.set_counts(self.memory, slots, self.levels(keys))
        elif self.name == "lfu" and is_full and (count := self._least_count(slot_count)) > 1:
            self.device.set_counts(self.memory, slots, np.full(len(keys), count))

    def seed(self, slots: Array | Slots, counts: NDArray[np.int64]) -> None:
        """Give rows the touches that LFU would have counted; other policies take no notice."""
        if self.name == "lfu":
            self.device.set_counts(self.memory, slots, counts)
            self.forget()

    def rank_again(self, slots: Array | Slots, keys: Keys) -> None:
        """Give rows their levels where something else has taken their place, or they changed."""
        if self.name == "rank":
            self.device.set_counts(self.memory, slots, self.levels(keys))

    def foresee(self, slots: Array | Slots, scores: NDArray[np.int64]) -> None:
        """Have slots leave by their next use; see `Device.foresee`."""
        self.is_foreseeing = True
        self.device.foresee(self.memory, slots, scores)

    def forget_foreseen(self, slot_count: int) -> None:
        """Have no slot leave by its next use any more."""
        self.is_foreseeing = False
        self.device.forget_foreseen(self.memory, slot_count)
        self.forget()

    @property
    def has_lost_levels(self) -> bool:
        """Whether rows that are touched may have lost their levels to a rank by next use."""
        return self.name == "rank" and self.is_foreseeing

    def forget(self) -> None:
        """Drop the queue: scores or slots have changed wholesale."""
        self._queue, self._next = np.empty(0, np.int64), 0
        self._queued_scores = np.empty(0, np.int64)

    def victims(self, count: int, slot_count: int) -> Slots:
        """Return `count` resident slots of lowest score that the running call has not touched."""
        found: list[Slots] = []
        while count:
            if self._next == len(self._queue):
                self._refill(count, slot_count)
                assert len(self._queue), "a call was given more rows than there are slots"
            slots, _ = self._from_queue(count)
            # Still resident: the next refill must not find them again.
            self.device.touch(self.memory, slots, self.clock, COUNT_NONE)
            found.append(slots)
            count -= len(slots)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _least_count(self, slot_count: int) -> int:
        """Return the count of the next victim; 0: there is none, or it is foreseen."""
        while True:
            if self._next == len(self._queue):
                self._refill(1, slot_count)
                if not len(self._queue):
                    return 0
            begin = self._next
            slots, scores = self._from_queue(_LOOKED_AT)
            if len(slots):
                first = np.flatnonzero(self._queue[begin : self._next] == slots[0])[0]
                self._next = begin + int(first)
                return 0 if scores[0] & FORESEEN else int(scores[0]) >> CLOCK_BITS

    def _from_queue(self, count: int) -> tuple[Slots, NDArray[np.int64]]:
        """Take up to `count` slots from the queue; return those that are still what was queued."""
        slots = self._queue[self._next : self._next + count]
        scores = self._queued_scores[self._next : self._next + count]
        self._next += len(slots)
        now = self.device.read_slots(self.memory, slots)
        unchanged = (now.scores == scores) & (now.keys >= 0)
        return slots[unchanged], scores[unchanged]

    def _refill(self, count: int, slot_count: int) -> None:
        wanted = max(count, slot_count // _QUEUE_SHARES[self.name])
        slots, scores = self.device.select_victims(self.memory, slot_count, self.clock, wanted)
        order = np.argsort(scores, kind="stable")
        self._queue, self._next = slots[order], 0
        self._queued_scores = scores[order]
