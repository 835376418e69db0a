"""Sum the gradients of a step's occurrences by key, on the host.

A store that gets gradients in its own memory sums them in that memory. Gradients that are sent, or
that wait for other ranks, are summed first, to one gradient per key (contract.md, rules 2 and 8).
"""

import numpy as np

from embstore import commands as c
from embstore.arithmetic import bag_gradients, sum_by_key


def summed_part(part: c.StepGradients, count: int) -> c.StepGradients:
    """Return gradients of occurrences as one sum for each key that occurs; return other gradients
    unchanged.

    count : number of announced keys; the values of `part.inverse` are below `count`
    """
    inverse, rows, bags = part.inverse, part.gradients, part.bags
    if inverse is None:
        return part
    if bags is not None:
        rows = bag_gradients(rows, bags.offsets, bags.mode, bags.weights)
    sums = sum_by_key(inverse.view(np.int32), count, rows)
    occurs = np.zeros(count, np.bool_)
    occurs[inverse] = True
    if occurs.all():
        return c.StepGradients(part.table, sums)
    return c.StepGradients(part.table, sums[occurs], np.flatnonzero(occurs).astype(np.uint32))
