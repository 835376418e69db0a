"""Where the rows of a forward come from: the store, or an announced step of a session.

Rows come once for each key of a forward, with the row of each id, for all tables by one call. Those
of a step come at its first forward; later ones of the same step (micro-batches, a forward that is
computed again) find their keys among the announced ones.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.arithmetic import sum_by_key, unique
from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate


class Found(NamedTuple):
    """The rows of one table in one forward."""

    rows: Any
    """(u, dim) float32 tensor on the host."""
    inverse: NDArray[np.int32]
    """(n,), the row of each id."""


def from_store(
    store: Store, keys: Mapping[str, Keys], dims: Mapping[str, int], *, admit: bool
) -> dict[str, Found]:
    """Return the rows of keys (n,) by table, by one call."""
    once = {table: unique(of_table) for table, of_table in keys.items()}
    out = {table: np.empty((len(named), dims[table]), "f4") for table, (named, _) in once.items()}
    asked = {table: named for table, (named, _) in once.items() if len(named)}
    if asked:
        counts = {t: np.bincount(once[t][1], minlength=len(named)) for t, named in asked.items()}
        store.lookup(asked, admit=admit, out={t: out[t] for t in asked}, counts=counts)
    return {table: Found(torch.from_numpy(out[table]), once[table][1]) for table in keys}


class AnnouncedStep:
    """A step of a look-ahead session, as the forwards between two calls of `step` use it."""

    def __init__(self, step: Any, keys: Mapping[str, Keys]) -> None:
        """Use an `embstore_training.run.Step`, which was announced with `keys` by table, (n,)."""
        self._step = step
        self.number = step.number
        """In its session."""
        self._keys = keys
        self._found: dict[str, Found] = {}

    def rows(self, keys: Mapping[str, Keys]) -> dict[str, Found]:
        """Return the rows of keys (n,) by table.

        Raises
        ------
        InvalidArgumentError : a key was not announced, or the step is finished.
        """
        if not self._found or self._step.is_finished:
            self._found = {
                table: Found(_tensor(rows), inverse)
                for table, (rows, inverse) in self._step.lookup_unique().items()
            }
        return {
            table: Found(self._found[table].rows, self._places(table, of_table))
            for table, of_table in keys.items()
        }

    def update(
        self, gradients: Mapping[str, tuple[Keys, Rows]], **options: Any
    ) -> AcknowledgedUpdate:
        """Finish the step by one update: the gradients of ids, by table, summed by key here.

        A key of theirs that was announced, and has no gradient, gets one of 0.
        """
        sums = {
            table: sum_by_key(self._places(table, keys), len(self._found[table].rows), rows)
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
        announced, (rows, inverse) = self._keys[table], self._found[table]
        if np.array_equal(keys, announced):
            return inverse
        known = np.empty(len(rows), np.int64)
        known[inverse] = announced
        order = np.argsort(known)
        places = np.searchsorted(known, keys, sorter=order)
        missing = places == len(known)
        found = order[np.where(missing, 0, places)] if len(known) else places
        missing = missing | (known[found] != keys) if len(known) else np.ones(len(keys), np.bool_)
        if missing.any():
            raise InvalidArgumentError(
                f"table {table!r}: expected keys that were announced for step "
                f"{self.number}, found {keys[missing][0]}"
            )
        return found.astype(np.int32)


def _tensor(rows: Rows) -> Any:
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())
