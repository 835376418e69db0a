"""Slots on a GPU: their memory in slabs, what is in them, their scores, and victims."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.device.base import SlotContents, Slots
from embstore.device.gpu_launch import Launches
from embstore.device.runtime import Argument, DeviceArray
from embstore.device.slabs import METADATA_BYTES, SlabRows, Slabs, allocated_bytes
from embstore.device.threshold import find_threshold
from embstore.kernels.select_victims import BINS

_RANGE_SLOTS = 4096
"""That a block counts, or collects victims of."""
_SLOTS_READ_MAX = 1 << 20


class SlotVerbs(Launches):
    """The verbs of the Device protocol over slots."""

    slab_bytes_max = 128 << 20

    def slab_slots(self, wanted: int) -> int:
        return 1 << (wanted.bit_length() - 1)

    def slot_bytes(self, slab_slots: int, row_bytes: int) -> int:
        size = allocated_bytes(slab_slots * (row_bytes + METADATA_BYTES))
        return -(-size // slab_slots)

    def allocate_slots(self, stride: int) -> Slabs:
        table = self.scratch.plain(16, np.uint64)
        return Slabs(self.runtime, self.scratch, SlabRows(table, 0, stride))

    def reserve_slots(
        self, memory: Slabs, slot_count: int, slots_max: int, slab_slots: int
    ) -> None:
        memory.reserve(slab_slots)

    def add_slots(self, memory: Slabs, low: int, high: int) -> None:
        if high == low:
            return
        memory.add((high - low) >> memory.rows.shift)
        self.launch(
            "clear_range", high - low, *memory.rows.arguments, np.int64(low), np.int64(high)
        )

    def drop_slots(self, memory: Slabs, low: int, high: int) -> None:
        if self.is_lost:
            return
        self.wait()
        memory.drop((high - low) >> memory.rows.shift)

    def place_keys(self, memory: Slabs, slots: Slots, keys: Keys) -> None:
        n = len(slots)
        if n:
            d_slots, d_keys = self.send(slots, keys)
            self.launch("place_keys", n, *memory.rows.arguments, d_slots, d_keys, np.int64(n))

    def place_pending(self, memory: Slabs, slots: Slots, keys: Keys) -> None:
        n = len(slots)
        if n:
            d_slots, d_keys = self.send(slots, keys)
            self.launch("place_pending", n, *memory.rows.arguments, d_slots, d_keys, np.int64(n))

    def arrive(self, memory: Slabs, slots: Slots) -> None:
        self._over_slots("arrive", memory, slots)

    def count_pending(self, memory: Slabs, slots: DeviceArray) -> int:
        return self._count_over_slots("count_pending", memory, slots)

    def clear_slots(self, memory: Slabs, slots: Slots) -> None:
        self._over_slots("clear_slots", memory, slots)

    def mark(self, memory: Slabs, slots: DeviceArray | Slots, *, dirty: bool) -> None:
        self._over_slots("mark_dirty" if dirty else "mark_clean", memory, slots)

    def _over_slots(self, kernel: str, memory: Slabs, slots: DeviceArray | Slots) -> None:
        n = len(slots)
        if n:
            self.launch(kernel, n, *memory.rows.arguments, self.resident(slots), np.int64(n))

    def _count_over_slots(self, kernel: str, memory: Slabs, slots: DeviceArray | Slots) -> int:
        n = len(slots)
        if n == 0:
            return 0
        (count,) = self.send(np.zeros(1, np.int64))
        self.launch(kernel, n, *memory.rows.arguments, self.resident(slots), np.int64(n), count)
        return int(self.download(count)[0])

    def read_slots(self, memory: Slabs, slots: Slots) -> SlotContents:
        n = len(slots)
        d_contents = self._contents(n)
        if n:
            d_slots = self.upload(slots)
            self.launch("read_slots", n, *memory.rows.arguments, d_slots, np.int64(n), *d_contents)
        return self._on_host(d_contents)

    def read_range(self, memory: Slabs, low: int, high: int) -> SlotContents:
        parts = [self._on_host(self._contents(0))]
        for begin in range(low, high, _SLOTS_READ_MAX):
            n = min(_SLOTS_READ_MAX, high - begin)
            bounds, d_contents = (np.int64(begin), np.int64(begin + n)), self._contents(n)
            self.launch("read_range", n, *memory.rows.arguments, *bounds, *d_contents)
            parts.append(self._on_host(d_contents))
        return SlotContents(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.dirty for part in parts]),
        )

    def _contents(self, n: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Return room for keys, scores and flags of n slots, one after the other."""
        together = self.scratch.take(17 * n, np.uint8)
        scores_at, dirty_at = 8 * n, 16 * n
        return (
            together[:scores_at].view(np.int64),
            together[scores_at:dirty_at].view(np.int64),
            together[dirty_at:],
        )

    def _on_host(self, d_contents: tuple[DeviceArray, DeviceArray, DeviceArray]) -> SlotContents:
        n = len(d_contents[0])
        keys, scores, dirty = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.bool_)
        self.download_together(d_contents, [keys, scores, dirty])
        return SlotContents(keys, scores, dirty)

    def touch(self, memory: Slabs, slots: DeviceArray | Slots, clock: int, counting: int) -> None:
        n = len(slots)
        if n:
            self.launch(
                "touch", n, *memory.rows.arguments, self.resident(slots), np.int64(n),
                np.int64(clock), np.int32(counting),
            )  # fmt: skip

    def set_counts(
        self, memory: Slabs, slots: DeviceArray | Slots, counts: NDArray[np.int64]
    ) -> None:
        self._with_numbers("set_counts", memory, slots, counts)

    def age_scores(self, memory: Slabs, slot_count: int) -> None:
        if slot_count:
            self.launch("age_scores", slot_count, *memory.rows.arguments, np.int64(slot_count))

    def pin(self, memory: Slabs, slots: DeviceArray | Slots) -> int:
        return self._count_over_slots("pin", memory, slots)

    def unpin(self, memory: Slabs, slots: DeviceArray | Slots) -> int:
        return self._count_over_slots("unpin", memory, slots)

    def foresee(self, memory: Slabs, slots: DeviceArray | Slots, scores: NDArray[np.int64]) -> None:
        self._with_numbers("foresee", memory, slots, scores)

    def _with_numbers(
        self,
        kernel: str,
        memory: Slabs,
        slots: DeviceArray | Slots,
        numbers: NDArray[np.int64],
    ) -> None:
        n = len(slots)
        if n:
            d_slots, d_numbers = self.resident(slots), self.upload(numbers)
            self.launch(kernel, n, *memory.rows.arguments, d_slots, d_numbers, np.int64(n))

    def forget_foreseen(self, memory: Slabs, slot_count: int) -> None:
        if slot_count:
            self.launch("forget_foreseen", slot_count, *memory.rows.arguments, np.int64(slot_count))

    def select_victims(
        self, memory: Slabs, slot_count: int, clock: int, count: int
    ) -> tuple[Slots, NDArray[np.int64]]:
        if slot_count == 0 or count == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        candidates = Candidates(self, memory, slot_count, clock)
        wanted, threshold, ties = find_threshold(candidates, count)
        return candidates.collect(threshold, wanted, ties)


