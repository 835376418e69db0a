"""The loops of the log index (storage/row_index.py): find, put, repoint, in open addressing.

    index_keys[at] = key or -1, index_positions[at] = place << 40 | byte offset

Linear probing from the key's home; the table is a power of two in size and never full. One entry a
key. Keys given to one call may repeat: entries are written in order, so the last counts. Host
memory only: no device has a twin of this.
"""

import numpy as np

from embstore.arithmetic.jit import (
    Int,
    Int64s,
    Int64sIn,
    Uint8sIn,
    building_block,
    kernel,
    prefetch,
)

PLACE_BITS = 40
_AHEAD = 12
"""How many keys ahead the entry is asked for: a few memory latencies."""


@building_block
def _home(key: np.int64, mask: np.int64) -> np.int64:
    h = np.uint64(key)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64(h ^ (h >> np.uint64(32))) & mask


@building_block
def _ask(index_keys: Int64sIn, index_positions: Int64sIn, key: np.int64, mask: np.int64) -> None:
    at = _home(key, mask)
    prefetch(index_keys.ctypes.data + at * 8)
    prefetch(index_positions.ctypes.data + at * 8)


@kernel
def find(
    index_keys: Int64sIn,
    index_positions: Int64sIn,
    keys: Int64sIn,
    positions: Int64s,
) -> None:
    """Write each key's position, or -1, into `positions`."""
    mask = np.int64(index_keys.shape[0] - 1)
    count = keys.shape[0]
    for i in range(count):
        _ask(index_keys, index_positions, keys[min(i + _AHEAD, count - 1)], mask)
        at = _home(keys[i], mask)
        while index_keys[at] != keys[i] and index_keys[at] != -1:
            at = (at + 1) & mask
        positions[i] = index_positions[at] if index_keys[at] == keys[i] else -1


@kernel
def put(
    index_keys: Int64s,
    index_positions: Int64s,
    keys: Int64sIn,
    positions: Int64sIn,
    live: Int64s,
    frozen: Uint8sIn,
) -> int:
    """Point each key at its position, counting in `live`; return how many keys are new."""
    mask = np.int64(index_keys.shape[0] - 1)
    added = 0
    count = keys.shape[0]
    for i in range(count):
        _ask(index_keys, index_positions, keys[min(i + _AHEAD, count - 1)], mask)
        at = _home(keys[i], mask)
        while index_keys[at] != keys[i] and index_keys[at] != -1:
            at = (at + 1) & mask
        if index_keys[at] == keys[i]:
            place = index_positions[at] >> PLACE_BITS
            if not frozen[place]:
                live[place] -= 1
        else:
            index_keys[at] = keys[i]
            added += 1
        index_positions[at] = positions[i]
        live[positions[i] >> PLACE_BITS] += 1
    return added


@building_block
def _erase(index_keys: Int64s, index_positions: Int64s, at: np.int64, mask: np.int64) -> None:
    hole = at
    while True:
        at = (at + 1) & mask
        if index_keys[at] == -1:
            break
        home = _home(index_keys[at], mask)
        # The entry may move to the hole only if the hole lies on its way from home to here.
        if ((at - home) & mask) >= ((at - hole) & mask):
            index_keys[hole] = index_keys[at]
            index_positions[hole] = index_positions[at]
            hole = at
    index_keys[hole] = -1


@kernel
def repoint(
    index_keys: Int64s,
    index_positions: Int64s,
    keys: Int64sIn,
    olds: Int64sIn,
    news: Int64sIn,
    live: Int64s,
) -> int:
    """Move entries that point to `olds` to `news`, or remove them (-1); return how many went."""
    mask = np.int64(index_keys.shape[0] - 1)
    removed = 0
    for i in range(keys.shape[0]):
        at = _home(keys[i], mask)
        while index_keys[at] != keys[i] and index_keys[at] != -1:
            at = (at + 1) & mask
        if index_keys[at] != keys[i] or index_positions[at] != olds[i]:
            continue
        if news[i] < 0:
            _erase(index_keys, index_positions, at, mask)
            removed += 1
        else:
            index_positions[at] = news[i]
            live[news[i] >> PLACE_BITS] += 1
    return removed


@kernel
def add_keys(index_keys: Int64s, keys: Int64sIn, shift: Int) -> int:
    """Add every key >> shift to a table of keys alone; return how many are new."""
    mask = np.int64(index_keys.shape[0] - 1)
    added = 0
    for i in range(keys.shape[0]):
        key = keys[i] >> shift
        at = _home(key, mask)
        while index_keys[at] != key and index_keys[at] != -1:
            at = (at + 1) & mask
        if index_keys[at] == -1:
            index_keys[at] = key
            added += 1
    return added
