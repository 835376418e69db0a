"""Slots on a GPU: their keys, scores and flags, and the search for victims."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.device.base import Answer, Batch, SlotContents, Slots
from embstore.device.gpu_work import LANES, NULL, GpuWork, findings_of
from embstore.device.runtime import Argument, DeviceArray
from embstore.device.slabs import Slabs
from embstore.device.staging import LARGE_BYTES
from embstore.device.threshold import find_threshold
from embstore.kernels.select_victims import BINS

_RANGE_SLOTS = 4096
"""That a block counts, or collects victims of."""
_SLOTS_READ_MAX = 1 << 20


class GpuSlots:
    """The `DeviceSlots` of a GPU."""

    def __init__(self, work: GpuWork) -> None:
        self._work = work

    def _launch(self, kernel: str, items: int, memory: Slabs, *arguments: Argument) -> None:
        self._work.launch(kernel, items, *memory.rows.arguments, *arguments)

    def place_keys(self, memory: Slabs, slots: Slots, keys: Keys, score: int) -> None:
        n = len(slots)
        if n:
            d_slots, d_keys = self._work.send(slots, keys)
            self._launch("place_keys", n, memory, d_slots, d_keys, np.int64(n), np.int64(score))

    def arrive(self, memory: Slabs, slots: Slots) -> None:
        self._over_slots("arrive", memory, slots)

    def count_pending(self, memory: Slabs, slots: DeviceArray) -> int:
        return self._count_over_slots("count_pending", memory, slots)()

    def clear_slots(self, memory: Slabs, slots: Slots) -> None:
        self._over_slots("clear_slots", memory, slots)

    def mark(self, memory: Slabs, slots: DeviceArray | Slots, *, dirty: bool) -> None:
        self._over_slots("mark", memory, slots, np.int32(dirty))

    def _over_slots(
        self,
        kernel: str,
        memory: Slabs,
        slots: DeviceArray | Slots,
        *rest: Argument,
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        n = len(slots)
        if n:
            d_slots = self._work.resident(slots)
            d_numbers = () if numbers is None else (self._work.upload(numbers),)
            self._launch(kernel, n, memory, d_slots, *d_numbers, np.int64(n), *rest)

    def _count_over_slots(
        self, kernel: str, memory: Slabs, slots: DeviceArray | Slots, *rest: Argument
    ) -> Answer[int]:
        if len(slots) == 0:
            return lambda: 0
        (count,) = self._work.send_numbers([0])
        self._over_slots(kernel, memory, slots, *rest, count)
        counted = self._work.ask(count)
        return lambda: int(counted()[0])

    def read_slots(
        self, memory: Slabs, slots: Slots, *, with_rows: bool = False
    ) -> Answer[SlotContents]:
        is_small = len(slots) * memory.rows.layout.row_bytes < LARGE_BYTES
        return self._read(memory, len(slots), slots, 0, with_rows=with_rows and is_small)

    def read_range(self, memory: Slabs, low: int, high: int) -> SlotContents:
        begins = range(low, max(high, low + 1), _SLOTS_READ_MAX)
        return SlotContents.joined(
            [self._read(memory, min(_SLOTS_READ_MAX, high - b), None, b)() for b in begins]
        )

    def _read(
        self, memory: Slabs, n: int, slots: Slots | None, first: int, *, with_rows: bool = False
    ) -> Answer[SlotContents]:
        """Return what is in n slots: those named, or those from `first` on."""
        layout, of_rows = memory.rows.layout, n if with_rows else 0
        rows = np.empty((of_rows, layout.stride), layout.element)
        keys, scores, dirty = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.bool_)
        outs = [rows, keys, scores, dirty]  # rows first: they begin at 16
        together = self._work.scratch.take(sum(out.nbytes for out in outs), np.uint8)
        bounds = np.cumsum([0, *(out.nbytes for out in outs)]).tolist()
        parts = [together[low:high] for low, high in pairwise(bounds)]
        d_contents = [p.view(out.dtype) for p, out in zip(parts[1:], outs[1:], strict=True)]
        if n:
            d_slots = NULL if slots is None else self._work.upload(slots)
            named = d_slots, np.int64(first), np.int64(n)
            self._launch("read_slots", n, memory, *named, *d_contents)
            if with_rows:
                d_rows = parts[0].view(layout.element, width=layout.stride)
                self._launch("gather_rows", n * LANES, memory, d_slots, np.int64(n), d_rows)
        end = self._work.ask_together(parts, outs)

        def answer() -> SlotContents:
            end()
            return SlotContents(keys, scores, dirty, rows if with_rows else None)

        return answer

    def touch(
        self,
        memory: Slabs,
        slots: DeviceArray | Slots,
        clock: int,
        counting: int,
        batch: Batch | None = None,
    ) -> None:
        findings = findings_of(batch) if batch is not None else None
        self._over_slots(
            "touch", memory, slots, np.int64(clock), np.int32(counting),
            NULL if findings is None else findings,
        )  # fmt: skip

    def set_counts(
        self, memory: Slabs, slots: DeviceArray | Slots, counts: NDArray[np.int64]
    ) -> None:
        self._over_slots("set_counts", memory, slots, numbers=counts)

    def age_scores(self, memory: Slabs, slot_count: int) -> None:
        if slot_count:
            self._launch("age_scores", slot_count, memory, np.int64(slot_count))

    def pin(self, memory: Slabs, slots: DeviceArray | Slots) -> Answer[int]:
        return self._count_over_slots("add_pins", memory, slots, np.int64(1))

    def unpin(self, memory: Slabs, slots: DeviceArray | Slots) -> Answer[int]:
        return self._count_over_slots("add_pins", memory, slots, np.int64(-1))

    def foresee(self, memory: Slabs, slots: DeviceArray | Slots, scores: NDArray[np.int64]) -> None:
        self._over_slots("foresee", memory, slots, numbers=scores)

    def forget_foreseen(self, memory: Slabs, slot_count: int) -> None:
        if slot_count:
            self._launch("forget_foreseen", slot_count, memory, np.int64(slot_count))

    def select_victims(
        self, memory: Slabs, slot_count: int, clock: int, count: int
    ) -> tuple[Slots, NDArray[np.int64]]:
        if slot_count == 0 or count == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        candidates = _Candidates(self._work, memory, slot_count, clock)
        wanted, threshold, ties = find_threshold(candidates, count)
        return candidates.collect(threshold, wanted, ties)


@dataclass
class _Candidates:
    """The scores of the slots that a clock has not touched, as `find_threshold` counts them."""

    work: GpuWork
    memory: Slabs
    slot_count: int
    clock: int

    @property
    def _slots(self) -> tuple[Argument, ...]:
        count, clock = np.int64(self.slot_count), np.int64(self.clock)
        return *self.memory.rows.arguments, count, clock

    def extent(self, floor: int, ceiling: int) -> tuple[int, int, int]:
        (result,) = self.work.send_numbers([0, ceiling, floor])
        self.work.launch(
            "score_range", self.slot_count, *self._slots, np.int64(floor), np.int64(ceiling), result
        )
        count, lowest, highest = self.work.download(result).tolist()
        return count, lowest, highest

    def bins(self, floor: int, ceiling: int, shift: int) -> NDArray[np.int64]:
        bins = self.work.scratch.take(BINS, np.int64)
        self.work.runtime.fill(bins, 0)
        self.work.launch(
            "count_scores", self.slot_count, *self._slots, np.int64(floor), np.int64(ceiling),
            np.int32(shift), bins,
        )  # fmt: skip
        return self.work.download(bins)

    def collect(self, threshold: int, wanted: int, ties: int) -> tuple[Slots, NDArray[np.int64]]:
        """Return the victims, ascending, and their scores."""
        work, blocks = self.work, -(-self.slot_count // _RANGE_SLOTS)
        arguments = (*self._slots, np.int64(threshold), np.int64(_RANGE_SLOTS))
        d_counts = work.scratch.take(2 * blocks, np.int64)
        below, at = d_counts[:blocks], d_counts[blocks:]
        work.runtime.launch("count_victims", blocks, *arguments, below, at)
        counts = work.download(d_counts)
        before = work.send(_exclusive(counts[:blocks]), _exclusive(counts[blocks:]))
        found = work.scratch.take(2 * wanted, np.int64)
        victims, scores = found[:wanted], found[wanted:]
        work.runtime.launch(
            "collect_victims", blocks, *arguments, *before, np.int64(ties), victims, scores
        )
        on_host = work.download(found)
        return on_host[:wanted], on_host[wanted:]


def _exclusive(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(counts) - counts
