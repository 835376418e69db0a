"""Where the rows of a forward come from: the store, or an announced step of a session.

The store returns a row for each id, for all tables by one call; that keys travel once each is the
client's doing. The rows of a step come once for each key, with the row of each id, at its first
forward; later ones of the same step (micro-batches, a forward that is computed again) find their
keys among the announced ones.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.arithmetic import sum_by_key
from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate


class Found(NamedTuple):
    """The rows of one table in one forward."""

    rows: Any
    """(u, dim) float32 tensor on the host."""
    inverse: NDArray[np.int32] | None
    """(n,), the row of each id; None: u is n, in the order of the ids."""


def from_store(store: Store, keys: Mapping[str, Keys], *, admit: bool) -> dict[str, Found]:
    """Return the rows of keys (n,) by table, by one call."""
    found = store.lookup(keys, admit=admit)
    return {table: Found(_tensor(rows), None) for table, rows in found.items()}


class AnnouncedStep:
    """A step of a look-ahead session, as the forwards between two calls of `step` use it."""

    def __init__(self, step: Any, keys: Mapping[str, Keys]) -> None:
        """Use an `embstore_training.run.Step`, which was announced with `keys` by table, (n,)."""
        self._step = step
        self.number = step.number
        """In its session."""
        self._keys = keys
        self._rows: dict[str, Any] = {}  # By table; none before the first forward.
        self._inverse: dict[str, NDArray[np.int32]] = {}

    def rows(self, keys: Mapping[str, Keys]) -> dict[str, Found]:
        """Return the rows of keys (n,) by table.

        Raises
        ------
        InvalidArgumentError : a key was not announced, or the step is finished.
        """
        if not self._rows or self._step.is_finished:
            for table, (rows, inverse) in self._step.lookup_unique().items():
                self._rows[table], self._inverse[table] = _tensor(rows), inverse
        return {
            table: Found(self._rows[table], self._places(table, of_table))
            for table, of_table in keys.items()
        }

    def update(
        self, gradients: Mapping[str, tuple[Keys, Rows]], **options: Any
    ) -> AcknowledgedUpdate:
        """Finish the step by one update: the gradients of ids, by table, summed by key here.

        A key of theirs that was announced, and has no gradient, gets one of 0.
        """
        sums = {
            table: sum_by_key(self._places(table, keys), len(self._rows[table]), rows)
            for table, (keys, rows) in gradients.items()
        }
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

    def _places(self, table: str, keys: Keys) -> NDArray[np.int32]:
        announced, inverse = self._keys[table], self._inverse[table]
        if np.array_equal(keys, announced):
            return inverse
        known = np.empty(len(self._rows[table]), np.int64)
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


def _tensor(rows: Rows) -> Any:
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())
