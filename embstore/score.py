"""A slot's score: an int64 that orders slots for eviction, in bit fields.

    bit 63        PENDING: the slot has its key, its row is still being read; the score is negative
    bits 52..62   pins: the number of users that keep the row in its slot, at most PINS_MAX
    bit 51        FORESEEN: an announced step will use the row
                  not foreseen                       foreseen
                  bits 40..50  the count             bits 11..50  the rank of its next use
                  bits 0..39   the clock of the      bits 0..10   the count
                               last call that
                               touched the row

Slots that can be evicted thus have the scores [0, PIN_ONE). Among them a row that an announced step
will use is above every row without a known use. The count belongs to the policy
(cache/policies.py); it does not change when a row becomes foreseen, or is no longer foreseen.

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
"""Values in place of a rank. `NO_USE`: no use is known; `UNCHANGED`: the slot stays unchanged."""
COUNT_MAX = (1 << 11) - 1
COUNT_NONE, COUNT_UP, COUNT_KEEP = range(3)
"""The effect of a touch on the count: make it 0, add one, or leave it."""
