"""The division of `cache_bytes` between pools by their misses, which are estimated from lookups.

As long as the budget lasts, pools take all the slots that they need. Once a pool has been refused
slots, the sizes of all pools are decided again whenever a certain number of keys has been looked
up. `MissCurve` estimates a pool's misses for each number of slots, and `best_split` finds the sizes
with the fewest misses in total. Every miss counts as one read of a row. A pool of large rows gets
few slots for its bytes, and therefore gains little by more bytes.

**Steady.** Curves have noise, and moving a slab evicts rows that will be missed. Therefore the
split changes only if the change would save a share `_GAIN` of all misses, or add the same share of
hits. (During a scan, which misses with every size, a few misses less can be many hits more.) At
most an eighth of the budget moves before the next decision. Slabs move in slices, one at a time
between commands (`Arena.move_slice`). Pins in slots that move are taken back: hot rows are pinned
again in other slots, and steps with a row in such slots are planned again. If the log has no space
for the dirty rows of a slice, nothing moves until the next decision.

**Floors.** Independently of the measured misses, a pool keeps at least a sixty-fourth of the
budget. It also keeps slots for the rows of its largest recent call or for its pinned rows,
whichever are more. For this it keeps at most half the budget divided by the number of pools. A call
that does not fit is done in parts, which takes far longer than reading its missing rows.

**The budget.** Memory of indexes beyond the budget is released first, independently of measurements
(`Arena.keep_to_budget`).

Every decision follows from the keys of lookups and their order; no clock is used. Only the time at
which pins exist varies a little. Neither decisions nor pins change a bit of a row. Two kinds of
accesses are not measured: rows that updates read into the cache without a lookup before, and
lookups whose keys are in a GPU's memory. After lookups of the second kind, the next decision does
not change the split. With a single pool nothing is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from embstore.cache.arena import Arena, Member
from embstore.cache.pool import Pool, PoolName
from embstore.cache.reuse import Floats, MissCurve, Reuse
from embstore.cache.split import UNITS, best_split
from embstore.choices import CacheSplit
from embstore.errors import CapacityError
from embstore.tables.state import Share

_PERIOD_SLOTS = 2
_PERIOD_KEYS_MIN = 1 << 14
_GAIN = 1 / 50
_MOVED_SHARE = 8


@dataclass
class PoolSplit:
    """The last decision about one pool. All values are 0 if there was no decision."""

    bytes_before: int = 0
    bytes_aimed: int = 0
    miss_rate_before: float = 0.0
    miss_rate_aimed: float = 0.0


class SplitPool(NamedTuple):
    """A pool, and the last decision about it."""

    pool: Pool
    split: PoolSplit


class Splitting:
    """The split of one store's cache. Use it only inside a call.

    Parameters
    ----------
    pools : the store's pools; the mapping changes as pools are created and removed
    how : "measured", or "demand": slabs are granted in the order of requests
    """

    def __init__(self, arena: Arena, pools: Mapping[PoolName, Pool], how: CacheSplit) -> None:
        self.how = how
        self.decisions = 0
        """The number of changes of the split."""
        self.moved_bytes = 0
        """Bytes that pools have released to other pools."""
        self.refused = 0
        """The number of times that slots could not move, because the log had no space for dirty
        rows in them."""
        self._arena = arena
        self._pools = pools
        self._reuses: dict[Pool, Reuse] = {}
        self._splits: dict[Pool, PoolSplit] = {}
        self._era = -1  # the arena's era in which measuring began
        self._keys_left = 0  # keys to look up before the next decision
        self._bytes_left = 0  # bytes that can move before the next decision
        self._has_unseen = False  # whether lookups since the last decision were not measured

    def forget(self) -> None:
        """Forget the measurements, because a pool was removed."""
        self._reuses, self._splits, self._era = {}, {}, -1

    @property
    def splits(self) -> list[SplitPool]:
        """All pools, with the last decision about each."""
        splits = self._splits if self._is_current else {}
        return [SplitPool(p, splits.get(p, PoolSplit())) for p in self._pools.values()]

    def note(self, shares: Sequence[Share]) -> None:
        """Note the keys of a lookup."""
        if self.how == "demand" or len(self._pools) < 2:
            return
        if not self._is_current:
            self._begin()
        for share in shares:
            if isinstance(share.keys, np.ndarray):
                self._reuses[share.table.pool].note(share.table.number, share.keys)
                self._keys_left -= len(share.keys)
            else:
                self._has_unseen = True
        for reuse in self._reuses.values():
            reuse.end_call()

    @property
    def is_due(self) -> bool:
        """Whether `decide` or `move` has something to do."""
        is_to_go_on = self._is_current and (self._keys_left <= 0 or self._may_move)
        return self._arena.may_exceed or is_to_go_on

    @property
    def _may_move(self) -> bool:
        return self._bytes_left > 0 and self._arena.may_move

    @property
    def _is_current(self) -> bool:
        """Whether the measurements are of the present pools and budget."""
        return self._era == self._arena.era

    def _begin(self) -> None:
        """Start measuring again."""
        self._reuses = {p: Reuse(p.slots.sizes.slots_max) for p in self._pools.values()}
        self._splits = {}
        self._begin_period()
        self._era = self._arena.era

    def _begin_period(self) -> None:
        slots = sum(pool.slots.count for pool in self._reuses)
        self._keys_left = max(_PERIOD_SLOTS * slots, _PERIOD_KEYS_MIN)
        self._bytes_left, self._has_unseen = 0, False

    def decide(self) -> bool:
        """Decide about the split, if a decision is due; return whether slots must be moved. Call
        this between commands."""
        if self._arena.may_exceed:
            return True
        if not self.is_due:
            return False
        if self._keys_left <= 0:
            is_seen = not self._has_unseen
            self._begin_period()
            if self._arena.is_short and is_seen:
                self._decide()
            for reuse in self._reuses.values():
                reuse.fade()
        return self._may_move

    def move(self) -> None:
        """Move a slice, or release memory beyond the budget. Call this between commands.

        Raises
        ------
        CapacityError : the log has no space for dirty rows that must leave. Nothing moves until the
            next decision.
        """
        try:
            if self._arena.may_exceed:
                self._arena.keep_to_budget()
                return
            moved = self._arena.move_slice()
        except CapacityError:
            self._bytes_left = 0
            self.refused += 1
            raise
        self.moved_bytes += moved
        self._bytes_left -= moved

    def _decide(self) -> None:
        pools = list(self._reuses)
        self._arena.is_short = False
        self._bytes_left = self._arena.budget_bytes // _MOVED_SHARE if self._arena.aims else 0
        least = [self._least_units(pool) for pool in pools]
        if sum(least) > UNITS:
            return
        curves = [self._reuses[pool].curve() for pool in pools]
        unit = self._arena.bytes_for_pools / UNITS
        sizes: Floats = np.arange(UNITS + 1) * np.float64(unit)
        misses = [c.at(_slots(p, sizes)) for p, c in zip(pools, curves, strict=True)]
        misses_now = [float(c.at(p.slots.count)) for p, c in zip(pools, curves, strict=True)]
        units = best_split(misses, least)
        misses_then = [float(m[u]) for u, m in zip(units, misses, strict=True)]
        hits_now = sum(curve.lookups for curve in curves) - sum(misses_now)
        saved = sum(misses_now) - sum(misses_then)
        if saved <= _GAIN * min(sum(misses_now), hits_now):
            return
        aims: dict[Member, int] = {
            p.evictor: int(u * unit) for p, u in zip(pools, units, strict=True)
        }
        if aims == self._arena.aims:
            return
        self.decisions += 1
        self._bytes_left = self._arena.budget_bytes // _MOVED_SHARE
        self._arena.aim(aims)
        for i, pool in enumerate(pools):
            self._splits[pool] = PoolSplit(
                bytes_before=pool.slots.memory_bytes,
                bytes_aimed=int(units[i] * unit),
                miss_rate_before=_rate(misses_now[i], curves[i]),
                miss_rate_aimed=_rate(misses_then[i], curves[i]),
            )

    def _least_units(self, pool: Pool) -> int:
        """Return the units that a pool keeps, at least one."""
        slots = pool.slots
        needed = max(self._reuses[pool].largest_call, pool.pins.known_count)
        needed += needed // 8  # some slots are never pinned
        floor = min(needed * slots.slot_bytes, self._floor_bytes)
        least = max(int(floor), slots.sizes.least_bytes)
        return max(1, -(-least * UNITS // self._arena.bytes_for_pools))

    @property
    def _floor_bytes(self) -> int:
        return self._arena.bytes_for_pools // (2 * len(self._reuses))


def _slots(pool: Pool, sizes: Floats) -> Floats:
    """Return, for each of some sizes in bytes, the number of slots that a pool of this size has in
    whole slabs."""
    slots, slab_slots = pool.slots, pool.slots.sizes.slab_slots
    whole: Floats = np.floor(sizes / (slots.slot_bytes * slab_slots)) * slab_slots
    return whole


def _rate(misses: float, curve: MissCurve) -> float:
    return misses / max(curve.lookups, 1.0)
