"""Keys on the CPU: making a call's keys unique in one pass, and searching the index.

Every answer is known at once. An answer is `repeat(it).__next__`, which returns `it` without
running a Python function.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.compiled import table_places
from embstore.arithmetic.jit import addresses
from embstore.arrays import EMPTY_KEY, KEY_BITS, Keys
from embstore.device.cpu_memory import CpuSlotMemory
from embstore.device.cpu_work import CpuWork
from embstore.device.values import Answer, Batch, Counts, IndexArrays, Slots
from embstore.kernels.count_accesses import count_accesses
from embstore.kernels.insert import erase, insert
from embstore.kernels.probe import probe
from embstore.kernels.unique import unique

_NO_COUNTS = np.empty(0, np.int64)
_KEY_MOVED_BYTES = 64
"""Bytes of memory that probing a key reads: one bucket."""


@dataclass
class CpuBatch(Batch):
    """A batch with `id_bounds`, which cut ids into segments as `bounds` cut positions."""

    id_bounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))


class CpuKeys:
    """The `DeviceKeys` of the CPU."""

    def __init__(self, work: CpuWork) -> None:
        self._work = work
        # Greater than all entries in the table of `unique`; see embstore.arithmetic.compiled.
        self._unique_base = 1
        # 0, 1, 2, ...: batches of `distinct` refer to parts of it. It is replaced, never written.
        self._ids = np.empty(0, np.int32)

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> CpuBatch:
        table_ids, rows, keys = [*zip(*segments, strict=True)] or [()] * 3
        bounds = np.cumsum([0, *map(len, keys)])
        count, take = int(bounds[-1]), self._work.take
        places = table_places(count)
        table = take("unique.table", 2 * places, np.int64, zeroed=True)
        batch = CpuBatch(
            unique_keys=take("unique.keys", count, np.int64),
            inverse=take("unique.inverse", count, np.int32),
            bounds=bounds,
            id_bounds=np.empty(len(segments) + 1, np.int64),
        )
        base = self._unique_base
        self._unique_base += count  # first: this base must not be used again
        batch.found.outside = unique(
            addresses(keys),
            bounds,
            np.array(table_ids, np.int64),
            np.array(rows, np.int64),
            table.reshape(-1, 2),
            places,
            base,
            batch.unique_keys,
            batch.inverse,
            batch.id_bounds,
        )
        if batch.found.outside < 0:
            batch.unique_keys = batch.unique_keys[: batch.id_bounds[-1]]
        return batch

    def distinct(self, segments: Sequence[tuple[int, int, Keys]]) -> CpuBatch:
        bounds = np.cumsum([0, *(len(keys) for _, _, keys in segments)])
        row_keys = np.empty(bounds[-1], np.int64)
        for (table_id, _, keys), (low, high) in zip(segments, pairwise(bounds), strict=True):
            np.bitwise_or(keys, table_id << KEY_BITS, out=row_keys[low:high])
        inverse = self._first_ids(len(row_keys))
        return CpuBatch(unique_keys=row_keys, inverse=inverse, bounds=bounds, id_bounds=bounds)

    def again(self, batch: Batch) -> Batch:
        return batch  # every call overwrites its results

    def _first_ids(self, count: int) -> NDArray[np.int32]:
        if count > len(self._ids):
            self._ids = np.arange(max(count, 3 * len(self._ids) // 2), dtype=np.int32)
            self._ids.flags.writeable = False
        return self._ids[:count]

    def group(self, *_: object) -> None:
        return None

    def probe(self, index: IndexArrays, batch: Batch, slots: Slots) -> None:
        if batch.found.outside < 0:
            keys = batch.unique_keys
            batch.found.missing = self.find(index, keys, slots[: len(keys)])

    def synchronize(self, *batches: Batch) -> None:
        """Return at once: every call has waited for its threads."""

    def find(self, index: IndexArrays, keys: Keys, slots: Slots) -> int:
        work = partial(
            probe, index.bucket_keys, index.bucket_slots, index.stash_keys, index.stash_slots,
            index.stash_count, keys, slots,
        )  # fmt: skip
        return sum(self._work.share(work, len(keys), _KEY_MOVED_BYTES))

    def absent(self, keys: Keys, slots: Slots, missing: int) -> Answer[tuple[Slots, Keys]]:
        places = np.flatnonzero(slots < 0)
        absent = keys[places]
        return repeat((places, absent)).__next__

    def set_slots(self, slots: Slots, places: Slots, values: Slots) -> None:
        slots[places] = values

    def count_accesses(
        self, batch: Batch, slots: Slots, low: int, high: int, counts: Counts | None
    ) -> Answer[tuple[int, int]]:
        counts = _NO_COUNTS if counts is None else counts
        found = np.empty(2, np.int64)
        count_accesses(batch.inverse, slots, low, high, counts, found)
        return repeat((int(found[0]), int(found[1]))).__next__

    def insert(self, index: IndexArrays, keys: Keys, slots: Slots) -> Answer[bool]:
        is_whole = insert(
            index.bucket_keys, index.bucket_slots, index.stash_keys, index.stash_slots,
            index.stash_count, keys, slots,
        )  # fmt: skip
        return repeat(is_whole).__next__

    def insert_slots(self, index: IndexArrays, memory: CpuSlotMemory, slot_count: int) -> bool:
        slots = np.flatnonzero(memory.keys[:slot_count] != EMPTY_KEY)
        return self.insert(index, memory.keys[slots], slots)()

    def erase(self, index: IndexArrays, keys: Keys) -> None:
        erase(index.bucket_keys, index.stash_keys, index.stash_slots, index.stash_count, keys)
