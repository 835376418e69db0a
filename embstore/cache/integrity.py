"""What is true of a pool between commands, checked.

- a row key has at most one slot; the index has exactly the resident keys
- a slot's key is EMPTY_KEY exactly where it is free; each free slot is once in the free list
- a dirty slot's row is newer than what storage has; a free slot is clean
- a row of the host tier is in no slot of the pool, and is what storage or its initializer has
- a row's newest content is its slot's if it has one, else storage's, else its initializer's
"""

from typing import TYPE_CHECKING

import numpy as np

from embstore.arrays import EMPTY_KEY, KEY_BITS
from embstore.device.base import SlotContents
from embstore.score import PIN_SHIFT

if TYPE_CHECKING:
    from embstore.cache.host_tier import HostTier
    from embstore.cache.pool import Pool


def check_integrity(pool: "Pool") -> None:
    """Raise AssertionError if an invariant of a pool does not hold."""
    pool.finder.finish_arriving()
    here, arena = pool.slots.contents(), pool.arena
    dirty_count = int(np.count_nonzero(here.dirty))
    faults = (
        _faults_of_slots(pool, here)
        | _faults_of_tier(pool, here)
        | {
            "more rows are dirty than are accounted for": dirty_count > pool.evictor.dirty_max,
            "the arena's budget is exceeded": (
                arena.memory_bytes > arena.budget_bytes and pool.slots.slab_count > 1
            ),
        }
    )
    for fault, found in faults.items():
        if found:
            raise AssertionError(f"integrity of pool {pool.layout}: {fault}")


def _faults_of_tier(pool: "Pool", here: SlotContents) -> dict[str, bool]:
    tier = pool.tier
    if tier is None:
        return {}
    below = tier.slots.contents()
    kept = below.keys[below.keys != EMPTY_KEY]
    faults = _faults_of_slots(tier, below) | {
        "a row is in the pool too": bool(np.isin(kept, here.keys).any()),
        "the budget is exceeded": tier.arena.memory_bytes > tier.arena.budget_bytes,
    }
    return {f"host tier: {fault}": found for fault, found in faults.items()}


def _faults_of_slots(pool: "Pool | HostTier", here: SlotContents) -> dict[str, bool]:
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
