"""Steps of a hot/cold run, as the body of its loop uses them: on the replica, or at the store.

Hot steps and mixed steps are both an `embstore_training.step.Step`, with different exchanges. A hot
step calls no store. With several ranks, all of them exchange messages whenever a hot step is
finished. The replica pools the bags of a hot step on the store's device, by the store's kernel, or
else on the host. The bits are the same.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import unique
from embstore.arrays import Keys
from embstore.commands import UpdateOptions
from embstore.handles.sessions import StepBags
from embstore.results import AcknowledgedUpdate
from embstore_training.bags import Forms
from embstore_training.exchange import Exchange, Given
from embstore_training.hotcold.packer import Batch
from embstore_training.hotcold.ragged import keys_of, offsets_of
from embstore_training.hotcold.replica import Replica
from embstore_training.hotcold.update import Receipt
from embstore_training.read_ahead import Entry, OnceKeys
from embstore_training.replicas.ranks import AllGather, Verb, meet
from embstore_training.step import Step

ReplicaNow = Callable[[], Replica]
"""A function that returns the run's replica; it raises InvalidArgumentError outside the run."""

_VERBS = {"released": Verb.RELEASE, "skipped": Verb.SKIP}


class HotColdStep(Step):
    """One step of a hot/cold run, as the body of its loop uses it.

    A table's keys are the ids of its columns, column by column in the order of the run's columns,
    and within a column sample by sample. Rows and gradients are in this order.
    """

    def __init__(
        self, exchange: Exchange, entry: Entry, columns: Mapping[str, str], *, is_hot: bool
    ) -> None:
        super().__init__(exchange, entry)
        self._columns = columns
        self.is_hot = is_hot
        """Whether the step is trained on the replica, and calls no store."""
        self.keys = keys_of(self.batch, columns)
        """The step's keys by table, (n,) int64."""

    @classmethod
    def hot(cls, exchange: "HotExchange", batch: Batch, columns: Mapping[str, str]) -> Self:
        """Return a step on the replica."""
        return cls(exchange, HotEntry(batch, columns), columns, is_hot=True)

    @classmethod
    def mixed(cls, replica: ReplicaNow, step: Step, columns: Mapping[str, str]) -> Self:
        """Return a step at the store, made from its session's step."""
        exchange = MixedExchange(replica, step._exchange)
        return cls(exchange, step._entry, columns, is_hot=False)

    @property
    def offsets(self) -> dict[str, NDArray[np.int64]]:
        """The offsets of bags by table, (bags + 1,): a bag per column and sample, in order."""
        return offsets_of(self.batch, self._columns)


class HotEntry(Entry):
    """A batch that is trained on the replica. It is not a step of a session."""

    def __init__(self, batch: Batch, columns: Mapping[str, str]) -> None:
        self.receipt = Receipt()
        self.given = keys_of(batch, columns)
        super().__init__(0, batch, _OnceKeys(self.given))

    @property
    def finished_by(self) -> str:
        """The verb that finished the step, even if an interrupt came before the verb was stored
        here."""
        return self._finished_by or ("updated" if self.receipt.is_taken else "")

    @finished_by.setter
    def finished_by(self, verb: str) -> None:
        self._finished_by = verb


class _OnceKeys(Mapping[str, OnceKeys]):
    """The distinct keys of tables, computed when they are first needed."""

    def __init__(self, keys: Mapping[str, Keys]) -> None:
        self._keys = keys
        self._once: dict[str, OnceKeys] = {}

    def __getitem__(self, table: str) -> OnceKeys:
        if table not in self._once:
            self._once[table] = OnceKeys(*unique(self._keys[table]))
        return self._once[table]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class MixedExchange(Exchange):
    """The exchange of a session, with rows converted to the form in which the replica returns
    rows."""

    def __init__(self, replica: ReplicaNow, there: Exchange) -> None:
        self._replica, self._there = replica, there

    def lookup(self, entry: Entry, forms: Forms) -> dict[str, Any]:
        """See `Exchange`."""
        replica, found = self._replica(), self._there.lookup(entry, forms)
        return {table: replica.to_trainer(rows) for table, rows in found.items()}

    def update(self, entry: Entry, given: Given, options: UpdateOptions) -> AcknowledgedUpdate:
        """See `Exchange`."""
        replica = self._replica()
        sent = {table: (of, replica.to_store(rows)) for table, (of, rows) in given.items()}
        return self._there.update(entry, sent, options)

    def finish(self, entry: Entry, verb: str) -> AcknowledgedUpdate:
        """See `Exchange`."""
        return self._there.finish(entry, verb)


class HotExchange(Exchange):
    """The exchange of hot steps with the replica."""

    def __init__(self, replica: ReplicaNow, all_gather: AllGather | None) -> None:
        self._replica, self._all_gather = replica, all_gather

    def lookup(self, entry: Entry, forms: Forms) -> dict[str, Any]:
        """See `Exchange`."""
        assert isinstance(entry, HotEntry)
        replica, once = self._replica(), entry.once
        plain = {t: of for t, of in forms.items() if not isinstance(of, StepBags)}
        named = {t: entry.given[t] if of == "keys" else once[t].keys for t, of in plain.items()}
        found = replica.lookup(named)
        return {
            table: replica.pooled(table, once[table].keys, of)
            if isinstance(of, StepBags)
            else found[table]
            for table, of in forms.items()
        }

    def update(self, entry: Entry, given: Given, options: UpdateOptions) -> AcknowledgedUpdate:
        """See `Exchange`."""
        assert isinstance(entry, HotEntry)
        replica = self._replica()
        return replica.update(
            {
                table: replica.given(table, entry.given, entry.once, *of_table)
                for table, of_table in given.items()
            },
            all_gather=self._all_gather,
            receipt=entry.receipt,
            learning_rate=options.learning_rates or options.learning_rate,
            gradient_scale=options.gradient_scale,
            on_nonfinite=options.on_nonfinite,
        )

    def finish(self, entry: Entry, verb: str) -> AcknowledgedUpdate:
        """See `Exchange`."""
        replica = self._replica()
        meet(self._all_gather, _VERBS[verb])
        return AcknowledgedUpdate(0, replica.t, skipped=verb == "skipped")
