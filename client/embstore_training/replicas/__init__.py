"""Rows at a trainer, with their optimizer state, updated as the store would, bit for bit.

    rows    weights and state, in slots
    update  one update of them: options, the sums of all ranks, the formulas
    ranks   what ranks tell each other

What trains hot rows (`hotcold`) and what runs ahead of the store (`write_behind`) share it.
"""
