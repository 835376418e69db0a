"""Where the rows of a forward come from: the store, or an announced step of a session.

The store returns a row for each id, for all tables by one call; that keys travel once each is the
client's doing. The rows of a step come once for each key, with the row of each id, at its first
forward; later ones of the same step (micro-batches, a forward that is computed again) find their
keys among the announced ones.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import sum_by_key
from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import SomeGradients
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate


class Found(NamedTuple):
    """The rows of one table in one forward."""

    rows: Rows
    """(u, dim)"""
    inverse: NDArray[np.int32] | None
    """(n,), the row of each id; None: u is n, in the order of the ids."""

    def of(self, place: slice) -> Rows:
        """Return the rows of some ids, (m, dim)."""
        return self.rows[place] if self.inverse is None else self.rows[self.inverse[place]]


def from_store(store: Store, keys: Mapping[str, Keys], *, admit: bool) -> dict[str, Found]:
    """Return the rows of keys (n,) by table, by one call."""
    return {table: Found(rows, None) for table, rows in store.lookup(keys, admit=admit).items()}


class AnnouncedStep:
    """A step of a look-ahead session, as the forwards between two calls of `step` use it."""

    def __init__(self, step: Any, keys: Mapping[str, Keys]) -> None:
        """Use an `embstore_training.run.Step`, which was announced with `keys` by table, (n,)."""
        self._step = step
        self.number: int = step.number
        """In its session."""
        self._keys = keys
        self._found: dict[str, Found] = {}  # Of all announced keys; none before the first forward.

    @property
    def is_finished(self) -> bool:
        """Whether it has been updated, released or skipped."""
        return bool(self._step.is_finished)

    def rows(self, keys: Mapping[str, Keys]) -> dict[str, Found]:
        """Return the rows of keys (n,) by table.

        Raises
        ------
        InvalidArgumentError : a key was not announced, or the step is finished.
        """
        if not self._found or self._step.is_finished:
            found = self._step.lookup_unique()
            self._found = {table: Found(*of_table) for table, of_table in found.items()}
        return {
            table: Found(self._found[table].rows, self._places(table, of_table))
            for table, of_table in keys.items()
        }

    def update(
        self, gradients: Mapping[str, tuple[Keys, Rows]], **options: Any
    ) -> AcknowledgedUpdate:
        """Finish the step by one update: the gradients of ids, by table, summed by key here.

        What was announced and has no gradient is left out.
        """
        self.rows({})  # they may not have been looked up yet, if gradients come from elsewhere
        sums = {table: self._sums(table, *of_ids) for table, of_ids in gradients.items()}
        return self.update_unique(sums, **options)

    def update_unique(
        self, sums: Mapping[str, Rows | SomeGradients], **options: Any
    ) -> AcknowledgedUpdate:
        """Finish the step by one update: sums by key, in the order of `rows`."""
        done: AcknowledgedUpdate = self._step.update_unique(sums, **options)
        return done

    def skip(self) -> AcknowledgedUpdate:
        """Finish the step without its update."""
        done: AcknowledgedUpdate = self._step.skip()
        return done

    def release(self) -> AcknowledgedUpdate:
        """Finish the step, which only read."""
        done: AcknowledgedUpdate = self._step.release()
        return done

    def _sums(self, table: str, keys: Keys, gradients: Rows) -> Rows | SomeGradients:
        places, count = self._places(table, keys), len(self._found[table].rows)
        sums = sum_by_key(places, count, gradients)
        if places is self._found[table].inverse:
            return sums
        has_gradient = np.zeros(count, np.bool_)
        has_gradient[places] = True
        if has_gradient.all():
            return sums
        return SomeGradients(np.flatnonzero(has_gradient), sums[has_gradient])

    def _places(self, table: str, keys: Keys) -> NDArray[np.int32]:
        announced, inverse = self._keys[table], self._found[table].inverse
        assert inverse is not None
        if np.array_equal(keys, announced):
            return inverse
        known = np.empty(len(self._found[table].rows), np.int64)
        known[inverse] = announced
        order = np.argsort(known)
        places = np.searchsorted(known, keys, sorter=order)
        found = np.append(order, 0)[places]  # 0 in place of one that there is not
        missing = (places == len(known)) | (np.append(known, -1)[found] != keys)
        if missing.any():
            raise InvalidArgumentError(
                f"table {table!r}: expected keys that were announced for step "
                f"{self.number}, found {keys[missing][0]}"
            )
        return found.astype(np.int32)
