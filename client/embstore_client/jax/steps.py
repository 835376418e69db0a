"""One batch: its rows for a compiled function, and the update by that function's gradients.

A step offers its rows in two forms. **Activations** are pooled on the host by the contract (rule
8). A function that is differentiated with respect to activations returns gradients of bags, which
the store sums in its own order. **Rows** are the distinct rows, padded, which a function pools
itself. Such a function returns gradients of rows, which XLA has summed.
"""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import jax  # type: ignore[import-not-found, unused-ignore]
import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]
import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import unique
from embstore.arrays import Keys, Rows
from embstore.commands import LearningRate, OnNonfinite
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate
from embstore_client.frameworks.clipping import norm_of, summed
from embstore_client.frameworks.gradients import KeptGradients
from embstore_client.frameworks.occurrences import Given, keys_by_table, places, pooled
from embstore_client.frameworks.rows import AnnouncedStep, Found
from embstore_client.frameworks.tables import Ids
from embstore_client.jax.padding import Places, Sizes, padded_rows, places_of


class PlainStep:
    """A batch without a session, with the methods of an `AnnouncedStep`. Its rows are looked up at
    once, and its update is a separate update of the store."""

    def __init__(self, store: Store, keys: Mapping[str, Keys], *, admit: bool) -> None:
        once = {table: unique(of_table) for table, of_table in keys.items()}
        self._store = store
        self._keys = {table: distinct for table, (distinct, _) in once.items()}
        counts = {
            table: np.bincount(inverse, minlength=len(self._keys[table]))
            for table, (_, inverse) in once.items()
        }
        found = store.lookup(self._keys, admit=admit, counts=counts)
        self._found = {table: Found(rows, once[table][1]) for table, rows in found.items()}

    def rows(self, keys: Mapping[str, Keys]) -> dict[str, Found]:
        """Return the rows of all keys of the batch, whatever `keys` is."""
        return self._found

    def update(
        self, gradients: Mapping[str, tuple[Keys, Rows]], **options: Any
    ) -> AcknowledgedUpdate:
        """Apply one update, by gradients of ids."""
        return self._store.update(gradients, **options)

    def update_unique(self, sums: Mapping[str, Rows], **options: Any) -> AcknowledgedUpdate:
        """Apply one update, by gradients of distinct rows."""
        gradients = {table: (self._keys[table], of) for table, of in sums.items()}
        return self._store.update(gradients, **options)

    def skip(self) -> None:
        """Do nothing: there is no step to finish."""

    def release(self) -> None:
        """Do nothing: there is no step to finish."""


Source = AnnouncedStep | PlainStep
"""An object that returns a step's rows, and receives the step's update."""


