"""Rows that change levels of the cache: what is launched to find them, and to exchange them.

The host learns a few numbers, which it waits for once: how many of the missing rows neither level
has, and how many rows are dirty. Keys, slots and victims stay on the device (`exchange.cu`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.device.base import Answer, Device, IndexArrays, Missing
from embstore.device.gpu_slots import Search
from embstore.device.gpu_work import LANES, MISSING, NOTHING_FOUND, TILE, GpuWork, parameters_of
from embstore.device.runtime import DeviceArray
from embstore.device.slabs import Slabs

_DIRTY, _DIRTY_VICTIMS = 4, 5
"""Of the numbers that are waited for; MISSING is one, too."""


@dataclass(frozen=True)
class GpuLevels:
    """The `DeviceLevels` of a GPU."""

    below: Device
    work: GpuWork

    def look(
        self,
        keys: DeviceArray,
        slots: DeviceArray,
        missing: int,
        index: IndexArrays,
        below: Slabs,
        memory: Slabs,
        slot_count: int,
        clock: int,
        leaving: int,
        tables: int,
    ) -> Answer[Missing]:
        work, n, scratch = self.work, missing, self.work.scratch
        found = scratch.parts(n, np.int64, np.int32, np.int64)
        parted = scratch.parts(n, np.int64, np.int32, np.int64)
        keys_found, places, below_found = parted
        numbers = work.scratch.take(len(NOTHING_FOUND) + tables, np.int64)
        work.runtime.fill(numbers, 0)
        work.launch_in_tiles(
            "find_below", len(slots), slots, keys, np.int64(len(slots)), *parameters_of(index),
            *found,
        )  # fmt: skip
        tiles = -(-n // TILE)
        work.launch_in_tiles(
            "part_missing", n, *found, np.int64(n), *parted, numbers,
            work.zeros(1 + tiles, np.uint64),
        )  # fmt: skip
        self._count_dirty(below, parted[2], numbers[_DIRTY:])
        if tables:
            work.launch("count_tables", n, parted[0], np.int64(n), numbers[len(NOTHING_FOUND) :])
        search = Search(work, memory, slot_count, clock, leaving) if leaving else None

        def ask() -> Answer[NDArray[np.int64]]:
            if search is not None:
                search.look()
                work.runtime.fill(numbers[_DIRTY_VICTIMS : _DIRTY_VICTIMS + 1], 0)
                self._count_dirty(memory, search.victims, numbers[_DIRTY_VICTIMS:])
            return work.ask(numbers)

        asked = ask()

        def answer() -> Missing:
            known = asked()
            while search is not None and not search.is_done():
                known = ask()()
            return Missing(
                keys_found,
                places,
                below_found,
                victims=search.victims if search else work.scratch.take(0, np.int64),
                absent=int(known[MISSING]),
                dirty=int(known[_DIRTY]),
                dirty_victims=int(known[_DIRTY_VICTIMS]),
                by_table=known[len(NOTHING_FOUND) :],
            )

        return answer

    def _count_dirty(self, memory: Slabs, slots: DeviceArray, count: DeviceArray) -> None:
        n = len(slots)
        self.work.launch("count_dirty", n, *memory.rows.arguments, slots, np.int64(n), count)

    def exchange(
        self,
        memory: Slabs,
        below_memory: Slabs,
        slots: DeviceArray,
        below: DeviceArray,
        keys: DeviceArray,
        first_up: int,
        first_down: int,
        score: int,
        below_score: int,
    ) -> DeviceArray:
        n = len(slots)
        left_keys = self.work.scratch.take(n, np.int64)
        table, shift, _ = below_memory.rows.arguments
        self.work.launch(
            "exchange", n * LANES, *memory.rows.arguments, table, shift, slots, below, keys,
            np.int64(n), np.int64(first_up), np.int64(first_down), np.int64(score),
            np.int64(below_score), left_keys,
        )  # fmt: skip
        return left_keys
