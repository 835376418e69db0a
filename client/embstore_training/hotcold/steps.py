"""Steps of a hot/cold run, for the body of its loop: on the replica, or at the store.

Both are used alike. A hot step calls no store; of several ranks, each way to finish it is a meeting
of all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from embstore.arrays import Keys
from embstore.commands import OnNonfinite, UpdateOptions
from embstore.errors import InvalidArgumentError
from embstore.results import AcknowledgedUpdate
from embstore_training.hotcold.packer import Batch
from embstore_training.hotcold.ranks import AllGather, Verb, meet
from embstore_training.hotcold.replica import Replica
from embstore_training.hotcold.update import Receipt
from embstore_training.read_ahead import check_names
from embstore_training.run import Step

ReplicaNow = Callable[[], Replica]
"""Returns the run's replica; raises InvalidArgumentError outside the run's with block."""


class HotColdStep(ABC):
    """One step of a run, for the body of its loop.

    A table's keys are those of its columns, one column after the other in the order in which the
    run was given them, of each sample after sample. Rows and gradients are in this order.
    """

    is_hot = False

    def __init__(self, replica: ReplicaNow, batch: Batch, keys: dict[str, Keys]) -> None:
        self._replica = replica
        self.batch = batch
        """The samples, in columns."""
        self.keys = keys
        """By table, (n,) int64."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether it has been updated, released or skipped."""

    @abstractmethod
    def lookup(self) -> dict[str, Any]:
        """Return a row for each key of the batch, in its order: (n, dim) by table."""

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
        gradients : of all the run's tables, (n, dim); summed by key here
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
        if not self.is_finished:
            check_names(gradients, self.keys, "gradients")
            check_names(self.keys, gradients, "the batch")
        options = UpdateOptions(learning_rate, gradient_scale, on_nonfinite)
        return self._update(gradients, vars(options))

    @abstractmethod
    def _update(self, gradients: Mapping[str, Any], options: dict[str, Any]) -> AcknowledgedUpdate:
        """See `update`."""

    @abstractmethod
    def release(self) -> None:
        """Finish the step, which only read."""

    @abstractmethod
    def skip(self) -> None:
        """Finish the step without its update."""


class MixedStep(HotColdStep):
    """A step at the store."""

    def __init__(self, replica: ReplicaNow, step: Step, keys: dict[str, Keys]) -> None:
        super().__init__(replica, step.batch, keys)
        self._step = step

    @property
    def is_finished(self) -> bool:
        return self._step.is_finished

    def lookup(self) -> dict[str, Any]:
        replica = self._replica()
        return {table: replica.to_trainer(rows) for table, rows in self._step.lookup().items()}

    def _update(self, gradients: Mapping[str, Any], options: dict[str, Any]) -> AcknowledgedUpdate:
        replica = self._replica()
        on_host = {table: replica.to_host(rows) for table, rows in gradients.items()}
        return self._step.update(on_host, **options)

    def release(self) -> None:
        self._step.release()

    def skip(self) -> None:
        self._step.skip()


class HotStep(HotColdStep):
    """A step on the replica, which calls no store."""

    is_hot = True

    def __init__(
        self,
        replica: ReplicaNow,
        batch: Batch,
        keys: dict[str, Keys],
        all_gather: AllGather | None,
    ) -> None:
        super().__init__(replica, batch, keys)
        self._all_gather = all_gather
        self._receipt = Receipt()
        self._finished_by = ""

    @property
    def is_finished(self) -> bool:
        return bool(self._finished_by) or self._receipt.is_taken

    def lookup(self) -> dict[str, Any]:
        return self._open("looked up").lookup(self.keys)

    def _update(self, gradients: Mapping[str, Any], options: dict[str, Any]) -> AcknowledgedUpdate:
        replica = self._open("updated")
        done = replica.update(
            {table: (self.keys[table], rows) for table, rows in gradients.items()},
            all_gather=self._all_gather,
            receipt=self._receipt,
            **options,
        )
        self._finished_by = "updated"
        return done

    def release(self) -> None:
        self._finish("released", Verb.RELEASE)

    def skip(self) -> None:
        self._finish("skipped", Verb.SKIP)

    def _finish(self, finished_by: str, verb: Verb) -> None:
        self._open(finished_by)
        meet(self._all_gather, verb)
        self._finished_by = finished_by

    def _open(self, verb: str) -> Replica:
        """Return the replica, if the step may still be `verb`."""
        replica = self._replica()
        if self.is_finished:
            finished_by = self._finished_by or "updated"  # An interrupt may have come between.
            raise InvalidArgumentError(f"the step was {finished_by} and cannot be {verb}")
        return replica
