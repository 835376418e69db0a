"""Rows that change levels of the cache: the launches that find and exchange them.

A sequence of kernels finds the number of missing keys, the number of keys that are in neither
level, and the rows that leave for missing keys. These kernels can be queued before the host knows
whether any key is missing, and the host waits for all of them only once (`exchange.cu`).
"""

from dataclasses import dataclass

import numpy as np

from embstore.device.base import Device
from embstore.device.gpu_slots import Search
from embstore.device.gpu_work import LANES, NULL, TILE, GpuWork, findings_of, parameters_of
from embstore.device.runtime import Argument, DeviceArray
from embstore.device.slabs import Slabs
from embstore.device.values import Answer, Batch, IndexArrays, Missing, TableParameters

_MISSING, _ABSENT, _DIRTY, _DIRTY_VICTIMS, _TABLES = range(5)
"""Positions of the numbers that the host waits for."""


@dataclass(frozen=True)
class GpuLevels:
    """The `DeviceLevels` of a GPU."""

    below: Device
    work: GpuWork

    def look(
        self,
        keys: DeviceArray,
        slots: DeviceArray,
        batch: Batch | None,
        index: IndexArrays,
        below: Slabs,
        memory: Slabs,
        slot_count: int,
        clock: int,
        free: int,
        parameters: TableParameters,
    ) -> Answer[Missing]:
        work, u, scratch = self.work, len(keys), self.work.scratch
        found, parted = (scratch.parts(u, np.int64, np.int32, np.int64) for _ in range(2))
        numbers = scratch.take(_TABLES + len(parameters.seeds), np.int64)
        work.runtime.fill(numbers, 0)
        missing, absent, dirty, dirty_victims = (numbers[i : i + 1] for i in range(_TABLES))
        search = Search(work, memory, slot_count, clock, min(u, slot_count))
        count_at: Argument = NULL if batch is None else findings_of(batch) or NULL
        work.launch_in_tiles(
            "find_below", u, slots, keys, count_at, np.int64(u), *parameters_of(index), *found,
            missing,
        )  # fmt: skip
        work.launch_in_tiles(
            "part_missing", u, *found, missing, np.int64(free), *parted, absent, search.state,
            work.zeros(1 + -(-u // TILE), np.uint64),
        )  # fmt: skip
        self._count_dirty(below, parted[2], missing, dirty)
        mask = np.int64(parameters.key_mask)
        work.launch("count_tables", u, parted[0], mask, missing, numbers[_TABLES:])

        def ask() -> Answer[np.ndarray]:
            search.look()
            work.runtime.fill(dirty_victims, 0)
            self._count_dirty(memory, search.victims, search.count, dirty_victims)
            return work.ask(numbers)

        asked = ask()

        def answer() -> Missing:
            known = asked()
            while not search.is_done():
                known = ask()()
            counts = known[:_TABLES].tolist()
            n = counts[_MISSING]
            keys, places, in_below = (part[:n] for part in parted)
            return Missing(
                keys,
                places,
                in_below,
                search.victims[: search.found],
                highest=search.highest if search.found else -1,
                absent=counts[_ABSENT],
                dirty=counts[_DIRTY],
                dirty_victims=counts[_DIRTY_VICTIMS],
                by_table=known[_TABLES:],
            )

        return answer

    def _count_dirty(
        self, memory: Slabs, slots: DeviceArray, n_at: DeviceArray, count: DeviceArray
    ) -> None:
        self.work.launch("count_dirty", len(slots), *memory.rows.arguments, slots, n_at, count)

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
        self.work.runtime.submit()  # it runs during later work and file reads
        return left_keys
