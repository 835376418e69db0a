"""A slot's score: an int64 that says when the slot may be given to another row, in fields.

    bit 63        PENDING: the slot has its key, its row comes later; the score is negative
    bits 52..62   pins: how many keep the row in its slot, at most PINS_MAX
    bit 51        FORESEEN: the bits below rank the row by its next announced use
    bits 40..50   where it is not foreseen: the count, which is the policy's (cache/policies.py)
    bits 0..39    where it is not foreseen: the clock of the last call that touched the row

So the scores of slots that may be given away are [0, PIN_ONE), and among them a row that will be
used is above every row of which nothing is known. A touch ends FORESEEN, and counts from 1.

The CUDA kernels have the same constants (`kernels/common.cuh`).
"""

PENDING = -(1 << 63)
PIN_SHIFT = 52
PIN_ONE = 1 << PIN_SHIFT
PINS_MAX = (1 << 11) - 1
FORESEEN = 1 << 51
CLOCK_BITS = 40
CLOCK_MASK = (1 << CLOCK_BITS) - 1
COUNT_MAX = (1 << 11) - 1
COUNT_NONE, COUNT_UP, COUNT_KEEP = range(3)
"""What a touch does to the count: makes it 0, one more, or leaves it."""
