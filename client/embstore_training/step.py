"""One step of a run, as the body of the run's loop uses it. A step is looked up, and then finished
once.

Rows and gradients are per key, per distinct key, or per bag (`bags`). The step's exchange decides
where its rows are and how they are transferred. There is one exchange for sessions with the store,
one for write-behind runs, and one for a replica of hot rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import Pooling
from embstore.commands import LearningRate, OnNonfinite, UpdateOptions
from embstore.errors import InvalidArgumentError
from embstore.handles import parts
from embstore.handles.sessions import BagGradients, MakeRows, SomeGradients
from embstore.results import AcknowledgedUpdate
from embstore_training.bags import Forms, Of, bags_of
from embstore_training.exchange import Exchange
from embstore_training.read_ahead import Entry, check_names


class Step:
    """One step of a run, as the body of the run's loop uses it.

    Arrays are NumPy arrays. In a session whose rows stay on the store's device (`rows="device"` of
    `Store.session`), rows are arrays in the device's memory, and gradients can be, too: CuPy arrays
    on a GPU, or other objects with `__cuda_array_interface__`, such as PyTorch tensors.
    """

    def __init__(self, exchange: Exchange, entry: Entry) -> None:
        self._exchange = exchange
        self._entry = entry
        self.number = entry.number
        """The step's number in the session."""
        self.batch = entry.batch
        """The batch, as the iterator returned it."""

    @property
    def was_looked_up(self) -> bool:
        """Whether the step's rows were looked up."""
        return self._entry.was_looked_up

    @property
    def is_finished(self) -> bool:
        """Whether the step has been updated, released or skipped."""
        return bool(self._entry.finished_by)

    def lookup(self) -> dict[str, Any]:
        """Return a row for each key of the batch, in the order of the keys: (n, dim) float32 by
        table."""
        return self._looked_up(dict.fromkeys(self._entry.once, "keys"))

    @property
    def reaches_device(self) -> bool:
        """Whether the step's rows and gradients can be in the memory of the store's device."""
        return self._exchange.reaches_device

    def lookup_unique(
        self, out: MakeRows | None = None
    ) -> dict[str, tuple[Any, NDArray[np.int32]]]:
        """Return, by table, the rows of the distinct keys, (u, dim), and the index of each key's
        row, (n,), an array on the host.

        Parameters
        ----------
        out : function that makes the float32 arrays to be filled and returned. It is called with
            the names of all tables of the batch, and the shapes of the arrays. The arrays are in
            the memory of the store's device, if the step reaches it; for an embedded store they can
            also be on the host

        Raises
        ------
        InvalidArgumentError : `out` was passed, but the store is not embedded, and its device is
            not reached; or the step is finished.
        """
        once = self._entry.once
        if out is None:
            rows = self._looked_up(dict.fromkeys(once, "unique"))
        else:
            self._check_open("looked up")
            rows = self._exchange.lookup_into(self._entry, out)
            self._entry.was_looked_up = True
        return {table: (rows[table], once[table].inverse) for table in once}

    def lookup_pooled(
        self,
        offsets: Mapping[str, ArrayLike | None],
        mode: Pooling | Mapping[str, Pooling] = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Any]:
        """Return the pooled rows of each bag, (bags, dim) by table; an empty bag gets zeros.

        Usually a server pools the rows. But if the next step has at most three times as many ids as
        this step has bags, the server sends the next step's rows early, as for `lookup`, and this
        process pools them; the result has the same bits. If rows are rounded for the network, the
        server always pools.

        Parameters
        ----------
        offsets : by table, (bags + 1,) int64 from 0 to n: bag b has the batch's keys from
            offsets[b] to offsets[b + 1]; None: the table is not pooled, and its rows are as in
            `lookup`
        mode : one mode for all tables, or a mode by table; a table that is not named has "sum"
        weights : by table, (n,) float32, finite, for some or all tables with offsets and mode "sum"

        Raises
        ------
        InvalidArgumentError : an argument is wrong, or the step is finished.
        """
        self._check_open("looked up")
        inverses = {table: once.inverse for table, once in self._entry.once.items()}
        bags = bags_of(inverses, offsets, mode, weights)
        self._entry.bags |= bags
        return self._looked_up(bags)

    def _looked_up(self, forms: Forms) -> dict[str, Any]:
        self._check_open("looked up")
        rows = self._exchange.lookup(self._entry, forms)
        self._entry.was_looked_up = True
        return rows

    def update(
        self,
        gradients: Mapping[str, Any],
        *,
        learning_rate: LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with a gradient for each key of the batch.

        Parameters
        ----------
        gradients : by table, (n, dim) float32, which are summed by key. The rows and t of a table
            that is left out do not change
        learning_rate : one rate for all tables, or a rate by table; None: the table's rate; in a
            hot step, the table's rate when the phase began

        Returns
        -------
        The tables' t, and the command number. In a hot step the number is 0, because the store gets
        the update only later, when rows are pushed.

        Raises
        ------
        InvalidArgumentError : gradients have another shape, dtype or table, or a sum is not finite;
            in these cases the step is unchanged. Or the step is finished already.
        """
        options = self._options(learning_rate, gradient_scale, on_nonfinite)
        return self._update(dict.fromkeys(gradients, "keys"), gradients, options)

    def update_unique(
        self,
        gradients: Mapping[str, Any | SomeGradients],
        *,
        learning_rate: LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with one gradient for each distinct key.

        Parameters
        ----------
        gradients : by table, (u, dim) float32, in the order of `lookup_unique`: sums by key
            (`embstore.arithmetic.sum_by_key`), which are sent unchanged. With `SomeGradients`, keys
            that are left out are not updated.

        Returns, raises : as in `update`.
        """
        options = self._options(learning_rate, gradient_scale, on_nonfinite)
        return self._update(dict.fromkeys(gradients, "unique"), gradients, options)

    def update_pooled(
        self,
        gradients: Mapping[str, Any],
        *,
        learning_rate: LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with a gradient for each bag of its pooled lookup.

        Parameters
        ----------
        gradients : by table, (bags, dim) float32, for the bags, mode and weights of the last
            `lookup_pooled`. For a table that was not pooled: (n, dim), one gradient per key, as in
            `update`

        Returns, raises : as in `update`.
        """
        options = self._options(learning_rate, gradient_scale, on_nonfinite)
        forms: Forms = {table: self._entry.bags.get(table, "keys") for table in gradients}
        return self._update(forms, gradients, options)

    def update_occurrences(
        self,
        gradients: Mapping[str, BagGradients],
        *,
        learning_rate: LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with gradients of single occurrences of its distinct keys,
        or of bags of occurrences. It can follow any kind of lookup.

        Parameters
        ----------
        gradients : by table; `bags.inverse` is int32, the index of each occurrence in the order of
            `lookup_unique`. A key that does not occur is not updated

        Returns, raises : as in `update`.
        """
        options = self._options(learning_rate, gradient_scale, on_nonfinite)
        forms: Forms = {table: given.bags for table, given in gradients.items()}
        return self._update(forms, {t: given.rows for t, given in gradients.items()}, options)

    def _options(
        self,
        learning_rate: LearningRate | None,
        gradient_scale: float,
        on_nonfinite: OnNonfinite,
    ) -> UpdateOptions:
        return parts.options(learning_rate, gradient_scale, on_nonfinite, self._entry.once)

    def _update(
        self, forms: Mapping[str, Of], gradients: Mapping[str, Any], options: UpdateOptions
    ) -> AcknowledgedUpdate:
        self._check_open("updated")
        check_names(gradients, self._entry.once, "gradients")
        given = {table: (forms[table], values) for table, values in gradients.items()}
        done = self._exchange.update(self._entry, given, options)
        self._entry.finished_by = "updated"
        return done

    def release(self) -> AcknowledgedUpdate:
        """Finish a step whose rows were only read."""
        return self._finish("released")

    def skip(self) -> AcknowledgedUpdate:
        """Finish the step without its update."""
        return self._finish("skipped")

    def _finish(self, verb: str) -> AcknowledgedUpdate:
        self._check_open(verb)
        done = self._exchange.finish(self._entry, verb)
        self._entry.finished_by = verb
        return done

    def _check_open(self, verb: str) -> None:
        if self.is_finished:
            which = f"step {self.number}" if self.number else "the step"
            raise InvalidArgumentError(
                f"{which} was {self._entry.finished_by} and cannot be {verb}"
            )
