"""The changes of one update of a replica, which are written as a whole.

An update is first computed without changing the rows, as a list of changes. The list is kept until
all changes are written. If an interrupt (Ctrl-C) comes in between, the next call writes the list
again: to write a change twice has the same result as to write it once. So an update of a replica is
applied as a whole or not at all, as in the store. A **receipt** has the list, and shows the caller
of the update whether the update is applied: one assignment sets the list, and from then on the
update is part of the replica.
"""

from typing import Any, NamedTuple

import numpy as np

from embstore.commands import UpdateOptions
from embstore_training.hotcold.rows import HotTable
from embstore_training.replicas.rows import Slots
from embstore_training.replicas.update import Sums, updated


class Change(NamedTuple):
    """The change of one table by an update. To write a change twice has the same result as to write
    it once."""

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
    """Return the change of a table by an update. The rows do not change yet."""
    slots = table.pulled_slots(sums.keys)
    weights, state = updated(table.rows, table.trained, slots, sums.gradients, options)
    dirty_count = table.dirty_count + int(np.count_nonzero(~table.is_dirty[slots]))
    return Change(table, slots, weights, state, table.t + 1, dirty_count)


class Receipt:
    """Shows the caller of an update whether it was applied, even after an interrupt."""

    def __init__(self) -> None:
        self.changes: list[Change] | None = None
        """The changes to write. None: the update was not applied. Empty: all changes are
        written."""

    @property
    def is_taken(self) -> bool:
        """Whether the replica has accepted the update, so that it must not be repeated."""
        return self.changes is not None

    def synchronize(self) -> None:
        """Write the changes of the update, also changes that an interrupt has left unwritten."""
        for change in self.changes or ():
            change.put_in_place()
        if self.is_taken:
            self.changes = []
