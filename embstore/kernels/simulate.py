"""The loops of cache simulations (frequency/simulate.py): recorded calls against caches that hold
keys and no rows.

An **event** is one key in one call. Those of call c are [bounds[c], bounds[c + 1]); ids[i], in
[0, k), is the key of event i, and is in a call once at most.

stack_depths, for every event i, of call c, where the key was used before, last by call b:

    above[i]  = how many keys the calls b + 1 to c - 1 used
    beside[i] = how many keys call b is the last to have used, before call c; this key is one

    or, where it was not used before: above[i] = -1, beside[i] = how many keys calls before c used

simulate_scores: hits of a cache of `slots` rows with the scores `count << 40 | clock` of policy.py;
a call of more keys is done in parts. For each count a list links the resident keys in order of
clock, which is the order in which they are touched: so a touch, and a victim, is a few steps in any
size of cache. Ageing makes one list of two, merged by clock. Among equal scores the key touched
first leaves first, where the store takes the lower slot: either is as good as drawn.

Host memory only: no device has a twin of this.
"""

import numpy as np

from embstore.arithmetic.jit import (
    Int,
    Int64Rows,
    Int64s,
    Int64sIn,
    building_block,
    kernel,
    prefetch_to_write,
)
from embstore.kernels.slots import COUNT_KEEP, COUNT_MAX, COUNT_UP

LISTS = COUNT_MAX + 1
_NEXT, _PREVIOUS, _COUNT, _CLOCK = range(4)
_FIRST, _LAST = range(2)
_AHEAD = 16


@building_block
def _add(tree: Int64s, call: int, amount: int) -> None:
    place = call + 1
    while place < tree.shape[0]:
        tree[place] += amount
        place += place & -place


@building_block
def _sum_to(tree: Int64s, call: int) -> int:
    total, place = 0, call + 1
    while place > 0:
        total += tree[place]
        place &= place - 1
    return total


@kernel
def stack_depths(
    bounds: Int64sIn,  # (calls + 1,)
    ids: Int64sIn,  # (e,)
    last: Int64s,  # (k,), -1 each; of each key the last call that used it, when done
    above: Int64s,  # (e,)
    beside: Int64s,  # (e,)
) -> None:
    """Write `above` and `beside`."""
    calls = bounds.shape[0] - 1
    uses = np.zeros(calls, np.int64)  # how many keys each call is the last to have used
    tree = np.zeros(calls + 1, np.int64)  # sums over these (Fenwick 1994)
    distinct = 0
    for call in range(calls):
        low, high = bounds[call], bounds[call + 1]
        for i in range(low, high):
            before = last[ids[i]]
            if before >= 0:
                above[i], beside[i] = distinct - _sum_to(tree, before), uses[before]
            else:
                above[i], beside[i] = -1, distinct
        for i in range(low, high):
            before = last[ids[i]]
            if before >= 0:
                uses[before] -= 1
                _add(tree, before, -1)
            else:
                distinct += 1
            last[ids[i]] = call
        uses[call] = high - low
        _add(tree, call, high - low)


@building_block
def _append(keys: Int64Rows, lists: Int64Rows, id: int, count: int, clock: int) -> None:
    tail = lists[count, _LAST]
    keys[id, _NEXT], keys[id, _PREVIOUS] = -1, tail
    keys[id, _COUNT], keys[id, _CLOCK] = count, clock
    if tail >= 0:
        keys[tail, _NEXT] = id
    else:
        lists[count, _FIRST] = id
    lists[count, _LAST] = id


@building_block
def _remove(keys: Int64Rows, lists: Int64Rows, id: int) -> None:
    after, before, count = keys[id, _NEXT], keys[id, _PREVIOUS], keys[id, _COUNT]
    if before >= 0:
        keys[before, _NEXT] = after
    else:
        lists[count, _FIRST] = after
    if after >= 0:
        keys[after, _PREVIOUS] = before
    else:
        lists[count, _LAST] = before


