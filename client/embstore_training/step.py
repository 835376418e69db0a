"""One step of a run, for the body of its loop: looked up, then finished once.

Keys travel once each and gradients as sums (contract.md, rule 2), in announced order, so that
neither has to be looked for again. Bags are pooled by the store, or here, where their rows come
early anyway (`Step.lookup_pooled`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import Pooling
from embstore.arrays import Rows
from embstore.commands import OnNonfinite, UpdateOptions
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import SomeGradients
from embstore.results import AcknowledgedUpdate
from embstore_training.bags import Bags, as_gradients, bags_of, each_key, of_each_key, pooled
from embstore_training.exchange import Exchange
from embstore_training.read_ahead import Entry, check_names

_IDS_A_BAG = 3
"""Pooled rows of longer bags are so much less to send, and to pool here, that it is better to wait
for them."""


class Step:
    """One step of a run, for the body of its loop."""

    def __init__(self, exchange: Exchange, entry: Entry) -> None:
        self._exchange = exchange
        self._entry = entry
        self._once = entry.once
        self._bags: Bags = {}  # Of the last pooled lookup of each table.
        self._came: dict[str, Rows] | None = None  # Early rows, of which bags are pooled here.
        self._finished_by = ""  # The verb that finished it.
        self.number = entry.number
        """The step's number in the session."""
        self.batch = entry.batch
        """The batch, as the iterator gave it."""
        self.was_looked_up = False
        """Whether its rows were looked up."""

    @property
    def is_finished(self) -> bool:
        """Whether it has been updated, released or skipped."""
        return bool(self._finished_by)

    def lookup(self) -> dict[str, Rows]:
        """Return a row for each key of the batch, in its order: (n, dim) float32 by table."""
        self._check_open("looked up")
        rows = self._looked_up()
        return {table: once.spread(rows[table]) for table, once in self._once.items()}

    def lookup_unique(self) -> dict[str, tuple[Rows, NDArray[np.int32]]]:
        """Return the rows of the distinct keys, (u, dim), and which of them each key has, (n,)."""
        self._check_open("looked up")
        rows = self._looked_up()
        return {table: (rows[table], once.inverse) for table, once in self._once.items()}

    def _looked_up(self) -> dict[str, Rows]:
        rows = self._exchange.rows(self._entry)
        self.was_looked_up = True
        self._exchange.send_for_next()
        return rows

    def lookup_pooled(
        self,
        offsets: Mapping[str, ArrayLike | None],
        mode: Pooling | Mapping[str, Pooling] = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Rows]:
        """Return the pooled rows of each bag, (bags, dim) by table; an empty bag is zeros.

        A server pools them; or, where the next step has at most three ids for each bag of this one,
        it sends that step's rows as for `lookup`, early, and they are pooled here: the bits are the
        same. Where rows travel rounded, it is always the server that pools.

        Parameters
        ----------
        offsets : by table, (bags + 1,) int64 from 0 to n: bag b is the batch's keys from
            offsets[b] to offsets[b + 1]; None: the table is plain, its rows are those of `lookup`
        mode : of all tables, or by table; of those that it does not name "sum"
        weights : by table, for some of those with offsets, (n,) float32, finite; with "sum" only

        Raises
        ------
        InvalidArgumentError : any of that does not hold, or the step is finished.
        """
        self._check_open("looked up")
        inverses = {table: once.inverse for table, once in self._once.items()}
        bags = bags_of(inverses, offsets, mode, weights)
        is_coming = self._came is not None or self._exchange.has_rows(self._entry)
        if is_coming and self._exchange.pools_here:
            self._came = self._came or self._exchange.rows(self._entry)
        rows = self._pooled_there(bags) if self._came is None else self._pooled_here(bags)
        rows |= {table: self._once[table].spread(rows[table]) for table in bags if not bags[table]}
        self._bags |= bags
        self.was_looked_up = True
        if self._exchange.pools_here:
            bag_count = sum(
                len(of.offsets) - 1 if of else len(inverses[table])
                for table, of in self._bags.items()
            )
            self._exchange.send_for_next(_IDS_A_BAG * bag_count)
        return rows

    def _pooled_there(self, bags: Bags) -> dict[str, Rows]:
        """Return pooled rows, and those of plain tables' distinct keys, from the store."""
        sent = {table: of or each_key(len(self._once[table].keys)) for table, of in bags.items()}
        return self._exchange.pooled(self.number, sent)

    def _pooled_here(self, bags: Bags) -> dict[str, Rows]:
        """Return the same from the step's rows."""
        came = self._came or {}
        return {table: pooled(came[table], of) if of else came[table] for table, of in bags.items()}

    def update(
        self,
        gradients: Mapping[str, ArrayLike],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with a gradient for each key of the batch.

        Parameters
        ----------
        gradients : by table, (n, dim) float32; summed by key here
        learning_rate : None: the table's

        Raises
        ------
        InvalidArgumentError : another shape, dtype or table, a sum that is not finite; the step is
            as before. Or it is finished already.
        """
        self._check_open("updated")
        check_names(gradients, self._once, "gradients")
        sums = {}
        for table, values in gradients.items():
            once = self._once[table]
            rows = as_gradients(values, len(once.inverse), table)
            sums[table] = self._exchange.sum(table, once, rows)
        return self._update(sums, UpdateOptions(learning_rate, gradient_scale, on_nonfinite))

    def update_unique(
        self,
        gradients: Mapping[str, ArrayLike | SomeGradients],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with one gradient for each distinct key.

        Parameters
        ----------
        gradients : by table, (u, dim) float32, in the order of `lookup_unique`: sums by key
            (`embstore.arithmetic.sum_by_key`), which are sent as they are. `SomeGradients` leave
            keys out, which are not updated.

        Raises
        ------
        InvalidArgumentError : as `update`.
        """
        self._check_open("updated")
        check_names(gradients, self._once, "gradients")
        sums = {
            table: values
            if isinstance(values, SomeGradients)
            else as_gradients(values, len(self._once[table].keys), table)
            for table, values in gradients.items()
        }
        return self._update(sums, UpdateOptions(learning_rate, gradient_scale, on_nonfinite))

    def update_pooled(
        self,
        gradients: Mapping[str, ArrayLike],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with a gradient for each bag of its pooled lookup.

        Parameters
        ----------
        gradients : by table, (bags, dim) float32, for the bags, mode and weights of the last
            `lookup_pooled`; of a table that was not pooled (n, dim), for each key, as `update`

        Raises
        ------
        InvalidArgumentError : as `update`.
        """
        self._check_open("updated")
        check_names(gradients, self._once, "gradients")
        sums = {}
        for table, values in gradients.items():
            once = self._once[table]
            received = of_each_key(values, self._bags.get(table), len(once.inverse), table)
            sums[table] = self._exchange.sum(table, once, received)
        return self._update(sums, UpdateOptions(learning_rate, gradient_scale, on_nonfinite))

    def release(self) -> AcknowledgedUpdate:
        """Finish the step, which only read."""
        return self._finish("released")

    def skip(self) -> AcknowledgedUpdate:
        """Finish the step without its update."""
        return self._finish("skipped")

    def _update(self, sums: Mapping[str, Any], options: UpdateOptions) -> AcknowledgedUpdate:
        try:
            return self._finish("updated", sums, options)
        except BaseException:
            self._exchange.give_up_sums()
            raise

    def _check_open(self, verb: str) -> None:
        if self.is_finished:
            raise InvalidArgumentError(
                f"step {self.number} was {self._finished_by} and cannot be {verb}"
            )

    def _finish(
        self,
        verb: str,
        sums: Mapping[str, Any] | None = None,
        options: UpdateOptions | None = None,
    ) -> AcknowledgedUpdate:
        """Finish the step by a call of its session."""
        self._check_open(verb)
        done = self._exchange.finish(self._entry, verb, sums, options)
        self._finished_by = verb
        return done
