"""The loops of cache simulations (simulate.py). Recorded calls are run against caches that contain
keys but no rows.

An **event** is one key in one call. The events of call c are [bounds[c], bounds[c + 1]). ids[i], in
[0, k), is the key of event i; a call has each key at most once. A sampled key represents several
keys: weights[id] keys, in any unit.

For every event i of call c whose key was used before, last by call b, stack_depths writes two
values:

    above[i]  = the weight of the keys that calls b + 1 to c - 1 used
    since[i] = the weight of the keys whose last use before call c was in call b; the key of event i
                is one of them

    or, if there is no b: above[i] = -1, since[i] = the weight of all keys used before call c

simulate_scores computes the hits of a cache with room for a weight of `room`, with the scores
`count << 40 | clock` of cache/scores.py. A call with more weight is executed in parts. For each
count, a list links the resident keys in the order of clock, which is the order of their last
touches. Therefore a touch, or the choice of a victim, takes a few steps at any cache size. Ageing
merges the lists of two counts into one, by clock. Among keys of equal score, the key that was
touched first is evicted; the store evicts the lower slot. Both choices are as good as a random
choice.

Host memory only: no device has a twin of these kernels.
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
from embstore.score import COUNT_KEEP, COUNT_MAX, COUNT_UP

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
    weights: Int64sIn,  # (k,), >= 1
    last: Int64s,  # (k,), filled with -1; afterwards the last call that used each key
    above: Int64s,  # (e,)
    since: Int64s,  # (e,)
) -> None:
    """Write `above` and `since` for each event, as the module's docstring defines them."""
    calls = bounds.shape[0] - 1
    uses = np.zeros(calls, np.int64)  # for each call, the weight of the keys whose last use it is
    tree = np.zeros(calls + 1, np.int64)  # sums over these weights (Fenwick 1994)
    used = 0
    for call in range(calls):
        low, high = bounds[call], bounds[call + 1]
        for i in range(low, high):
            before = last[ids[i]]
            if before >= 0:
                above[i], since[i] = used - _sum_to(tree, before), uses[before]
            else:
                above[i], since[i] = -1, used
        total = 0
        for i in range(low, high):
            before, weight = last[ids[i]], weights[ids[i]]
            if before >= 0:
                uses[before] -= weight
                _add(tree, before, -weight)
            else:
                used += weight
            last[ids[i]] = call
            total += weight
        uses[call] = total
        _add(tree, call, total)


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
    """Return the key with the lowest score among those that the current call did not touch, or
    -1."""
    for count in range(least, LISTS):
        id = lists[count, _FIRST]
        if id >= 0 and keys[id, _CLOCK] != clock:
            return int(id)
    return -1


@building_block
def _least_from(lists: Int64Rows, least: int) -> int:
    """Return the lowest count of any resident key; no key has a count below `least`."""
    while least < LISTS - 1 and lists[least, _FIRST] < 0:
        least += 1
    return least


@building_block
def _age(keys: Int64Rows, lists: Int64Rows) -> None:
    """Halve the count of every resident key."""
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


@building_block
def _evict(
    excess: int, weights: Int64sIn, keys: Int64Rows, lists: Int64Rows, least: int, clock: int
) -> tuple[int, int]:
    """Evict keys of weight `excess`, or as many as possible. Return their weight, and a new
    `least`: no resident key has a lower count."""
    left = 0
    while left < excess:
        least = _least_from(lists, least)
        id = _next_victim(keys, lists, least, clock)
        if id < 0:  # the weight of one key exceeds the room
            break
        _remove(keys, lists, id)
        keys[id, _COUNT] = -1
        left += weights[id]
    return left, least


@building_block
def _admit(
    ids: Int64sIn,
    first_counts: Int64sIn,
    counting: int,
    is_full: bool,
    keys: Int64Rows,
    lists: Int64Rows,
    least: int,
    clock: int,
) -> int:
    """Make the missing keys of a call resident. Return a new `least`: no resident key has a lower
    count."""
    count = int(counting == COUNT_UP)
    if is_full and counting == COUNT_UP:
        least = _least_from(lists, least)
        id = _next_victim(keys, lists, least, clock)
        if id >= 0:
            count = max(count, keys[id, _COUNT])
    for i in range(ids.shape[0]):
        id = ids[i]
        if keys[id, _COUNT] < 0:
            if counting == COUNT_KEEP:
                count = first_counts[id]
            _append(keys, lists, id, count, clock)
            least = min(least, count)
    return least


@kernel
def simulate_scores(
    bounds: Int64sIn,  # (calls + 1,)
    ids: Int64sIn,  # (e,)
    accesses: Int64sIn,  # (e,)
    weights: Int64sIn,  # (k,), >= 1
    first_counts: Int64sIn,  # (k,), the count of each key when it is admitted, at most COUNT_MAX
    warm: Int64sIn,  # unique ids of the cache's initial keys, which fit, in the order of touch
    room: Int,
    counting: Int,  # COUNT_UP, COUNT_KEEP or COUNT_NONE
    ageing: Int,  # the weight of touches after which all counts are halved; 0: never
    keys: Int64Rows,  # (k, 4), overwritten: next, previous, count or -1 if not resident, clock
    result: Int64s,  # (2,)
) -> None:
    """Write to `result` the accesses and the weights of events whose keys were resident, summed."""
    lists = np.full((LISTS, 2), -1, np.int64)
    keys[:, _COUNT] = -1
    resident, clock = 0, 0
    for i in range(warm.shape[0]):
        _append(keys, lists, warm[i], first_counts[warm[i]], 0)
        resident += weights[warm[i]]
    touches = resident
    start, last = keys.ctypes.data, ids.shape[0] - 1
    is_full = False  # after the first eviction, each new key evicts another
    least = 0  # no resident key has a lower count
    access_hits, event_hits = 0, 0
    low = 0
    for call in range(bounds.shape[0] - 1):
        while low < bounds[call + 1]:
            clock += 1
            high, used, missing = low, 0, 0
            while high < bounds[call + 1] and (high == low or used + weights[ids[high]] <= room):
                prefetch_to_write(start + ids[min(high + _AHEAD, last)] * 32)
                id = ids[high]
                used += weights[id]
                count = keys[id, _COUNT]
                if count >= 0:
                    event_hits += weights[id]
                    access_hits += accesses[high]
                    _remove(keys, lists, id)
                    _append(keys, lists, id, min(count + (counting == COUNT_UP), COUNT_MAX), clock)
                else:
                    missing += weights[id]
                high += 1
            touches += used - missing
            if ageing and touches >= ageing:
                _age(keys, lists)
                touches, least = 0, 0
            excess = resident + missing - room if missing else 0
            left, least = _evict(excess, weights, keys, lists, least, clock)
            is_full |= left > 0
            touches += missing
            if ageing and touches >= ageing:
                _age(keys, lists)
                touches, least = 0, 0
            resident += missing - left
            if missing:
                new = ids[low:high]
                least = _admit(new, first_counts, counting, is_full, keys, lists, least, clock)
            low = high
    result[0], result[1] = access_hits, event_hits
