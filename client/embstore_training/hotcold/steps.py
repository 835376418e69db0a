"""Steps of a hot/cold run, for the body of its loop: on the replica, or at the store.

Both are used alike, and as `embstore_training.step.Step` is. A hot step calls no store; of several
ranks, each way to finish it is a meeting of all of them. Its bags are pooled on the host, to the
bits of the store, also where the replica's rows are on a device.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import Pooling, unique
from embstore.arrays import Keys, as_keys
from embstore.commands import OnNonfinite, UpdateOptions
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import SomeGradients
from embstore.results import AcknowledgedUpdate
from embstore_training.bags import Bags, as_gradients, bags_of, of_each_key, pooled
from embstore_training.hotcold.packer import Batch
from embstore_training.hotcold.ragged import keys_of, offsets_of
from embstore_training.hotcold.replica import Replica
from embstore_training.hotcold.update import Receipt
from embstore_training.read_ahead import OnceKeys, check_names
from embstore_training.replicas.ranks import AllGather, Verb, meet
from embstore_training.step import Step

ReplicaNow = Callable[[], Replica]
"""Returns the run's replica; raises InvalidArgumentError outside the run's with block."""

Of = Literal["keys", "unique", "bags"]
"""What gradients are of: each key, each distinct key, each bag."""


class HotColdStep(ABC):
    """One step of a run, for the body of its loop.

    A table's keys are those of its columns, one column after the other in the order in which the
    run was given them, of each sample after sample. Rows and gradients are in this order.
    """

    is_hot = False

    def __init__(self, replica: ReplicaNow, batch: Batch, columns: Mapping[str, str]) -> None:
        self._replica = replica
        self._columns = columns
        self.batch = batch
        """The samples, in columns."""
        self.keys = keys_of(batch, columns)
        """By table, (n,) int64."""

    @property
    def offsets(self) -> dict[str, NDArray[np.int64]]:
        """By table, (bags + 1,): a bag for each sample of each of its columns, in their order."""
        return offsets_of(self.batch, self._columns)

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether it has been updated, released or skipped."""

    @abstractmethod
    def lookup(self) -> dict[str, Any]:
        """Return a row for each key of the batch, in its order: (n, dim) by table."""

    @abstractmethod
    def lookup_unique(self) -> dict[str, tuple[Any, NDArray[np.int32]]]:
        """Return the rows of the distinct keys, (u, dim), and which of them each key has, (n,), an
        array of the host."""

    @abstractmethod
    def lookup_pooled(
        self,
        offsets: Mapping[str, ArrayLike | None],
        mode: Pooling | Mapping[str, Pooling] = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Any]:
        """Return the pooled rows of each bag, (bags, dim) by table; see `Step.lookup_pooled`."""

    def update(
        self,
        gradients: Mapping[str, Any],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with a gradient for each key of the batch.

        Parameters
        ----------
        gradients : by table, (n, dim); summed by key here. A table that is left out has none: its
            rows and t stay
        learning_rate : None: the table's; of a hot step, as it was when the phase began

        Returns
        -------
        The tables' t; of a hot step the command number 0, until rows are pushed.

        Raises
        ------
        InvalidArgumentError : another shape, dtype or table, a sum that is not finite; the step is
            as before. Or it is finished already: as it is, where `is_finished` says so, after an
            interrupt (Ctrl-C) in here too.
        """
        options = UpdateOptions(learning_rate, gradient_scale, on_nonfinite)
        return self._checked_update("keys", gradients, options)

    def update_unique(
        self,
        gradients: Mapping[str, Any],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with one gradient for each distinct key.

        Parameters
        ----------
        gradients : by table, (u, dim), in the order of `lookup_unique`; `SomeGradients` leave keys
            out, which are not updated

        Returns, raises : as `update`.
        """
        options = UpdateOptions(learning_rate, gradient_scale, on_nonfinite)
        return self._checked_update("unique", gradients, options)

    def update_pooled(
        self,
        gradients: Mapping[str, Any],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with a gradient for each bag of its pooled lookup.

        Parameters
        ----------
        gradients : by table, (bags, dim), for the bags, mode and weights of the last
            `lookup_pooled`; of a table that was not pooled (n, dim), for each key, as `update`

        Returns, raises : as `update`.
        """
        options = UpdateOptions(learning_rate, gradient_scale, on_nonfinite)
        return self._checked_update("bags", gradients, options)

    def _checked_update(
        self, of: Of, gradients: Mapping[str, Any], options: UpdateOptions
    ) -> AcknowledgedUpdate:
        if not self.is_finished:
            check_names(gradients, self.keys, "gradients")
        return self._update(of, gradients, vars(options))

    @abstractmethod
    def _update(
        self, of: Of, gradients: Mapping[str, Any], options: dict[str, Any]
    ) -> AcknowledgedUpdate:
        """See `update`."""

    @abstractmethod
    def release(self) -> AcknowledgedUpdate:
        """Finish the step, which only read."""

    @abstractmethod
    def skip(self) -> AcknowledgedUpdate:
        """Finish the step without its update."""


class MixedStep(HotColdStep):
    """A step at the store."""

    def __init__(self, replica: ReplicaNow, step: Step, columns: Mapping[str, str]) -> None:
        super().__init__(replica, step.batch, columns)
        self._step = step

    @property
    def is_finished(self) -> bool:
        return self._step.is_finished

    def lookup(self) -> dict[str, Any]:
        replica = self._replica()
        return {table: replica.to_trainer(rows) for table, rows in self._step.lookup().items()}

    def lookup_unique(self) -> dict[str, tuple[Any, NDArray[np.int32]]]:
        replica, found = self._replica(), self._step.lookup_unique()
        return {t: (replica.to_trainer(rows), inverse) for t, (rows, inverse) in found.items()}

    def lookup_pooled(
        self,
        offsets: Mapping[str, ArrayLike | None],
        mode: Pooling | Mapping[str, Pooling] = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Any]:
        replica, found = self._replica(), self._step.lookup_pooled(offsets, mode, weights)
        return {table: replica.to_trainer(rows) for table, rows in found.items()}

    def _update(
        self, of: Of, gradients: Mapping[str, Any], options: dict[str, Any]
    ) -> AcknowledgedUpdate:
        replica, step = self._replica(), self._step
        on_host = {table: _on_host(replica, rows) for table, rows in gradients.items()}
        verb: Any = {"keys": step.update, "unique": step.update_unique, "bags": step.update_pooled}
        done: AcknowledgedUpdate = verb[of](on_host, **options)
        return done

    def release(self) -> AcknowledgedUpdate:
        return self._step.release()

    def skip(self) -> AcknowledgedUpdate:
        return self._step.skip()


class HotStep(HotColdStep):
    """A step on the replica, which calls no store."""

    is_hot = True

    def __init__(
        self,
        replica: ReplicaNow,
        batch: Batch,
        columns: Mapping[str, str],
        all_gather: AllGather | None,
    ) -> None:
        super().__init__(replica, batch, columns)
        self._all_gather = all_gather
        self._receipt = Receipt()
        self._finished_by = ""
        self._once: dict[str, OnceKeys] = {}  # Made when they are asked for.
        self._bags: Bags = {}  # Of the last pooled lookup of each table.

    @property
    def is_finished(self) -> bool:
        return bool(self._finished_by) or self._receipt.is_taken

    def lookup(self) -> dict[str, Any]:
        return self._open("looked up").lookup(self.keys)

    def lookup_unique(self) -> dict[str, tuple[Any, NDArray[np.int32]]]:
        replica, all_once = self._open("looked up"), self._all_once()
        rows = replica.lookup({table: once.keys for table, once in all_once.items()})
        return {table: (rows[table], once.inverse) for table, once in all_once.items()}

    def _all_once(self) -> dict[str, OnceKeys]:
        if not self._once:
            self._once = {table: OnceKeys(*unique(keys)) for table, keys in self.keys.items()}
        return self._once

    def lookup_pooled(
        self,
        offsets: Mapping[str, ArrayLike | None],
        mode: Pooling | Mapping[str, Pooling] = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Any]:
        replica, all_once = self._open("looked up"), self._all_once()
        inverses = {table: once.inverse for table, once in all_once.items()}
        bags = bags_of(inverses, offsets, mode, weights)
        found = replica.lookup({t: all_once[t].keys if bags[t] else self.keys[t] for t in bags})
        for table, of in bags.items():
            if of is not None:
                found[table] = replica.to_trainer(pooled(replica.to_host(found[table]), of))
        self._bags |= bags
        return found

    def _update(
        self, of: Of, gradients: Mapping[str, Any], options: dict[str, Any]
    ) -> AcknowledgedUpdate:
        replica = self._open("updated")
        done = replica.update(
            {table: self._of_keys(of, table, rows) for table, rows in gradients.items()},
            all_gather=self._all_gather,
            receipt=self._receipt,
            **options,
        )
        self._finished_by = "updated"
        return done

    def _of_keys(self, of: Of, table: str, rows: Any) -> tuple[Keys, Any]:
        """Return keys and a gradient for each of them, as a replica takes them."""
        if of == "keys":
            return self.keys[table], rows
        given = _on_host(self._replica(), rows)
        if of == "bags":
            keys = self.keys[table]
            return keys, of_each_key(given, self._bags.get(table), len(keys), table)
        keys = self._all_once()[table].keys
        if isinstance(given, SomeGradients):
            return keys[_positions(given.positions, len(keys), table)], given.rows
        return keys, as_gradients(given, len(keys), table)

    def release(self) -> AcknowledgedUpdate:
        return self._finish("released", Verb.RELEASE)

    def skip(self) -> AcknowledgedUpdate:
        return self._finish("skipped", Verb.SKIP)

    def _finish(self, finished_by: str, verb: Verb) -> AcknowledgedUpdate:
        replica = self._open(finished_by)
        meet(self._all_gather, verb)
        self._finished_by = finished_by
        return AcknowledgedUpdate(0, replica.t, skipped=verb is Verb.SKIP)

    def _open(self, verb: str) -> Replica:
        """Return the replica, if the step may still be `verb`."""
        replica = self._replica()
        if self.is_finished:
            finished_by = self._finished_by or "updated"  # An interrupt may have come between.
            raise InvalidArgumentError(f"the step was {finished_by} and cannot be {verb}")
        return replica


def _positions(given: ArrayLike, count: int, table: str) -> Keys:
    """Return which distinct keys have gradients, as a session takes them."""
    positions = as_keys(given, table)
    if len(positions) and not (
        positions[0] >= 0 and positions[-1] < count and (np.diff(positions) > 0).all()
    ):
        raise InvalidArgumentError(
            f"table {table!r}: expected ascending positions below {count}, the number of distinct "
            f"keys, found {positions}"
        )
    return positions


def _on_host(replica: Replica, rows: Any) -> Any:
    """Return gradients of the trainer as arrays of the host."""
    if isinstance(rows, SomeGradients):
        return rows._replace(rows=replica.to_host(rows.rows))
    return replica.to_host(rows)
