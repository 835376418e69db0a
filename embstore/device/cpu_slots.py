"""Slots on the CPU: their keys, scores and flags, and the search for victims."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.device.cpu_memory import CpuSlotMemory
from embstore.device.cpu_work import CpuWork
from embstore.device.threshold import find_threshold
from embstore.device.values import Answer, Batch, Selected, SlotContents, Slots
from embstore.kernels import scores as score_kernels
from embstore.kernels import select_victims as victim_kernels
from embstore.kernels import slots as slot_kernels

_SLOT_READ_BYTES = 16
"""Bytes that counting scores reads per slot: score and key."""


class CpuSlots:
    """The `DeviceSlots` of the CPU."""

    def __init__(self, work: CpuWork) -> None:
        self._work = work

    def place_keys(self, memory: CpuSlotMemory, slots: Slots, keys: Keys, score: int) -> None:
        slot_kernels.place_keys(memory.keys, memory.scores, memory.dirty, slots, keys, score)

    def arrive(self, memory: CpuSlotMemory, slots: Slots) -> None:
        score_kernels.arrive(memory.scores, slots)

    def count_pending(self, memory: CpuSlotMemory, slots: Slots) -> int:
        return score_kernels.count_pending(memory.scores, slots)

    def clear_slots(self, memory: CpuSlotMemory, slots: Slots) -> None:
        slot_kernels.clear_slots(memory.keys, memory.dirty, slots)

    def mark(self, memory: CpuSlotMemory, slots: Slots, *, dirty: bool) -> None:
        memory.dirty[slots] = dirty

    def read_slots(
        self, memory: CpuSlotMemory, slots: Slots, *, with_rows: bool = False
    ) -> Answer[SlotContents]:
        found = SlotContents(memory.keys[slots], memory.scores[slots], memory.dirty[slots] != 0)
        return lambda: found

    def read_range(self, memory: CpuSlotMemory, low: int, high: int) -> SlotContents:
        dirty = memory.dirty[low:high].view(np.bool_)
        return SlotContents(memory.keys[low:high], memory.scores[low:high], dirty)

    def touch(
        self,
        memory: CpuSlotMemory,
        slots: Slots,
        clock: int,
        counting: int,
        batch: Batch | None = None,
        *,
        always: bool = False,
    ) -> None:
        score_kernels.touch(memory.scores, slots, clock, counting)

    def set_counts(self, memory: CpuSlotMemory, slots: Slots, counts: NDArray[np.int64]) -> None:
        score_kernels.set_counts(memory.scores, slots, counts)

    def age_scores(self, memory: CpuSlotMemory, slot_count: int) -> None:
        score_kernels.age_scores(memory.scores[:slot_count])

    def pin(self, memory: CpuSlotMemory, slots: Slots) -> Answer[int]:
        count = score_kernels.add_pins(memory.scores, slots, 1)
        return lambda: count

    def unpin(self, memory: CpuSlotMemory, slots: Slots) -> Answer[int]:
        count = score_kernels.add_pins(memory.scores, slots, -1)
        return lambda: count

    def foresee(
        self, memory: CpuSlotMemory, slots: Slots, ranks: NDArray[np.int64], clock: int
    ) -> None:
        score_kernels.foresee(memory.scores, slots, ranks, clock)

    def select_victims(
        self,
        memory: CpuSlotMemory,
        slot_count: int,
        clock: int,
        count: int,
        first: int = 0,
        *,
        with_rows: bool = False,
    ) -> Answer[Selected]:
        scores, slot_keys = memory.scores[:slot_count], memory.keys[:slot_count]
        candidates = _Candidates(self._work, scores, slot_keys, clock)
        wanted, threshold, ties = find_threshold(candidates, count)
        victims = np.empty(wanted, np.int64)
        if wanted:
            victim_kernels.collect_victims(
                scores, slot_keys, clock, threshold, wanted, ties, victims
            )
        found = Selected(victims, scores[victims], lambda slots: self.read_slots(memory, slots)())
        return lambda: found


@dataclass
class _Candidates:
    """The scores of the slots that can be victims, counted as `find_threshold` requires. Slots that
    the call of a clock has touched are left out."""

    work: CpuWork
    scores: NDArray[np.int64]
    slot_keys: Keys
    clock: int

    def extent(self, floor: int, ceiling: int) -> tuple[int, int, int]:
        def count(low: int, high: int) -> NDArray[np.int64]:
            result = np.empty(3, np.int64)
            victim_kernels.score_range(
                self.scores, self.slot_keys, self.clock, floor, ceiling, result, low, high
            )
            return result

        ranges = self.work.ranges(len(self.scores), _SLOT_READ_BYTES)
        parts = np.array(self.work.run(count, ranges))
        return int(parts[:, 0].sum()), int(parts[:, 1].min()), int(parts[:, 2].max())

    def bins(self, floor: int, ceiling: int, shift: int) -> NDArray[np.int64]:
        def count(low: int, high: int) -> NDArray[np.int64]:
            bins = np.empty(victim_kernels.BINS, np.int64)
            victim_kernels.count_scores(
                self.scores, self.slot_keys, self.clock, floor, ceiling, shift, bins, low, high
            )
            return bins

        ranges = self.work.ranges(len(self.scores), _SLOT_READ_BYTES)
        total = np.zeros(victim_kernels.BINS, np.int64)
        for bins in self.work.run(count, ranges):
            total += bins
        return total