@dataclass
class Candidates:
    """`Scores` of the slots that a clock has not touched."""

    device: Launches
    memory: Slabs
    slot_count: int
    clock: int

    @property
    def _slots(self) -> tuple[Argument, ...]:
        count, clock = np.int64(self.slot_count), np.int64(self.clock)
        return *self.memory.rows.arguments, count, clock

    def extent(self, floor: int, ceiling: int) -> tuple[int, int, int]:
        (result,) = self.device.send(np.array([0, ceiling, floor], np.int64))
        self.device.launch(
            "score_range", self.slot_count, *self._slots, np.int64(floor), np.int64(ceiling), result
        )
        count, lowest, highest = self.device.download(result).tolist()
        return count, lowest, highest

    def bins(self, floor: int, ceiling: int, shift: int) -> NDArray[np.int64]:
        bins = self.device.allocate(BINS, np.int64)
        self.device.runtime.fill(bins, 0)
        self.device.launch(
            "count_scores", self.slot_count, *self._slots, np.int64(floor), np.int64(ceiling),
            np.int32(shift), bins,
        )  # fmt: skip
        return self.device.download(bins)

    def collect(self, threshold: int, wanted: int, ties: int) -> tuple[Slots, NDArray[np.int64]]:
        """Return the victims, ascending, and their scores."""
        device, blocks = self.device, -(-self.slot_count // _RANGE_SLOTS)
        arguments = (*self._slots, np.int64(threshold), np.int64(_RANGE_SLOTS))
        d_counts = device.allocate(2 * blocks, np.int64)
        below, at = d_counts[:blocks], d_counts[blocks:]
        device.runtime.launch("count_victims", blocks, *arguments, below, at)
        counts = device.download(d_counts)
        before = device.send(_exclusive(counts[:blocks]), _exclusive(counts[blocks:]))
        found = device.allocate(2 * wanted, np.int64)
        victims, scores = found[:wanted], found[wanted:]
        device.runtime.launch(
            "collect_victims", blocks, *arguments, *before, np.int64(ties), victims, scores
        )
        told = device.download(found)
        return told[:wanted], told[wanted:]


def _exclusive(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(counts) - counts
