"""What is true of a pool between commands, checked.

- a row key has at most one slot; the index has exactly the resident keys
- a slot's key is EMPTY_KEY exactly where it is free; each free slot is once in the free list
- a dirty slot's row is newer than what storage has; a free slot is clean
- a row's newest content is its slot's if it has one, else storage's, else its initializer's
"""

from typing import TYPE_CHECKING

import numpy as np

from embstore.arrays import EMPTY_KEY, KEY_BITS
from embstore.device.base import SlotContents
from embstore.score import PIN_SHIFT

if TYPE_CHECKING:
    from embstore.cache.pool import Pool


def check_integrity(pool: "Pool") -> None:
    """Raise AssertionError if an invariant of a pool does not hold."""
    pool.finder.finish_arriving()
    here, arena = pool.slots.contents(), pool.arena
    dirty_count = int(np.count_nonzero(here.dirty))
    faults = _faults_of_slots(pool, here) | {
        "more rows are dirty than are accounted for": dirty_count > pool.evictor.dirty_max,
        "the arena's budget is exceeded": (
            arena.memory_bytes > arena.budget_bytes and pool.slots.slab_count > 1
        ),
    }
    for fault, found in faults.items():
        if found:
            raise AssertionError(f"integrity of pool {pool.layout}: {fault}")


def _faults_of_slots(pool: "Pool", here: SlotContents) -> dict[str, bool]:
    keys, free = here.keys, np.sort(pool.slots.free_slots)
    resident = np.flatnonzero(keys != EMPTY_KEY)
    memory = pool.device.memory
    slots = memory.download(pool.finder.locate(memory.upload(keys[resident]))[0])
    pinned = np.count_nonzero(here.scores[resident] >> PIN_SHIFT)
    ids = set(np.unique(keys[resident] >> KEY_BITS).tolist())
    return {
        "a key has two slots": len(np.unique(keys[resident])) != len(resident),
        "the index does not have a key's slot": bool((slots != resident).any()),
        "the free list is not the free slots": not np.array_equal(
            free, np.flatnonzero(keys == EMPTY_KEY)
        ),
        "a free slot is dirty": bool(here.dirty[free].any()),
        "the pinned slots are not those counted": bool(pinned != pool.pins.count),
        "a resident row's table is not of this pool": not ids <= pool.tables,
    }
