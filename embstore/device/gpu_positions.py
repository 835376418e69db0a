"""The positions of a call on a GPU: the slot of each position, and grouping by key.

If the call's keys were made unique (gpu_keys.py), positions are grouped by the **id** of their
keys. In an update whose rows are all in the cache, positions are grouped by **slot** instead: two
keys never share a slot, so no key has to be hashed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embstore.arrays import KEY_BITS, Keys
from embstore.device.gpu_work import NOTHING_FOUND, NULL, TILE, GpuWork, Groups, parameters_of
from embstore.device.runtime import BLOCK_THREADS, Argument, DeviceArray
from embstore.device.slabs import Slabs
from embstore.device.values import Batch, IndexArrays

_DIGIT_BITS = 8
"""The number of bits of a digit; each pass of the sort sorts by one digit. `radix_sort.cuh` has the
same number."""
_LARGE = 1 << 18
"""The least number of values for which the kernel `group_large` is used, whose tiles are twice as
large."""
_NO_SLABS = (NULL, np.int32(0), np.int32(0))
Segments = Sequence[tuple[int, int, Keys]]
"""The table id, the number of rows and the keys of each table of a call."""


class Named(NamedTuple):
    """The keys of a call in the device's memory, table after table."""

    tables: list[tuple[int, int]]
    """The table id and the number of keys of each table."""

    keys: DeviceArray  # (n,) int64, table after table
    bounds: DeviceArray  # (tables + 1,) int64
    prefixes: DeviceArray  # (tables,) int64, table id << KEY_BITS
    row_counts: DeviceArray  # (tables,) int64
    findings: DeviceArray
    """New findings, in which nothing is found yet."""
    more: list[DeviceArray]
    """Other numbers that were sent with the keys."""
    owns_keys: bool
    """Whether no one else can change the keys; False if they are in memory of the caller."""


def named(work: GpuWork, segments: Segments, *more: Sequence[int]) -> Named:
    """Send the keys of a call, the bounds and ids of its tables, and more numbers to the device."""
    bounds, prefixes, rows, tables = [0], [], [], []
    for table_id, row_count, keys in segments:
        count = len(keys)
        bounds.append(bounds[-1] + count)
        prefixes.append(table_id << KEY_BITS)
        rows.append(row_count)
        tables.append((table_id, count))
    of_tables = work.kept_numbers(tuple(bounds), tuple(prefixes), tuple(rows))
    findings, *sent = work.send_numbers(NOTHING_FOUND, *more)
    d_keys = work.join([keys for _, _, keys in segments], np.int64)
    owns_keys = len(segments) > 1 or isinstance(segments[0][2], np.ndarray)
    d_bounds, d_prefixes, d_rows = of_tables
    return Named(tables, d_keys, d_bounds, d_prefixes, d_rows, findings, sent, owns_keys)


def owned(work: GpuWork, call: Named) -> Named:
    """Return a call whose keys cannot change; keys in memory of the caller are copied."""
    if call.owns_keys:
        return call
    keys = work.scratch.take(len(call.keys), np.int64)
    work.runtime.copy(call.keys, keys)
    return call._replace(keys=keys, owns_keys=True)


def locate(
    work: GpuWork, memory: Slabs, index: IndexArrays, call: Named, moves: int
) -> DeviceArray:
    """Queue the search for the slot of each position. Return the slots, (n,) int32; see
    `probe.cu`."""
    n, known = len(call.keys), memory.located
    is_usable = known is not None and (known.moves, known.tables) == (moves, call.tables)
    known_arrays = (known.keys, known.slots) if known is not None and is_usable else (NULL, NULL)
    slots = work.scratch.take(n, np.int32)
    work.launch(
        "locate", n, *parameters_of(index), *memory.rows.arguments, call.keys, call.bounds,
        call.prefixes, call.row_counts, np.int32(len(call.prefixes)), *known_arrays, np.int64(n),
        slots, call.findings,
    )  # fmt: skip
    return slots


def by_id(work: GpuWork, batch: Batch, findings: DeviceArray) -> Groups:
    """Queue the grouping of the positions of a batch by id."""
    ids = batch.inverse
    starts = work.scratch.take(len(ids) + 1, np.int64)
    sorted_ids, positions = _group(
        work, _NO_SLABS, ids, len(batch.unique_keys), NULL, starts, NULL, NULL, findings
    )
    return Groups(starts, positions, sorted_ids)


def by_slot(
    work: GpuWork, memory: Slabs, slots: DeviceArray, slot_count: int, findings: DeviceArray
) -> tuple[Groups, DeviceArray, DeviceArray]:
    """Queue the grouping of positions by slot. All slots are below `slot_count`.

    Return the groups, and two arrays, (n,) int64: the row key and the slot of each group. The
    number of a group is its id. Only the first findings[UNIQUE_COUNT] elements of the arrays are
    written. A position without a slot is a group of its own.
    """
    n, scratch = len(slots), work.scratch
    ids = scratch.take(n, np.int32)
    unique_keys, unique_slots, starts = scratch.parts(n + 1, np.int64, np.int64, np.int64)
    _, positions = _group(
        work, memory.rows.arguments, slots, slot_count, ids, starts, unique_slots, unique_keys,
        findings,
    )  # fmt: skip
    return Groups(starts, positions, ids), unique_keys[:n], unique_slots[:n]


def _group(
    work: GpuWork, slabs: Sequence[Argument], values: DeviceArray, limit: int, *groups: Argument
) -> tuple[DeviceArray, DeviceArray]:
    """Queue the grouping of int32 values below `limit`. Return the values sorted, and their
    positions.

    Larger values are sorted only by their low digits: as many digits as values below `limit` have.
    """
    n, scratch = len(values), work.scratch
    kernel, tile = ("group", TILE) if n < _LARGE else ("group_large", 2 * TILE)
    tiles, passes = -(-n // tile), max(-(-(limit - 1).bit_length() // _DIGIT_BITS), 1)
    progress = work.zeros(2 + (passes << _DIGIT_BITS), np.uint32)
    states = scratch.take(tiles << _DIGIT_BITS, np.uint64)
    arrays = scratch.parts(n, *[np.int32] * (2 * min(passes, 2)))
    sorted_by: tuple[Argument, ...] = (*arrays, NULL, NULL)
    work.launch(
        kernel, tiles * BLOCK_THREADS, *slabs, values, np.int64(n), np.int32(passes), progress,
        states, *sorted_by[:4], *groups,
    )  # fmt: skip
    values, positions = arrays[-2:] if passes % 2 == 0 else arrays[:2]
    return values, positions
