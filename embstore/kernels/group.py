"""The positions of a call, grouped by id; within a group they are ascending.

group, over ids: positions[starts[id]:starts[id + 1]] = the p with inverse[p] = id, ascending.

Preconditions: ids in [0, u), fewer than 2**31 positions. The result depends only on the ids. The
kernel cannot be split: a thread would need to know how often each id occurs in all parts before its
own part.
"""

from embstore.arithmetic.compiled import group_positions
from embstore.arithmetic.jit import Int32s, Int32sIn, Int64s, kernel


@kernel
def group(
    inverse: Int32sIn,  # (n,)
    starts: Int64s,  # (u + 1,)
    positions: Int32s,  # (n,)
) -> None:
    """Sort the positions by id, stably (a counting sort)."""
    group_positions(inverse, starts, positions)
