"""Keys on a GPU: making a call's keys unique, finding them in the index, and the index itself.

Keys are made unique only for calls that need each key once, or need keys in order of first
occurrence. These are lookups and updates that miss, calls larger than the cache, pooled lookups,
`put_rows` and `read_rows`, updates of several ranks, and updates whose sums are refused. `unique`
consists of three kernels (`unique.cu`). `group` works with slots instead of unique keys
(`gpu_positions.py`). The host learns the number of unique keys when the batch is synchronized. Keys
to insert or erase come from the host, which has read or evicted their rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from embstore.arrays import Keys
from embstore.device.gpu_positions import by_slot, locate, named
from embstore.device.gpu_work import (
    ACCESSES,
    HITS,
    MISSING,
    NOTHING_FOUND,
    NULL,
    REFUSED,
    GpuBatch,
    GpuWork,
    bounds_of,
    findings_of,
    parameters_of,
    tell_batch,
)
from embstore.device.runtime import DeviceArray
from embstore.device.slabs import Slabs
from embstore.device.staging import Buffer
from embstore.device.values import Answer, Batch, Counts, Findings, IndexArrays, Slots


class GpuKeys:
    """The `DeviceKeys` of a GPU."""

    def __init__(self, work: GpuWork) -> None:
        self._work = work

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> GpuBatch:
        bounds = bounds_of(segments)
        n = bounds[-1]
        scratch = self._work.scratch
        unique_keys, inverse = scratch.parts(n, np.int64, np.int32)
        batch = GpuBatch(unique_keys, inverse, np.array(bounds, np.int64))
        if n == 0:
            return batch
        call = named(self._work, segments)
        batch.is_known, batch.findings = False, call.findings
        place_count = n + n // 2 + 1
        table = scratch.take(place_count, np.int64, width=2)
        places = scratch.take(n, np.uint32)
        count = np.int64(n)
        self._work.runtime.fill(table, 0xFF)  # EMPTY_KEY, and more than every position
        self._work.launch(
            "unique_enter", n, call.keys, call.bounds, call.prefixes, call.row_counts,
            np.int32(len(segments)), count, table, np.int64(place_count), places, call.findings,
        )  # fmt: skip
        self._work.launch_in_tiles(
            "unique_number", n, table, places, count, unique_keys, call.findings
        )
        self._work.launch("unique_inverse", n, table, places, count, inverse)
        return batch

    def distinct(self, segments: Sequence[tuple[int, int, Keys]]) -> GpuBatch:
        bounds = bounds_of(segments)
        n = bounds[-1]
        batch = GpuBatch(
            unique_keys=self._work.scratch.take(n, np.int64),
            inverse=self._work.numbers(n, np.int32),
            bounds=np.array(bounds, np.int64),
            is_distinct=True,
        )
        if n:
            call = named(self._work, segments)
            self._work.launch(
                "encode", n, call.keys, call.bounds, call.prefixes, np.int32(len(segments)),
                np.int64(n), batch.unique_keys,
            )  # fmt: skip
        return batch

    def again(self, batch: Batch) -> GpuBatch:
        assert isinstance(batch, GpuBatch) and batch.is_known and batch.found.outside < 0
        findings, count = None, len(batch.unique_keys)
        if count:
            (findings,) = self._work.send_numbers([count, *NOTHING_FOUND[1:]])
        return replace(batch, found=Findings(), findings=findings)

    def group(
        self,
        index: IndexArrays,
        memory: Slabs,
        slot_count: int,
        segments: Sequence[tuple[int, int, Keys]],
        moves: int,
    ) -> tuple[GpuBatch, DeviceArray] | None:
        bounds, work = bounds_of(segments), self._work
        if not bounds[-1]:
            return None
        call = named(work, segments)
        slots = locate(work, memory, index, call, moves)
        groups, keys, found = by_slot(work, memory, slots, slot_count, call.findings)
        batch = GpuBatch(keys, slots, np.array(bounds, np.int64), findings=call.findings)
        batch.is_known, batch.is_grouped, batch.groups = False, True, groups
        return batch, found

    def probe(self, index: IndexArrays, batch: Batch, slots: DeviceArray) -> None:
        findings = findings_of(batch)
        if findings is not None:
            n = len(batch.unique_keys)
            self._work.launch(
                "probe", n, *parameters_of(index), batch.unique_keys, findings,
                np.int64(n), slots, findings,
            )  # fmt: skip

    def synchronize(self, *batches: Batch) -> None:
        staging = self._work.staging
        waiting: list[tuple[GpuBatch, Buffer]] = []
        for batch in batches:
            assert isinstance(batch, GpuBatch)
            if batch.findings is not None and not batch.is_known:
                answer = batch.answer or staging.begin_small(batch.findings.view(np.uint8))
                waiting.append((batch, answer))
        if waiting:
            self._work.wait()
        for batch, answer in waiting:
            tell_batch(batch, answer)
            if batch.answer is None or batch.found.missing or batch.found.outside >= 0:
                staging.end_small(answer, 0, [])  # no outputs follow the findings
            batch.answer = None

    def find(self, index: IndexArrays, keys: DeviceArray, slots: DeviceArray) -> int:
        n = len(keys)
        if n == 0:
            return 0
        (findings,) = self._work.send_numbers(NOTHING_FOUND)
        self._work.launch(
            "probe", n, *parameters_of(index), keys, NULL, np.int64(n), slots, findings
        )
        return int(self._work.download(findings)[MISSING])

    def absent(
        self, keys: DeviceArray, slots: DeviceArray, missing: int
    ) -> Answer[tuple[Slots, Keys]]:
        if missing == 0:
            return lambda: (np.empty(0, np.int64), np.empty(0, np.int64))
        n = len(keys)
        found = self._work.scratch.take(2 * missing, np.int64)
        self._work.launch_in_tiles(
            "take_absent", n, slots, keys, np.int64(n), found[:missing], found[missing:]
        )
        on_host = self._work.ask(found)

        def answer() -> tuple[Slots, Keys]:
            places, absent = np.split(on_host(), 2)
            return places, absent

        return answer

    def set_slots(
        self, slots: DeviceArray, places: DeviceArray | Slots, values: DeviceArray | Slots
    ) -> None:
        n = len(places)
        if n:
            if isinstance(places, np.ndarray):
                places = places.astype(np.int32)
            d_places, d_values = self._work.all_resident(places, values)
            self._work.launch("put_slots", n, slots, d_places, d_values, np.int64(n))

    def count_accesses(
        self, batch: Batch, slots: DeviceArray, low: int, high: int, counts: Counts | None
    ) -> Answer[tuple[int, int]]:
        n = batch.position_count
        if n == 0:
            return lambda: (0, 0)
        (findings,) = self._work.send_numbers(NOTHING_FOUND)
        self._work.launch(
            "count_accesses", n, batch.inverse, np.int64(n), slots, np.int64(low), np.int64(high),
            NULL if counts is None else self._work.upload(counts), findings,
        )  # fmt: skip
        values = self._work.ask(findings)

        def answer() -> tuple[int, int]:
            found = values().tolist()
            return found[ACCESSES], found[HITS]

        return answer

    def insert(
        self, index: IndexArrays, keys: DeviceArray | Keys, slots: DeviceArray | Slots
    ) -> Answer[bool]:
        n = len(keys)
        if n == 0:
            return lambda: True
        d_keys, d_slots = self._work.all_resident(keys, slots)
        findings, rest_count = self._work.send_numbers(NOTHING_FOUND, [0])
        rest = self._work.scratch.take(n, np.int64)
        self._work.launch(
            "insert", n, *parameters_of(index), d_keys, d_slots, np.int64(n), rest, rest_count
        )
        self._work.launch(
            "insert_rest", 1, *parameters_of(index), d_keys, d_slots, rest, rest_count, findings
        )
        values = self._work.ask(findings)
        return lambda: not values()[REFUSED]

    def insert_slots(self, index: IndexArrays, memory: Slabs, slot_count: int) -> bool:
        if slot_count == 0:
            return True
        findings, rest_count = self._work.send_numbers(NOTHING_FOUND, [0])
        # One key in 2,400 is not placed by the first kernel (insert.cu). If far more keys are not
        # placed, the answer is False, and the caller builds a larger index.
        room = max(1024, slot_count // 64)
        rest = self._work.scratch.take(room, np.int64)
        into, left = (*parameters_of(index), *memory.rows.arguments), (rest, rest_count)
        self._work.launch(
            "insert_slots", slot_count, *into, np.int64(slot_count), *left, np.int64(room)
        )
        self._work.launch("insert_slots_rest", 1, *into, *left, np.int64(room), findings)
        return not self._work.download(findings)[REFUSED]

    def erase(self, index: IndexArrays, keys: DeviceArray | Keys) -> None:
        n = len(keys)
        if n:
            d_keys, (rest_count,) = self._work.resident(keys), self._work.send_numbers([0])
            rest = self._work.scratch.take(n, np.int64)
            self._work.launch(
                "erase", n, *parameters_of(index), d_keys, np.int64(n), rest, rest_count
            )
            self._work.launch("erase_rest", 1, *parameters_of(index), d_keys, rest, rest_count)
