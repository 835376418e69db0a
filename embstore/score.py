"""A slot's score: an int64 that says when the slot may be given to another row, in fields.

    bit 63        PENDING: the slot has its key, its row comes later; the score is negative
    bits 52..62   pins: how many keep the row in its slot, at most PINS_MAX
    bit 51        FORESEEN: an announced step will use the row
                  not foreseen                       foreseen
                  bits 40..50  the count             bits 11..50  the rank of its next use
                  bits 0..39   the clock of the      bits 0..10   the count
                               last call that
                               touched the row

So the scores of slots that may be given away are [0, PIN_ONE), and among them a row that will be
used is above every row of which nothing is known. The count is the policy's (cache/policies.py),
and stays what it was when a row is foreseen, and when it is so no longer.

The CUDA kernels have the same constants (`kernels/score.cuh`).
"""

PENDING = -(1 << 63)
PIN_SHIFT = 52
PIN_ONE = 1 << PIN_SHIFT
PINS_MAX = (1 << 11) - 1
FORESEEN = 1 << 51
CLOCK_BITS = 40
CLOCK_MASK = (1 << CLOCK_BITS) - 1
RANK_SHIFT = 11
NO_USE, UNCHANGED = -1, -2
"""In place of a rank: no use is known; the slot stays as it is."""
COUNT_MAX = (1 << 11) - 1
COUNT_NONE, COUNT_UP, COUNT_KEEP = range(3)
"""What a touch does to the count: makes it 0, one more, or leaves it."""