@building_block
def _next_victim(keys: Int64Rows, lists: Int64Rows, least: int, clock: int) -> int:
    """Return the key of lowest score that the running call did not touch, or -1."""
    for count in range(least, LISTS):
        id = lists[count, _FIRST]
        if id >= 0 and keys[id, _CLOCK] != clock:
            return int(id)
    return -1


@building_block
def _least_from(lists: Int64Rows, least: int) -> int:
    """Return the lowest count from `least` on that a resident key has."""
    while least < LISTS - 1 and lists[least, _FIRST] < 0:
        least += 1
    return least


@building_block
def _age(keys: Int64Rows, lists: Int64Rows) -> None:
    """Halve every count."""
    for half in range(LISTS // 2):
        one, other = lists[2 * half, _FIRST], lists[2 * half + 1, _FIRST]
        lists[2 * half : 2 * half + 2] = -1
        while one >= 0 or other >= 0:
            takes_one = other < 0 or (one >= 0 and keys[one, _CLOCK] <= keys[other, _CLOCK])
            id = one if takes_one else other
            if takes_one:
                one = keys[id, _NEXT]
            else:
                other = keys[id, _NEXT]
            _append(keys, lists, id, half, keys[id, _CLOCK])


@kernel
def simulate_scores(
    bounds: Int64sIn,  # (calls + 1,)
    ids: Int64sIn,  # (e,)
    accesses: Int64sIn,  # (e,)
    first_counts: Int64sIn,  # (k,), of each key when it comes, at most COUNT_MAX
    warm: Int64sIn,  # (<= slots,), unique: what the cache begins with, touched in this order
    slots: Int,  # >= 1
    counting: Int,  # COUNT_UP, COUNT_KEEP or COUNT_NONE
    ageing: Int,  # touches until all counts are halved; 0: they never are
    keys: Int64Rows,  # (k, 4), overwritten: next, previous, count or -1 if not resident, clock
    result: Int64s,  # (2,)
) -> None:
    """Write how many accesses, and how many events, were to keys that were resident."""
    lists = np.full((LISTS, 2), -1, np.int64)
    keys[:, _COUNT] = -1
    for i in range(warm.shape[0]):
        _append(keys, lists, warm[i], first_counts[warm[i]], 0)
    start, last = keys.ctypes.data, ids.shape[0] - 1
    resident, clock, touches = warm.shape[0], 0, 0
    least = 0  # no resident key has a lower count
    access_hits, event_hits = 0, 0
    for call in range(bounds.shape[0] - 1):
        for low in range(bounds[call], bounds[call + 1], slots):
            high = min(low + slots, bounds[call + 1])
            clock += 1
            hits = 0
            for i in range(low, high):
                prefetch_to_write(start + ids[min(i + _AHEAD, last)] * 32)
                id = ids[i]
                count = keys[id, _COUNT]
                if count >= 0:
                    hits += 1
                    access_hits += accesses[i]
                    _remove(keys, lists, id)
                    _append(keys, lists, id, min(count + (counting == COUNT_UP), COUNT_MAX), clock)
            event_hits += hits
            touches += hits
            if ageing and touches >= ageing:
                _age(keys, lists)
                touches, least = 0, 0
            missing = high - low - hits
            if not missing:
                continue
            for _ in range(resident + missing - slots):
                least = _least_from(lists, least)
                id = _next_victim(keys, lists, least, clock)
                _remove(keys, lists, id)
                keys[id, _COUNT] = -1
                resident -= 1
            touches += missing
            if ageing and touches >= ageing:
                _age(keys, lists)
                touches, least = 0, 0
            resident += missing
            least = _least_from(lists, least)
            count = int(counting == COUNT_UP)
            if counting == COUNT_UP and resident == slots:
                id = _next_victim(keys, lists, least, clock)
                if id >= 0:
                    count = max(count, keys[id, _COUNT])
            for i in range(low, high):
                id = ids[i]
                if keys[id, _COUNT] < 0:
                    if counting == COUNT_KEEP:
                        count = first_counts[id]
                    _append(keys, lists, id, count, clock)
                    least = min(least, count)
    result[0], result[1] = access_hits, event_hits
