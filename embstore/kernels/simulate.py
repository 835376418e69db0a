"""The loops of cache simulations (frequency/simulate.py): recorded calls against caches that hold
no rows.

An **event** is one key in one call; those of call c are [bounds[c], bounds[c + 1]), and ids[i], in
[0, k), is the key of event i, at most once in a call.

stack_depths, over the events i of every call c, before which the key was last used by call b:

    above[i] = how many distinct keys calls b + 1 to c - 1 used, or -1: there was no b
    beside[i] = how many keys, this one among them, call b was the last to use
    after_calls, the same with the calls before c in place of b + 1 to c - 1 where there was no b

simulate_scores: a cache of `slots` rows whose scores are `count << 40 | clock`, as policy.py has
it; a call of more keys is done in parts. One list for each count links the resident keys in order
of clock, for they are touched in that order, so that a touch and a victim are a few steps whatever
the size. The lists of two counts that ageing makes one are merged by clock. Where scores are equal,
the key touched first leaves first; the store takes the lower slot: either is as good as drawn.

Host memory only: no device has a twin of this.
"""

import numpy as np

from embstore.arithmetic.jit import Int, Int64Rows, Int64s, Int64sIn, building_block, kernel

COUNTS = 2048
_NONE = -1


@kernel
def stack_depths(
    bounds: Int64sIn,  # (calls + 1,)
    ids: Int64sIn,  # (e,)
    last: Int64s,  # (k,), -1 each; the last call of each key when done
    tree: Int64s,  # (calls + 1,), zeros: sums over how many keys each call was the last to use
    above: Int64s,  # (e,)
    beside: Int64s,  # (e,)
) -> int:
    """Write `above` and `beside`; return how many keys there were."""
    calls = bounds.shape[0] - 1
    uses = np.zeros(calls, np.int64)
    distinct = 0
    for call in range(calls):
        low, high = bounds[call], bounds[call + 1]
        for i in range(low, high):
            before = last[ids[i]]
            above[i], beside[i] = -1, distinct
            if before >= 0:
                total, place = 0, before + 1  # of calls 0 to before
                while place > 0:
                    total += tree[place]
                    place &= place - 1
                above[i], beside[i] = distinct - total, uses[before]
        for i in range(low, high):
            before = last[ids[i]]
            if before >= 0:
                uses[before] -= 1
                _add(tree, before + 1, -1)
            else:
                distinct += 1
            last[ids[i]] = call
        uses[call] = high - low
        _add(tree, call + 1, high - low)
    return distinct


@building_block
def _add(tree: Int64s, place: np.int64, amount: np.int64) -> None:
    while place < tree.shape[0]:
        tree[place] += amount
        place += place & -place
