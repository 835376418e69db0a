"""The source of a forward's rows: the store, or an announced step of a session.

The store returns a row for each id, for all tables in one call; the client makes keys unique before
sending them. At the first forward of a step, one row per distinct key arrives, with the index of
each id's row. Later forwards of the same step (micro-batches, a forward that is computed again)
find their keys among the announced keys.

With a store in this process, or a server that shares its GPU's memory, rows and gradients may be in
the device's memory, in arrays that the framework makes (`MakeRows`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows, shape_of
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import BagGradients, MakeRows, SomeGradients, StepBags
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate


class Positions(NamedTuple):
    """Ids of a step, as indices into the step's distinct keys."""

    places: NDArray[np.int32]
    """The index of each id's key, (n,) int32."""


Named = Keys | Positions
"""The ids to which gradients belong: keys (n,); or, within a step, indices into the step's distinct
keys."""


class Found(NamedTuple):
    """The rows of one table in one forward."""

    rows: Rows
    """(u, dim), in host memory, or in arrays of the framework."""
    inverse: NDArray[np.int32] | None
    """(n,), the row of each id. None: u is n, and rows are in the order of the ids."""

    def of(self, place: slice) -> Rows:
        """Return the rows of a slice of the ids, (m, dim)."""
        return self.rows[place] if self.inverse is None else self.rows[self.inverse[place]]


def from_store(
    store: Store,
    keys: Mapping[str, Keys],
    *,
    admit: bool,
    out: Mapping[str, Any] | None = None,
) -> dict[str, Found]:
    """Return the rows of keys (n,) by table, in one call; `out` as in `Store.lookup`."""
    rows = store.lookup(keys, admit=admit, out=out)
    return {table: Found(of_table, None) for table, of_table in rows.items()}


class AnnouncedStep:
    """A step of a look-ahead session, for the forwards between two calls of `step`: it returns
    their rows, and receives the update."""

    def __init__(
        self, step: Any, keys: Mapping[str, Keys], given: Any = None, looks: str = "evaluate"
    ) -> None:
        """Use an `embstore_training.run.Step` that was announced with `keys` by table, (n,).
        `looks` names the caller's function that reads rows without training, for messages."""
        self._step = step
        self._looks = looks
        self.number: int = step.number
        """The step's number in its session."""
        self.given = given
        """The adapter's other data of the step's batch."""
        self._keys = keys
        self._found: dict[str, Found] = {}  # Empty until the rows are looked up.

    @property
    def is_finished(self) -> bool:
        """Whether the step has been updated, released or skipped."""
        return bool(self._step.is_finished)

    @property
    def reaches_device(self) -> bool:
        """Whether the step's rows and gradients may be in arrays of the store's device."""
        return bool(self._step.reaches_device)

    def announced(self, make: MakeRows | None = None) -> dict[str, Found]:
        """Return, for each table, the rows of all keys of the step, and the row index of each
        announced id.

        Parameters
        ----------
        make : makes the arrays for the rows, if this call looks the rows up. None: rows are in host
            memory

        Raises
        ------
        InvalidArgumentError : the step is finished.
        """
        if self._step.is_finished:
            raise InvalidArgumentError(
                f"expected forwards before step() is called, found one of step {self.number} of "
                "the session, which is finished: take the next batch first, or with accumulate=N "
                "call step() after the last of N; to train twice on a batch, have the loader give "
                "it twice; if the loop was left early, as by break, call loop.close(); to read "
                f"rows only, {self._looks}"
            )
        if not self._found:
            found = self._step.lookup_unique(make)
            self._found = {table: Found(*of_table) for table, of_table in found.items()}
        return self._found

    def rows(self, keys: Mapping[str, Keys], make: MakeRows | None = None) -> dict[str, Found]:
        """Return the rows of keys (n,) by table; `make` as in `announced`.

        Raises
        ------
        InvalidArgumentError : a key was not announced, or the step is finished.
        """
        found = self.announced(make)
        return {
            table: Found(found[table].rows, self._places(table, of_table))
            for table, of_table in keys.items()
        }

    def update(
        self, gradients: Mapping[str, tuple[Named, Rows]], **options: Any
    ) -> AcknowledgedUpdate:
        """Finish the step by one update with the gradients of ids, by table.

        Announced keys without a gradient are not part of the update.
        """
        self._check_open()
        given = {
            table: BagGradients(StepBags(self._places(table, named)), rows)
            for table, (named, rows) in gradients.items()
        }
        done: AcknowledgedUpdate = self._step.update_occurrences(given, **options)
        return done

    def update_unique(
        self, sums: Mapping[str, Rows | SomeGradients], **options: Any
    ) -> AcknowledgedUpdate:
        """Finish the step by one update with one sum of gradients for each distinct key, in the
        order of the rows that `announced` returns."""
        self._check_open()
        done: AcknowledgedUpdate = self._step.update_unique(sums, **options)
        return done

    def skip(self) -> AcknowledgedUpdate:
        """Finish the step without its update."""
        self._check_open()
        done: AcknowledgedUpdate = self._step.skip()
        return done

    def release(self) -> AcknowledgedUpdate:
        """Finish a step that only read rows."""
        self._check_open()
        done: AcknowledgedUpdate = self._step.release()
        return done

    def _check_open(self) -> None:
        if self.is_finished:
            raise InvalidArgumentError(
                f"step() was called twice for this batch, or update() of JAX: step {self.number} "
                "of the session is finished; call it once a batch, after the last backward pass"
            )

    def keys_of(self, table: str, named: Named) -> Keys:
        """Return ids as keys, (n,)."""
        return self._once(table)[named.places] if isinstance(named, Positions) else named

    def _places(self, table: str, named: Named) -> NDArray[np.int32]:
        if isinstance(named, Positions):
            return named.places
        # If gradients were computed elsewhere, this may be the first code that needs the rows.
        announced, inverse, keys = self._keys[table], self.announced()[table].inverse, named
        assert inverse is not None
        if np.array_equal(keys, announced):
            return inverse
        known = self._once(table)
        order = np.argsort(known)
        places = np.searchsorted(known, keys, sorter=order)
        found = np.append(order, 0)[places]  # 0 for a key that is not found
        missing = (places == len(known)) | (np.append(known, -1)[found] != keys)
        if missing.any():
            raise InvalidArgumentError(
                f"table {table!r}: expected keys that were announced for step {self.number}, "
                f"found {keys[missing][0]}: have the function that was given as `features` return "
                "all ids of a batch; ids that the body draws, such as negative samples, must come "
                f"from the loader; to read rows only, {self._looks}"
            )
        return found.astype(np.int32)

    def _once(self, table: str) -> Keys:
        """Return the distinct keys of a table, in the order of the rows."""
        found = self.announced()[table]
        assert found.inverse is not None
        known = np.empty(shape_of(found.rows)[0], np.int64)
        known[found.inverse] = self._keys[table]
        return known
