"""Slots on a GPU: their keys, scores and flags, and the search for victims."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.device.gpu_work import LANES, NULL, GpuWork, findings_of
from embstore.device.runtime import Argument, DeviceArray
from embstore.device.slabs import Slabs
from embstore.device.staging import LARGE_BYTES
from embstore.device.values import Answer, Batch, Selected, SlotContents, Slots
from embstore.kernels.select_victims import BINS, DONE, HIGHEST, STATE, VICTIMS
from embstore.score import PIN_ONE

_RANGE_SLOTS, _RANGES = 4096, 1024
"""The number of slots of a range, in which one block counts or collects victims, and the most
ranges of this size; in larger caches ranges are larger."""
_ROUNDS = 3
"""The number of rounds after which a threshold is usually found. If scores are very far apart, the
same number of rounds is queued again and again, until the threshold is found."""
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
        self,
        memory: Slabs,
        n: int,
        slots: DeviceArray | Slots | None,
        first: int,
        *,
        with_rows: bool = False,
    ) -> Answer[SlotContents]:
        """Return the contents of n slots: `slots` if given, else the slots from `first` on."""
        layout, of_rows = memory.rows.layout, n if with_rows else 0
        rows = np.empty((of_rows, layout.stride), layout.element)
        keys, scores, dirty = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.bool_)
        outs = [rows, keys, scores, dirty]  # rows come first, since they need 16-byte alignment
        together = self._work.scratch.take(sum(out.nbytes for out in outs), np.uint8)
        bounds = np.cumsum([0, *(out.nbytes for out in outs)]).tolist()
        parts = [together[low:high] for low, high in pairwise(bounds)]
        d_contents = [p.view(out.dtype) for p, out in zip(parts[1:], outs[1:], strict=True)]
        if n:
            d_slots = NULL if slots is None else self._work.resident(slots)
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
        *,
        always: bool = False,
    ) -> None:
        findings = findings_of(batch) if batch is not None else None
        self._over_slots(
            "touch", memory, slots, np.int64(clock), np.int32(counting),
            NULL if findings is None else findings, np.int32(always),
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

    def foresee(
        self, memory: Slabs, slots: DeviceArray | Slots, ranks: NDArray[np.int64], clock: int
    ) -> None:
        self._over_slots("foresee", memory, slots, np.int64(clock), numbers=ranks)

    def select_victims(
        self,
        memory: Slabs,
        slot_count: int,
        clock: int,
        count: int,
        first: int = 0,
        *,
        with_rows: bool = False,
    ) -> Answer[Selected]:
        count = min(count, slot_count)
        if count == 0:
            none = np.empty(0, np.int64)
            return lambda: Selected(none, none, lambda slots: self.read_slots(memory, slots)())
        work, first = self._work, min(first, count)
        searches = [Search(work, memory, slot_count, clock, count)]
        if 0 < first < count:
            searches.append(Search(work, memory, slot_count, clock, first))

        def look() -> tuple[list[Answer[NDArray[np.int64]]], Answer[SlotContents]]:
            for search in searches:
                search.look()
            read = searches[-1].victims[:first]
            is_small = first * memory.rows.layout.row_bytes < LARGE_BYTES
            here = self._read(memory, first, read, 0, with_rows=with_rows and is_small)
            return [work.ask(search.both) for search in searches], here

        looked = look()

        def answer() -> Selected:
            asked, here = looked
            while False in [search.is_done() for search in searches]:  # calls all is_done
                asked, here = look()
            both = [ask() for ask in asked]
            (slots, scores), named = (np.split(both[0], 2), both[-1][: searches[-1].found])
            slots, scores = slots[: searches[0].found], scores[: searches[0].found]
            contents = here()
            return Selected(
                slots, scores, lambda chosen: contents.of(np.searchsorted(named, chosen))
            )

        return answer


class Search:
    """A search for the slots of lowest score on the device (`select_victims.cu`).

    Until the search is done, `victims` contains valid slots, but not yet the slots of lowest score.
    A kernel that is launched before the search can lower the number of victims in `state`.
    """

    def __init__(
        self, work: GpuWork, memory: Slabs, slot_count: int, clock: int, count: int
    ) -> None:
        # Each block adds up the counts of all earlier ranges, so the number of ranges is bounded.
        self._range_slots = _RANGE_SLOTS * max(1, slot_count // (_RANGE_SLOTS * _RANGES))
        ranges = -(-slot_count // self._range_slots)
        self._work, self._slot_count, self._ranges = work, slot_count, ranges
        (self.state,) = work.send_numbers([0, PIN_ONE, 0, 0, PIN_ONE, count, count, 0])
        self.count = self.state[VICTIMS : VICTIMS + 1]
        self._bins = work.scratch.take(BINS, np.int64)
        self._counts = work.scratch.take(2 * ranges, np.int32)
        self.both = work.scratch.take(2 * count, np.int64)
        """The slots of the victims, followed by their scores."""
        self.victims, self._scores = self.both[:count], self.both[count:]
        named = (*memory.rows.arguments, np.int64(slot_count), np.int64(clock), self.state)
        self._candidates: tuple[Argument, ...] = named
        work.runtime.fill(self._bins, 0)
        work.runtime.fill(self.victims, 0)

    def look(self) -> None:
        """Queue some rounds of the search, and the copy of the results to the host."""
        work, in_ranges = self._work, (*self._candidates, np.int64(self._range_slots))
        for _ in range(_ROUNDS):
            work.launch("score_range", self._slot_count, *self._candidates)
            work.launch("count_scores", self._slot_count, *self._candidates, self._bins)
            work.runtime.launch("narrow_search", 1, self.state, self._bins)
        work.runtime.launch("count_victims", self._ranges, *in_ranges, self._counts)
        work.runtime.launch(
            "collect_victims", self._ranges, *in_ranges, self._counts, self.victims, self._scores
        )
        self._asked = work.ask(self.state)

    def is_done(self) -> bool:
        """Wait, and return whether the victims are found. Call it once after each `look`."""
        state = self._asked()
        self.found, self.highest = int(state[VICTIMS]), int(state[HIGHEST])
        return int(state[STATE]) == DONE
