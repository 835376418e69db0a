"""The keys of a call on a GPU: unique, found in the index or not, and the index itself.

`unique` is five kernels and a sum (`unique.cu`); the host learns how many unique keys there are
when the batch is settled. Keys that are inserted or erased come from the host, which has read or
evicted their rows.
"""

from collections.abc import Sequence

import numpy as np

from embstore.arrays import KEY_BITS, Keys
from embstore.device.base import Batch, Counts, IndexArrays, Slots
from embstore.device.gpu_launch import (
    ACCESSES,
    HITS,
    MISSING,
    NONE,
    NOT_FINITE,
    NOTHING_FOUND,
    NULL,
    OUTSIDE,
    REFUSED,
    UNIQUE_COUNT,
    GpuBatch,
    Launches,
    findings_of,
    parameters_of,
)
from embstore.device.layout import STASH_KEYS, bucket_count, index_bytes
from embstore.device.runtime import DeviceArray
from embstore.device.slabs import Slabs
from embstore.kernels.probe import BUCKET_WIDTH


class KeyVerbs(Launches):
    """The verbs of the Device protocol over keys and the index."""

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> GpuBatch:
        bounds = np.cumsum([0, *(len(keys) for _, _, keys in segments)])
        n = int(bounds[-1])
        batch = GpuBatch(
            unique_keys=self.scratch.take(n, np.int64),
            inverse=self.scratch.take(n, np.int32),
            bounds=bounds,
        )
        if n == 0:
            return batch
        prefixes = np.array([table_id << KEY_BITS for table_id, _, _ in segments], np.int64)
        row_counts = np.array([rows for _, rows, _ in segments], np.int64)
        d_bounds, d_prefixes, d_row_counts, batch.findings = self.send(
            bounds, prefixes, row_counts, NOTHING_FOUND
        )
        d_keys = self.scratch.take(n, np.int64)
        self.send_parts([keys for _, _, keys in segments], d_keys)
        place_count = 1 << (2 * n - 1).bit_length()
        table_keys = self.scratch.take(place_count, np.int64)
        table_firsts = self.scratch.take(place_count, np.int32)
        table_ids = self.scratch.take(place_count, np.int32)
        places = self.scratch.take(n, np.uint32)
        ranks = self.scratch.take(n, np.int32)
        self.runtime.fill(table_keys, 0xFF)  # EMPTY_KEY
        self.runtime.fill(table_firsts, 0x7F)  # above every position
        self.launch(
            "unique_enter", n, d_keys, d_bounds, d_prefixes, d_row_counts,
            np.int32(len(segments)), np.int64(n), table_keys, table_firsts, np.int64(place_count),
            places, batch.findings,
        )  # fmt: skip
        self.launch("unique_first", n, table_firsts, places, np.int64(n), ranks)
        self.runtime.accumulate(ranks, ranks)
        self.launch(
            "unique_number", n, table_keys, table_firsts, places, ranks, np.int64(n), table_ids,
            batch.unique_keys, batch.findings,
        )  # fmt: skip
        self.launch("unique_inverse", n, table_ids, places, np.int64(n), batch.inverse)
        return batch

    def distinct(self, segments: Sequence[tuple[int, int, Keys]]) -> GpuBatch:
        return self.unique(segments)

    def probe(self, index: IndexArrays, batch: Batch, slots: DeviceArray) -> None:
        findings = findings_of(batch)
        if findings is not None:
            n = batch.position_count
            self.launch(
                "probe", n, *parameters_of(index), batch.unique_keys, findings[UNIQUE_COUNT:1],
                np.int64(n), slots, findings,
            )  # fmt: skip

    def settle(self, batch: Batch) -> None:
        findings = findings_of(batch)
        if findings is None:
            return
        told = self.download(findings).tolist()
        batch.unique_keys = batch.unique_keys[: told[UNIQUE_COUNT]]
        batch.found.outside = _position(told[OUTSIDE])
        batch.found.missing = told[MISSING]
        batch.found.not_finite = _position(told[NOT_FINITE])

    def find(self, index: IndexArrays, keys: DeviceArray, slots: DeviceArray) -> int:
        n = len(keys)
        if n == 0:
            return 0
        (findings,) = self.send(NOTHING_FOUND)
        self.launch("probe", n, *parameters_of(index), keys, NULL, np.int64(n), slots, findings)
        return int(self.download(findings)[MISSING])

    def absent(self, keys: DeviceArray, slots: DeviceArray, missing: int) -> tuple[Slots, Keys]:
        if missing == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        n = len(keys)
        ranks = self.scratch.take(n, np.int32)
        found = self.scratch.take(2 * missing, np.int64)
        self.launch("flag_absent", n, slots, np.int64(n), ranks)
        self.runtime.accumulate(ranks, ranks)
        self.launch(
            "take_absent", n, slots, keys, ranks, np.int64(n), found[:missing], found[missing:]
        )
        told = self.download(found)
        return told[:missing], told[missing:]

    def set_slots(self, slots: DeviceArray, places: Slots, values: Slots) -> None:
        n = len(places)
        if n:
            d_places, d_values = self.send(places.astype(np.int32), values)
            self.launch("put_slots", n, slots, d_places, d_values, np.int64(n))

    def count_accesses(
        self, batch: Batch, slots: DeviceArray, low: int, high: int, counts: Counts | None
    ) -> tuple[int, int]:
        n = batch.position_count
        if n == 0:
            return 0, 0
        (findings,) = self.send(NOTHING_FOUND)
        self.launch(
            "count_accesses", n, batch.inverse, np.int64(n), slots, np.int64(low), np.int64(high),
            NULL if counts is None else self.upload(counts), findings,
        )  # fmt: skip
        told = self.download(findings)
        return int(told[ACCESSES]), int(told[HITS])

    def allocate_index(self, slot_count: int) -> IndexArrays:
        places = bucket_count(slot_count) * BUCKET_WIDTH
        arrays = IndexArrays(
            bucket_keys=self.scratch.plain(places, np.int64),
            bucket_slots=self.scratch.plain(places, np.uint32),
            stash_keys=self.scratch.plain(STASH_KEYS, np.int64),
            stash_slots=self.scratch.plain(STASH_KEYS, np.uint32),
            stash_count=self.scratch.plain(1, np.int64),
        )
        self.runtime.fill(arrays.bucket_keys, 0xFF)  # EMPTY_KEY
        self.runtime.fill(arrays.stash_keys, 0xFF)
        self.runtime.fill(arrays.stash_count, 0)
        return arrays

    def index_bytes(self, slot_count: int) -> int:
        return index_bytes(slot_count)

    def insert(self, index: IndexArrays, keys: Keys, slots: Slots) -> bool:
        n = len(keys)
        if n == 0:
            return True
        d_keys, d_slots, findings, rest_count = self.send(
            keys, slots, NOTHING_FOUND, np.zeros(1, np.int64)
        )
        rest = self.scratch.take(n, np.int64)
        self.launch(
            "insert", n, *parameters_of(index), d_keys, d_slots, np.int64(n), rest, rest_count
        )
        self.launch(
            "insert_rest", 1, *parameters_of(index), d_keys, d_slots, rest, rest_count, findings
        )
        return not self.download(findings)[REFUSED]

    def insert_slots(self, index: IndexArrays, memory: Slabs, slot_count: int) -> bool:
        if slot_count == 0:
            return True
        findings, rest_count = self.send(NOTHING_FOUND, np.zeros(1, np.int64))
        # One key in 2,400 finds no place at once (insert.cu); far more mean a larger index.
        room = max(1024, slot_count // 64)
        rest = self.scratch.take(room, np.int64)
        into, left = (*parameters_of(index), *memory.rows.arguments), (rest, rest_count)
        self.launch("insert_slots", slot_count, *into, np.int64(slot_count), *left, np.int64(room))
        self.launch("insert_slots_rest", 1, *into, *left, np.int64(room), findings)
        return not self.download(findings)[REFUSED]

    def erase(self, index: IndexArrays, keys: Keys) -> None:
        n = len(keys)
        if n:
            d_keys, rest_count = self.send(keys, np.zeros(1, np.int64))
            rest = self.scratch.take(n, np.int64)
            self.launch("erase", n, *parameters_of(index), d_keys, np.int64(n), rest, rest_count)
            self.launch("erase_rest", 1, *parameters_of(index), d_keys, rest, rest_count)


def _position(found: int) -> int:
    return -1 if found == NONE else found
