"""Scores of a pool's slots, and victims in order of score.

The **clock** counts calls (and parts of calls). Every row that a call touches gets the call's
clock, once, however often its key is repeated. So a row with the current clock belongs to the
running call, and the selection of victims skips it; a call needs no pins. In the bits above the
clock a score has a **count**, which decides first; the policy defines the count (`policies.py`).

Under LFU a new row starts with the count of the row that would be evicted next, and the newest
clock. So the new row is not evicted next, however often other rows have been used. If its count
started at 1, the new row would be evicted next, and in a cache full of rows that were used twice,
two new rows would evict each other in turn.

A row that an announced step will use is *foreseen*. Its score is above the scores of all rows that
are not foreseen. Among foreseen rows the row whose next use is farthest leaves first (Belady's
order, as far as uses are known). A foreseen row keeps its count in lower bits of the score.

Victims are selected for many evictions at once, because selection reads every score. The slots of
lowest score are queued in ascending order with their scores. A queued slot whose score has changed
was touched, or contains another row by now, and is skipped. Under LRU the queue is exact: a slot
that is touched later has a higher score than all queued slots. Under other policies new rows may
have lower scores than the end of the queue, so the queue is kept short. Foreseen rows stay queued
until ranks change, or until many other rows were touched: touched rows have lower scores than all
foreseen rows, so they should leave first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, Keys
from embstore.cache.policies import Policy
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device
from embstore.device.values import Answer, Array, Batch, SlotContents, Slots
from embstore.score import CLOCK_BITS, COUNT_KEEP, COUNT_NONE, COUNT_UP, FORESEEN, PIN_ONE

_LOOKED_AT = 64
_LOWERED_SHARE = 64
"""Foreseen rows stay queued until one in this many slots has been touched."""
_DIGIT_BITS = 16
_SPARE_SHARE, _SPARE_LEAST = 8, 8
"""To get n victims, n + n / 8 + 8 queued slots are read, since some of them have changed."""

Victims = tuple[Slots, SlotContents]
"""The slots of victims, and their contents."""
Levels = Callable[[Keys], NDArray[np.int64]]
"""A function that returns the levels of row keys; a level fits into the count of a score."""


@dataclass
class Scores:
    """Scores and victims of one pool. Engine thread only."""

    device: Device
    slots: PoolSlots
    policy: Policy
    levels: Levels
    clock: int = 0
    _queue: Slots = field(default_factory=lambda: np.empty(0, np.int64))
    _queued_scores: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _next: int = 0
    _touches: int = 0
    _lowered: int = 0  # rows that may have lower scores than queued foreseen rows

    def set_policy(self, policy: Policy) -> None:
        """Change the eviction policy; earlier touches no longer count."""
        self.policy, self._touches = policy, 0
        self.forget()

    @property
    def first_score(self) -> int:
        """The score of a new row that the running call touches."""
        return self.clock | (self.policy.counting == COUNT_UP) << CLOCK_BITS

    def begin_call(self, slots: Array | Slots, touched: int) -> int:
        """Begin a call, or a part of a call, that uses `slots`, of which `touched` are not -1.
        Return the score of a new row that the call touches."""
        self.clock += 1
        score = self.first_score
        self.touch(slots, touched)
        return score

    def tick(self) -> None:
        """Begin a call, or a part of a call: slots touched before can be evicted again."""
        self.clock += 1

    def touch(self, slots: Array | Slots, touched: int) -> None:
        """Give the running call's clock to the slots that the call uses; `touched` of the slots are
        not -1."""
        self.count_touches(touched)
        self.device.slots.touch(self.slots.memory, slots, self.clock, self.policy.counting)

    def begin_touch(self, slots: Array, batch: Batch) -> None:
        """Queue a touch of the slots that are being searched for a batch. If a key of the batch
        turns out to be missing, the touch has no effect; if not, the caller calls
        `count_touches`."""
        memory = self.slots.memory
        self.device.slots.touch(memory, slots, self.clock, self.policy.counting, batch)

    def protect(self, slots: Array, batch: Batch) -> None:
        """Begin a call as `tick` does, and protect the slots found for a batch that is not
        synchronized yet, so that they are no victims of the call. The counts of the slots do not
        change."""
        self.clock += 1
        memory = self.slots.memory
        self.device.slots.touch(memory, slots, self.clock, COUNT_KEEP, batch, always=True)

    def count_touches(self, touched: int) -> None:
        """Add to the number of touched slots. If the policy requires it now, halve the counts of
        all slots."""
        self._lowered += touched
        self._touches += touched
        ageing = self.policy.ageing_touches
        if ageing and self._touches >= ageing * self.slots.count:
            self.device.slots.age_scores(self.slots.memory, self.slots.count)
            self._touches = 0
            self.forget()

    def admit(self, slots: Array | Slots, keys: Array | Keys, *, touched: int = 0) -> None:
        """Set the counts of slots that were just given to rows. The running call touches `touched`
        of the slots, which have `first_score`; the other slots are pending.

        New rows get the count of the next victim only if no slot is free; otherwise no row is about
        to leave.
        """
        if touched:
            self.count_touches(touched)
        if self.policy.has_levels:
            self.rank_again(slots, keys)
        elif self.policy.counts_touches and not self.slots.free_count:
            count = self._least_count()
            if count > 1:
                self.device.slots.set_counts(self.slots.memory, slots, np.full(len(keys), count))

    def seed(self, slots: Array | Slots, counts: NDArray[np.int64], accesses: float) -> None:
        """If the policy counts touches, give rows the counts that their profile predicts."""
        if self.policy.counts_touches:
            touches = self.policy.first_counts(counts, accesses, self.slots.count)
            self.device.slots.set_counts(self.slots.memory, slots, touches)
            self.forget()

    def rank_again(self, slots: Array | Slots, keys: Array | Keys) -> None:
        """Set the counts of rows to their levels; the level of a row without a profile is 0."""
        levels = self.levels(self.device.memory.download(keys))
        self.device.slots.set_counts(self.slots.memory, slots, levels)

    def foresee(self, slots: Array | Slots, ranks: NDArray[np.int64]) -> None:
        """Score slots by the ranks of their rows' next uses. With the rank NO_USE, a foreseen slot
        is scored as if touched now; see `DeviceSlots.foresee`."""
        self._lowered = self.slots.count
        self.device.slots.foresee(self.slots.memory, slots, ranks, self.clock)

    def forget(self) -> None:
        """Drop the queue, because many scores or slots have changed."""
        self._queue, self._next = np.empty(0, np.int64), 0
        self._queued_scores = np.empty(0, np.int64)

    def victims(self, count: int, begun: Answer[Victims] | None = None) -> Victims:
        """Return the `count` resident slots of lowest score that the running call has not touched,
        with their contents.

        begun : the result of `ask_victims` for the same count; `ask_victims` was called in this
            call, after all touches of the call
        """
        found: list[Victims] = []
        while count > 0:
            answer = self.ask_victims(count) if begun is None else begun
            begun = None
            slots, here = answer()
            assert len(self._queue), "a call was given more rows than there are slots"
            # The slots stay resident for now: the next search must not find them again.
            self.device.slots.touch(self.slots.memory, slots, self.clock, COUNT_NONE)
            found.append((slots, here))
            count -= len(slots)
        if len(found) == 1:
            return found[0]
        return np.concatenate([s for s, _ in found]), SlotContents.joined([h for _, h in found])

    def _least_count(self) -> int:
        """Return the count of the next victim, or 0 if there is no victim or the victim is
        foreseen."""
        while True:
            if self._next == len(self._queue):
                self._search(0)()
                if not len(self._queue):
                    return 0
            begin = self._next
            slots, here = self._ask(_LOOKED_AT)()
            if len(slots):
                first = np.flatnonzero(self._queue[begin : self._next] == slots[0])[0]
                self._next = begin + int(first)
                score = int(here.scores[0])
                return 0 if score & FORESEEN else score >> CLOCK_BITS

    def ask_victims(self, count: int, *, with_rows: bool = False) -> Answer[Victims]:
        """Request up to `count` slots of the queue that are unchanged since they were queued.

        The caller calls the returned answer to get these slots. The call removes these slots, and
        the slots before them, from the queue.

        with_rows : as in `DeviceSlots.read_slots`
        """
        last = self._next + _seen(count)
        # Reading too few slots at first would make the host wait a second time.
        is_short = len(self._queue) < last
        is_old = self._lowered > self.slots.count // _LOWERED_SHARE
        if is_short or (is_old and self._queued_scores[last - 1] >= FORESEEN):
            return self._search(count, with_rows=with_rows)
        return self._ask(count, with_rows=with_rows)

    def highest_of(self, count: int) -> int:
        """Return the highest score of the next `count` victims, or PIN_ONE if there are fewer
        victims. The queue keeps these victims."""
        queue, begin = self._queue, self._next
        slots, here = self.ask_victims(count)()
        if len(slots) < count and self._queue is queue:  # many queued slots had changed
            slots, here = self._search(count)()
        self._next = begin if self._queue is queue else 0
        return int(here.scores[-1]) if len(slots) == count else PIN_ONE

    def _ask(self, count: int, *, with_rows: bool = False) -> Answer[Victims]:
        """Request the next `count` unchanged slots of the queue, with their contents. More than
        `count` slots are read, since some of them have changed."""
        queue, begin = self._queue, self._next
        seen = slice(begin, begin + _seen(count))
        slots, scores = queue[seen], self._queued_scores[seen]
        contents = self.device.slots.read_slots(self.slots.memory, slots, with_rows=with_rows)

        def answer() -> Victims:
            assert self._queue is queue and self._next == begin, "another one has taken victims"
            now = contents()
            chosen = np.flatnonzero((now.scores == scores) & (now.keys != EMPTY_KEY))[:count]
            self._next += int(chosen[-1]) + 1 if len(chosen) == count else len(slots)
            return slots[chosen], now.of(chosen)

        return answer

    def _search(self, count: int, *, with_rows: bool = False) -> Answer[Victims]:
        """Request the slots of lowest score. Calling the returned answer puts these slots into the
        queue, and returns the first `count` of them."""
        forgotten, slot_count = self._queue, self.slots.count
        policy = self.policy
        longest = max(policy.queued_calls * count, slot_count // policy.queue_share, 1)
        wanted = max(count, min(longest, slot_count))
        selected = self.device.slots.select_victims(
            self.slots.memory, slot_count, self.clock, wanted, count, with_rows=with_rows
        )

        self._lowered = 0

        def answer() -> Victims:
            assert self._queue is forgotten, "another one has queued victims"
            found = selected()
            order = ascending(found.scores)
            self._queue, self._queued_scores = found.slots[order], found.scores[order]
            self._next = min(count, len(order))
            slots = self._queue[:count]
            return slots, found.contents(slots)

        return answer


def _seen(count: int) -> int:
    """Return how many queued slots are read in order to get `count` victims."""
    return count + count // _SPARE_SHARE + _SPARE_LEAST


def ascending(scores: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of scores >= 0 in ascending order of score; the sort is stable.

    Scores are sorted by digits of 16 bits, the lowest digit first; NumPy sorts such digits with a
    radix sort. A digit that is equal in all scores is skipped, as most digits of a clock are.
    """
    order = np.arange(len(scores))
    differing = int(np.bitwise_or.reduce(scores ^ scores[:1]))
    for shift in range(0, differing.bit_length(), _DIGIT_BITS):
        if differing >> shift & ((1 << _DIGIT_BITS) - 1):
            digits = (scores[order] >> shift).astype(np.uint16)
            order = order[np.argsort(digits, kind="stable")]
    return order
