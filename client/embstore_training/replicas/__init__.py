"""Rows at a trainer, with their optimizer state, updated as the store would, bit for bit.

    rows    weights and state, in slots
    update  one update of them: options, the sums of all ranks, the formulas
    ranks   the messages between ranks

Hot rows (`hotcold`) and rows of a run ahead of the store (`write_behind`) share it.
"""
