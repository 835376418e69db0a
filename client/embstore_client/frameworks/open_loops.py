"""The open loops of `ahead` in this program, and their conflicts with a new loop.

A loop that was left early, for example by `break`, stays open as long as a variable, a traceback or
a notebook refers to its generator. A store can report only that some session holds a table. This
module knows that the session belongs to the same program, so its error can say at once how to end
the session.

A loop inside the data loader of another loop is not allowed. The thread that reads batches would
advance the inner loop ahead of the training. The inner loop's current step would belong to a batch
that the trainer has not reached.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from embstore.errors import InvalidArgumentError, TableHeldError

_AS_ONE = "to train both in one loop, make one module with an entry for each"
_reading = threading.local()


class OpenLoop(NamedTuple):
    """A loop, with the properties that decide whether it conflicts with another loop."""

    store: Any
    tables: frozenset[str]
    name: str | None
    shared: bool

    def conflicts_with(self, other: "OpenLoop") -> set[str]:
        """Return the tables that both loops would hold. The set is empty for ranks of one session,
        which have one name, and for sessions that share their tables."""
        is_one = self.name is not None and self.name == other.name
        if self.store is not other.store or is_one or (self.shared and other.shared):
            return set()
        return {*self.tables & other.tables}


_open: dict[int, OpenLoop] = {}
"""The open loops, by the `id()` of each `OpenLoop`."""


def read(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches in the thread that reads them. While the thread reads a batch, it must not
    begin a loop; `opening` refuses such a loop."""
    left = iter(batches)
    while True:
        before, _reading.is_on = getattr(_reading, "is_on", False), True
        try:
            batch = next(left)
        except StopIteration:
            return
        finally:
            _reading.is_on = before
        yield batch


@contextmanager
def opening(loop: OpenLoop) -> Iterator[None]:
    """Register a loop as open within the block.

    Raises
    ------
    InvalidArgumentError : the loop begins within the loader of another loop.
    TableHeldError : another loop of this program holds one of the tables.
    """
    if getattr(_reading, "is_on", False):
        raise InvalidArgumentError(
            "expected two loops side by side, found one inside the loader of the other, which a "
            f"thread reads ahead of the training: {_AS_ONE}; or loop over both at once: for a, b "
            "in zip(first.ahead(batches, ...), second.ahead(batches, ...))"
        )
    for other in [*_open.values()]:
        if tables := other.conflicts_with(loop):
            raise TableHeldError(
                f"table {min(tables)!r} is held by a loop of another module in this program: if "
                f"that loop was left early, as by break, call its loop.close(); {_AS_ONE}"
            )
    own = id(loop)
    _open[own] = loop
    try:
        yield
    finally:
        del _open[own]


def outside(refused: TableHeldError) -> TableHeldError:
    """Return the error for a step that is outside of any loop, although a session holds one of its
    tables."""
    found = str(refused).partition(";")[0]
    return TableHeldError(
        f"{found}; found a step outside that loop: call step() inside the loop, or loop.close() "
        f"first if it was left early, as by break; {_AS_ONE}"
    )
