"""The invariants of a pool between commands, and their checks.

- A row key has at most one slot; the index has exactly the resident keys.
- A slot's key is EMPTY_KEY if and only if the slot is free; each free slot is in the free list
  exactly once.
- In either level, the row of a dirty slot is newer than the row in storage. A free slot is clean.
- A row of level two is in no slot of level one.
- If a row has a slot in either level, its newest content is in this slot, else in storage. If the
  row is not stored either, its initializer computes the content.

A pool is checked one range of slots at a time, and commands may change slots between two ranges.
The invariants concern one slot at a time, so a range is right or wrong independently of other
ranges. If a key has two slots, the index has only one of them, so the other slot is found to be
wrong. Only the counts over all slots are not checked by range.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from embstore.arrays import EMPTY_KEY
from embstore.score import PIN_SHIFT

if TYPE_CHECKING:
    from embstore.cache.level_two import LevelTwo
    from embstore.cache.pool import Pool

SLICE_SLOTS = 1 << 14
"""The number of slots that are checked at once."""


def checks(pool: "Pool") -> Iterator[str]:
    """Check a pool slice by slice; yield a description after each slice. Commands may run in
    between.

    Raises AssertionError if an invariant does not hold.
    """
    for part, where in ((pool, ""), (pool.level_two, "level two: ")):
        low = 0
        while part is not None and low < part.slots.count:
            pool.finder.finish_arriving()
            _check(pool, where, _faults_of_range(part, low))
            if part is pool.level_two:
                _check(pool, where, {"a row is in the pool too": _is_in_pool(pool, low)})
            low += SLICE_SLOTS
            yield f"{where}slots below {low}"
        if part is not None:
            _check(pool, where, _faults_of_counts(part))
            yield f"{where}counts"
    arena, dirty, below = pool.arena, pool.slots.contents().dirty, pool.level_two
    over = {
        "level two: the budget is exceeded": (
            below is not None and below.arena.memory_bytes > below.arena.budget_bytes
        ),
        "more rows are dirty than are accounted for": (
            int(np.count_nonzero(dirty)) > pool.evictor.dirty_max
        ),
        "level two: more rows are dirty than are accounted for": (
            below is not None
            and int(np.count_nonzero(below.slots.contents().dirty)) > below.evictor.dirty_max
        ),
        "the arena's budget is exceeded": (
            arena.memory_bytes > arena.budget_bytes
            and not arena.may_exceed
            and pool.slots.slab_count > 1
        ),
    }
    _check(pool, "", over)


def _check(pool: "Pool", where: str, faults: dict[str, bool]) -> None:
    for fault, found in faults.items():
        if found:
            raise AssertionError(f"integrity of pool {pool.layout}: {where}{fault}")


def _faults_of_range(part: "Pool | LevelTwo", low: int) -> dict[str, bool]:
    """Return for each kind of fault, by its description, whether the slice of slots from `low` on,
    or the index of its keys, has such a fault."""
    high = min(low + SLICE_SLOTS, part.slots.count)
    here = part.device.slots.read_range(part.slots.memory, low, high)
    resident = np.flatnonzero(here.keys != EMPTY_KEY)
    memory = part.device.memory
    slots = memory.download(part.finder.locate(memory.upload(here.keys[resident]))[0])
    free = part.slots.free_between(low, high)
    ids = set(np.unique(part.slots.row_keys.table_ids(here.keys[resident])).tolist())
    return {
        "the index does not have a key's slot": bool((slots != low + resident).any()),
        "the free list is not the free slots": not np.array_equal(
            free, low + np.flatnonzero(here.keys == EMPTY_KEY)
        ),
        "a free slot is dirty": bool(here.dirty[free - low].any()),
        "a resident row's table is not of this pool": not ids <= part.tables,
    }


def _faults_of_counts(part: "Pool | LevelTwo") -> dict[str, bool]:
    here = part.slots.contents()
    pinned = np.count_nonzero((here.keys != EMPTY_KEY) & (here.scores >> PIN_SHIFT != 0))
    return {
        "the pinned slots are not those counted": bool(pinned != part.pins.count),
    }


def _is_in_pool(pool: "Pool", low: int) -> bool:
    level_two, memory = pool.level_two, pool.device.memory
    assert level_two is not None
    high = min(low + SLICE_SLOTS, level_two.slots.count)
    keys = level_two.device.slots.read_range(level_two.slots.memory, low, high).keys
    found = pool.finder.locate(memory.upload(keys[keys != EMPTY_KEY]))[0]
    return bool((memory.download(found) >= 0).any())