class Step:
    """One batch of a loop of `ahead`, or the result of `lookup`."""

    def __init__(
        self,
        source: Source,
        tables: Mapping[str, Ids],
        given: Given,
        sizes: Sizes,
        *,
        batch: Any = None,
        number: int = 0,
        world_size: int = 1,
        frozen: Collection[str] = (),
    ) -> None:
        self.batch = batch
        """The batch, as the iterator returned it."""
        self.number = number
        """The step's number in its session; 0 without a session."""
        self._source = source
        self._tables = tables
        self._given = given
        self._sizes = sizes
        self._world_size = world_size
        self._frozen = frozen  # the frozen tables; this set may change
        self._scale = 1.0 / world_size

    @cached_property
    def activations(self) -> dict[str, Any]:
        """The pooled rows of each feature: (bags, dim), or (*, dim) for ids that are not pooled.

        Activations are float32. They are computed by the contract, with the same bits on every
        machine.
        """
        found = pooled(self._given, self._found)
        return {feature: jnp.asarray(outputs) for feature, outputs in found.items()}

    @cached_property
    def rows(self) -> dict[str, Any]:
        """The distinct rows of each table, {table: (size, dim)} float32, padded with zeros."""
        return {
            table: padded_rows(
                found.rows,
                self._sizes.of_table(table, len(found.rows), self._tables[table].rows),
            )
            for table, found in self._found.items()
        }

    @cached_property
    def places(self) -> dict[str, Places]:
        """The positions of each feature's ids among `rows`, for `pool`."""
        found, result = self._found, {}
        for feature, of, place in places(self._given):
            inverse = found[of.table].inverse
            assert inverse is not None
            count = len(found[of.table].rows)
            result[feature] = places_of(feature, of, inverse[place], count, self._sizes)
        return result

    def update(
        self,
        gradients: Mapping[str, Any],
        *,
        learning_rate: LearningRate | None = None,
        gradient_scale: float | None = None,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate | None:
        """Send the gradients of activations as one update. In a loop this method finishes the step.

        Parameters
        ----------
        gradients : {feature: an array with the shape that `activations` has for the feature}, of
            any float dtype. A feature that is missing, or whose value is None, has no gradient. A
            table without gradients is not updated, and its t stays; the same holds for a frozen
            table
        learning_rate : the rate for this update only, of all tables or by table, {name: rate}.
            None: the learning rates of the tables
        gradient_scale : the factor of the gradients. None: 1 / world_size of the loop, so that the
            update is the mean of the ranks
        on_nonfinite : "refuse", or "skip" an update with gradients that are not finite

        Returns
        -------
        The store's answer. None: there were no gradients, and no step to be finished.

        Raises
        ------
        InvalidArgumentError : features, shapes or dtypes differ from those of `activations`; or a
            gradient is not finite. Nothing has changed.
        """
        sent = self._by_table(gradients)
        if not sent and self._world_size == 1:
            return self.release()
        _ = self._found  # An announced step must be looked up before its update.
        scale = self._scale if gradient_scale is None else gradient_scale
        return self._source.update(
            sent,
            learning_rate=learning_rate,
            gradient_scale=scale,
            on_nonfinite=on_nonfinite,
        )

    def update_unique(
        self,
        gradients: Mapping[str, Any],
        *,
        learning_rate: LearningRate | None = None,
        gradient_scale: float | None = None,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate | None:
        """Send the gradients of `rows` as one update, as `update` does. Gradients of padding are
        cut off.

        Parameters
        ----------
        gradients : {table: an array with the shape that `rows` has for the table}; a table that is
            missing, or whose value is None, is not updated
        """
        sent = _on_host(gradients, self._tables, "tables")
        sums = {}
        for name, of in sent.items():
            whole = _floats(of, self.rows[name].shape, f"table {name!r}")
            if name not in self._frozen:
                sums[name] = np.array(whole[: len(self._found[name].rows)], np.float32)
        if not sums and self._world_size == 1:
            return self.release()
        scale = self._scale if gradient_scale is None else gradient_scale
        return self._source.update_unique(
            sums, learning_rate=learning_rate, gradient_scale=scale, on_nonfinite=on_nonfinite
        )

    def grad_norm(self, gradients: Mapping[str, Any]) -> float:
        """Return the L2 norm of gradients of activations, in the form that `update` accepts, over
        the rows of all tables. A row's gradient is the sum over its occurrences. To clip gradients,
        pass the factor for the gradients to `update` as `gradient_scale`.

        For gradients of `rows`, use the norm of the pytree instead. If ranks share the step, each
        rank returns the norm of its own gradients.

        Raises
        ------
        InvalidArgumentError : features, shapes or dtypes differ from those of `activations`.
        """
        return norm_of([summed(self._by_table(gradients))])

    def skip(self) -> AcknowledgedUpdate | None:
        """Finish the step of a session without its update."""
        return self._source.skip()

    def release(self) -> AcknowledgedUpdate | None:
        """Finish the step of a session that only read rows."""
        return self._source.release()

    def _by_table(self, gradients: Mapping[str, Any]) -> dict[str, tuple[Keys, Rows]]:
        """Return the gradients of ids, from gradients of activations."""
        sent = _on_host(gradients, self._given, "features")
        kept = KeptGradients(frozen=self._frozen)
        for index, (name, of) in enumerate(self._given.items()):
            if name in sent:
                shape = (*of.shape, self._tables[of.table].dim)
                rows = _floats(sent[name], shape, f"feature {name!r}")
                kept.take((0, index), of, np.ascontiguousarray(rows, np.float32))
        return kept.by_table()

    @cached_property
    def _found(self) -> dict[str, Found]:
        return self._source.rows(keys_by_table(self._given))


def _on_host(given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the gradients that are not None, on the host; refuse unknown names."""
    sent = {name: of for name, of in given.items() if of is not None}
    unknown = [name for name in sent if name not in known]
    if unknown:
        raise InvalidArgumentError(
            f"expected gradients of the {what} {list(known)}, found {unknown}"
        )
    found: dict[str, Any] = jax.device_get(sent)
    return found


def _floats(values: Any, shape: tuple[int, ...], what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.shape != shape or not jnp.issubdtype(array.dtype, jnp.floating):
        raise InvalidArgumentError(
            f"{what}: expected float gradients of shape {shape}, found {array.dtype} of shape "
            f"{array.shape}"
        )
    return array
