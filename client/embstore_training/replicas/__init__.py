"""Rows at a trainer, with their optimizer state. Updates give the same bits as updates at the
store.

    rows       weights and state, in slots
    update     one update of the rows: options, the sums of all ranks, the formulas
    ranks      the messages between ranks
    on_device  gradients on a device that the store has lent

Two packages use this package: `hotcold`, for hot rows, and `write_behind`, for the rows of a run
that is ahead of the store.
"""
