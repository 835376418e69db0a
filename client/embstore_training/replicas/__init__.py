"""Rows at a trainer, with their optimizer state, updated as the store would, bit for bit.

    rows       weights and state, in slots
    update     one update of the rows: options, the sums of all ranks, the formulas
    ranks      the messages between ranks
    on_device  gradients on a device that the store has lent

Two packages use this package: `hotcold`, for hot rows, and `write_behind`, for the rows of a run
ahead of the store.
"""
