"""Eviction policies: a score for each slot, and victims in order of score.

The **clock** counts calls (and parts of calls): every row that a call touches gets the call's
clock, once, however often its key is repeated. A row of the running call therefore has the current
clock, and is no victim while the call runs; a call needs no other pins.

    lru   score = clock
    lfu   score = count << 40 | clock: calls since the row came, then how recently

LFU ages: after `AGEING_TOUCHES` touches for every slot all counts are halved, so a set that was hot
leaves after a few halvings (a count of 1,000 is worth nothing after ten). A new row has count 1 and
the newest clock, so among rows touched once the oldest goes first.

Victims are selected for many evictions at once, because selection reads every score: the slots of
lowest score are queued in ascending order with their scores. A queued slot whose score has changed
was touched, or is another row's by now, and is passed over. Under LRU the queue is exact: whatever
is touched later scores above everything in it. Under LFU new rows may undercut the end of the
queue; it is kept short instead.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embstore.device.base import Array, Device, SlotMemory, Slots

POLICIES = ("lru", "lfu")
AGEING_TOUCHES = 10
_LRU_QUEUE_SHARE = 8
_LFU_QUEUE_SHARE = 64
"""One slot in so many is queued at a time: at 64, that many scores are read for one victim."""


@dataclass
class Policy:
    """Scores and victims of one pool, whose slots `memory` holds. Engine thread only."""

    device: Device
    memory: SlotMemory
    lfu: bool
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
        self.device.touch(self.memory, slots, self.clock, lfu=self.lfu)
        self._touches += touched
        if self.lfu and self._touches >= AGEING_TOUCHES * slot_count:
            self.device.age_scores(self.memory, slot_count)
            self._touches = 0
            self.forget()

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
            slots = self._queue[self._next : self._next + count]
            scores = self._queued_scores[self._next : self._next + count]
            self._next += len(slots)
            now = self.device.read_slots(self.memory, slots)
            slots = slots[(now.scores == scores) & (now.keys >= 0)]
            # Still resident: the next refill must not find them again.
            self.device.touch(self.memory, slots, self.clock, lfu=False)
            found.append(slots)
            count -= len(slots)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _refill(self, count: int, slot_count: int) -> None:
        share = _LFU_QUEUE_SHARE if self.lfu else _LRU_QUEUE_SHARE
        wanted = max(count, slot_count // share)
        slots, scores = self.device.select_victims(self.memory, slot_count, self.clock, wanted)
        assert len(slots), "a call was given more rows than there are slots"
        order = np.argsort(scores, kind="stable")
        self._queue, self._next = slots[order], 0
        self._queued_scores = scores[order]
