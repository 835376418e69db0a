"""The bytes of rows and slots, and the cache sizes for which hit rates are predicted.

A slot takes the memory of its row (`embstore.layout`), of its metadata and of its share of the
index. A pool also takes staging memory, into which rows are read (`embstore.cache.sizes`). The size
computed here is the budget of a pool on the CPU, accurate to one slab. Level two of a GPU's cache
has its rows in pinned memory of the host, and the other parts of its slots in the GPU's memory.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embstore.cache.sizes import Sizes, least_bytes
from embstore.device.cpu import CpuDevice
from embstore.layout import ELEMENT_BYTES, Layout

_STEPS = (1.0, 2.0, 3.0, 5.0)
_LEAST_SHARE, _DECADES = 1e-4, 4
_LEAST_SLOTS = 64
_BETWEEN = 9
_SLACK = 1e-6
_ROUNDS = 8
"""Each round reduces the error of the staging memory's part by a factor of 32, so the result
converges much earlier."""


def layout_of_bytes(row_bytes: int) -> Layout:
    """Return a layout whose rows take `row_bytes`, rounded up to whole elements."""
    return Layout(-(-row_bytes // ELEMENT_BYTES), 0, "")


def cache_bytes(layout: Layout, slots: int) -> int:
    """Return the cache_bytes that a store needs for `slots` slots, in one pool of a layout."""
    device, needed = CpuDevice(threads=1), 0
    for _ in range(_ROUNDS):
        sizes = Sizes.of(layout, max(needed, slots * layout.row_bytes), device)
        whole = -(-slots // sizes.slab_slots) * sizes.slab_slots
        index = device.memory.index_bytes(whole)
        needed = max(whole * sizes.slot_bytes + index + sizes.staging_bytes, least_bytes([sizes]))
    return needed


def level_bytes(
    layout: Layout, slots: NDArray[np.int64], below: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the cache_bytes, (s,), that caches with `slots` slots in level one, and with `below`
    rows in level two, need."""
    counts = zip(slots.tolist(), below.tolist(), strict=True)
    found = [cache_bytes(layout, count) + host_key_bytes(more) for count, more in counts]
    return np.maximum.accumulate(np.array(found, np.int64))


def host_rows(row_bytes: int, host_bytes: int, below: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each number in `below`, how many of these rows fit in level two, (s,).

    Parameters
    ----------
    host_bytes : bytes of pinned memory of the host
    below : (s,) numbers of rows for which level one has no slot
    """
    return np.clip(below, 0, host_bytes // row_bytes)


def host_key_bytes(rows: int) -> int:
    """Return the part of a GPU's cache_bytes that the keys, scores, flags and index of level two's
    rows take, for any row size."""
    memory = CpuDevice(threads=1).memory
    return rows * memory.slot_bytes(1, 0) + memory.index_bytes(rows) if rows else 0


def looked_at(rows: int) -> NDArray[np.int64]:
    """Return numbers of slots from a ten-thousandth of `rows` to all of them, in steps 1, 2, 3, 5.

    No number is below _LEAST_SLOTS, which is about the number of slots in a slab: no cache is
    smaller.
    """
    decades = _LEAST_SHARE * 10.0 ** np.arange(_DECADES)
    slots = np.rint(rows * np.outer(decades, _STEPS)).astype(np.int64).ravel()
    return np.unique(np.clip(np.append(slots, rows), min(_LEAST_SLOTS, rows), rows))


def between(
    target: float, slots: Sequence[int], rates: Sequence[float]
) -> NDArray[np.int64] | None:
    """Return sizes at closer intervals, around the smallest given size whose hit rate reaches
    `target`.

    Parameters
    ----------
    slots, rates : ascending sizes, and the hit rate of each size. If no rate reaches the target,
        the result is None
    """
    reached = np.flatnonzero(np.asarray(rates) >= target)
    if not len(reached):
        return None
    high = int(reached[0])
    ends = slots[max(0, high - 1)], slots[high]
    return np.unique(np.rint(np.geomspace(*ends, _BETWEEN)).astype(np.int64))


def slots_for(target: float, slots: Sequence[int], rates: Sequence[float]) -> int:
    """Return the smallest number of slots whose hit rate reaches `target`; the last of `rates` must
    reach it.

    Between two given sizes, the rate is assumed to rise evenly with the logarithm of the size.
    """
    high = int(np.flatnonzero(np.asarray(rates) >= target)[0])
    if high == 0:
        return int(slots[0])
    share = (target - rates[high - 1]) / (rates[high] - rates[high - 1])
    ends = np.log(slots[high - 1 : high + 1])
    return int(np.ceil(np.exp(ends[0] + share * (ends[1] - ends[0])) - _SLACK))
