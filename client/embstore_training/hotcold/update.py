"""The changes of one update of a replica, put in place whole.

An update is computed apart from the rows and then put in place, from a list that is kept until all
of it is done. An interrupt in between (Ctrl-C) leaves that list, and the next call does it again:
to put a row in place twice is the same as once. An update thus happens whole or not at all here,
too. A **receipt** holds the list, and the caller that gave it can see by it whether the update is
taken: both become so by one assignment.
"""

from typing import Any, NamedTuple

import numpy as np

from embstore.commands import UpdateOptions
from embstore_training.hotcold.rows import HotTable
from embstore_training.replicas.rows import Slots
from embstore_training.replicas.update import Sums, updated


class Change(NamedTuple):
    """The change of one table by an update; to put it in place twice is the same as once."""

    table: HotTable
    slots: Slots
    weights: Any
    state: Any
    t: int
    dirty_count: int

    def put_in_place(self) -> None:
        """Write the change to the table's rows."""
        table = self.table
        table.rows.write(self.slots, self.weights, self.state)
        table.is_dirty[self.slots] = True
        table.dirty_count, table.t = self.dirty_count, self.t


def change(table: HotTable, sums: Sums, options: UpdateOptions) -> Change:
    """Return the change of a table by an update; its rows stay as they are for now."""
    slots = table.pulled_slots(sums.keys)
    weights, state = updated(table.rows, table.trained, slots, sums.gradients, options)
    dirty_count = table.dirty_count + int(np.count_nonzero(~table.is_dirty[slots]))
    return Change(table, slots, weights, state, table.t + 1, dirty_count)


class Receipt:
    """Shows the caller of an update whether it was done, though it ended by an interrupt."""

    def __init__(self) -> None:
        self.changes: list[Change] | None = None
        """None: the update was not taken. Empty: it is in place."""

    @property
    def is_taken(self) -> bool:
        """Whether the update is one of the replica's: it must not be done again."""
        return self.changes is not None

    def synchronize(self) -> None:
        """Put the update in place; one that was interrupted in this as well."""
        for change in self.changes or ():
            change.put_in_place()
        if self.is_taken:
            self.changes = []
