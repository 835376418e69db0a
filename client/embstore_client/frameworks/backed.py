"""Tables of a store as a part of a model: an adapter, for any framework.

**A step.** The classes here have no parameters. A forward looks rows up; a backward pass keeps the
gradients of the forward's outputs; `step` sends them as one update (`steps`), and the store's own
optimizer applies it. So anything may lie between: micro-batches, several backward passes, a forward
that is computed again, one whose output is not used. A row without a gradient is not updated.
Outside a loop of `ahead` each lookup and each update is a call of its own. Within it, both belong
to the step at hand: its tables have no other writer, and its place is part of every checkpoint.

**Exactness.** A bag's gradient becomes the gradients of its ids as contract.md, rule 8 says, and
the gradients of one id are added by rule 2, in the order of the forwards, then of the features,
then of the ids. A table has the same digest as in a program in NumPy that is given the same
gradients of bags.

    StoreBacked         tables, their store, the session's place, and a checkpoint of all of it
    StoreBackedModule   the same for frameworks whose parts have a state that changes in place

A framework adds its own parts: how its arrays become ids (`_given`, `_announced`), how rows become
activations, and the contents of its file (`saving.KeptFile`).

One thread at a time; callbacks and backward passes may run in the framework's own.
"""

import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar

from embstore.arrays import Keys
from embstore.commands import LearningRate
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate
from embstore_client.frameworks.clipping import checked_scale, clip_factor, norm_of
from embstore_client.frameworks.connection import Connection
from embstore_client.frameworks.marker import marker_of, warn_of_others
from embstore_client.frameworks.open_loops import read
from embstore_client.frameworks.rows import AnnouncedStep, Found
from embstore_client.frameworks.saving import KeptFile
from embstore_client.frameworks.scaling import Verdict
from embstore_client.frameworks.steps import ALONE, Announced, Ranks, Steps, in_groups
from embstore_client.frameworks.tables import FeatureLookup, Ids, as_they_are, by_name, lookups_of

Loop = Generator[tuple[AnnouncedStep, Announced], None, None]


class StoreBacked:
    """Tables of a store, a session's place in them, and the checkpoints of both."""

    tables: Mapping[str, Any]
    """The tables by name, each as its first entry has it."""
    entries: Sequence[Any]
    """The arguments of the module's constructor: each an `Ids` or a `Bag`."""
    lookups: Sequence[FeatureLookup]
    """The lookups of a forward, in the order of its activations."""
    _file: ClassVar[KeptFile]
    """The framework's file, which is kept with a checkpoint."""

    def _use(self, store: Store | Connection, entries: Sequence[Ids], steps: Steps) -> None:
        """Use the tables of these entries; make those that a store lacks. To be called once, when
        the framework's own part of the object is there."""
        self.entries = entries
        self.tables = by_name(entries)
        self.lookups = lookups_of(entries)
        self._steps = steps
        steps.gradients.frozen |= {
            name for name, table in self.tables.items() if not table.trainable
        }
        if isinstance(store, Connection):  # of a copy: its tables were made
            self._connection = store
        else:
            self.attach(store)
            for table in self.tables.values():
                table.create(store)

    @property
    def store(self) -> Store:
        """The store. A module that was sent to another process connects now.

        Raises
        ------
        InvalidArgumentError : its store was embedded in the process that it comes from.
        """
        return self._connection.store

    def attach(self, store: Store) -> None:
        """Use another store from now on, which has the tables.

        Raises
        ------
        InvalidArgumentError : it is no store.
        """
        if not hasattr(store, "executor"):
            raise InvalidArgumentError(
                "expected a store, as embstore.connect(address) or embstore.open(directory) "
                f"returns it, found {store!r}"
            )
        self._connection = Connection(store)

    @property
    def last_step(self) -> int:
        """The last finished step of the loop's session: the place that `save` keeps."""
        return self._steps.last_step

    def _tables_now(self) -> list[Any]:
        """Return the entries, for `repr`, with the learning rates of the store."""
        return as_they_are(self.entries, self._connection.connected, self.frozen)

    # Freezing

    @property
    def frozen(self) -> frozenset[str]:
        """The tables that are not trained."""
        return frozenset(self._steps.gradients.frozen)

    def freeze(self, *tables: str) -> None:
        """Stop training these tables, or all of the module's where none is named: gradients of them
        are not kept, so that they have no update, and t and digest stay.

        `step` still sends gradients that were kept before.

        Raises
        ------
        InvalidArgumentError : the module has no such table.
        """
        self._steps.gradients.frozen |= self._named(tables)

    def unfreeze(self, *tables: str) -> None:
        """Train these tables again, or all of the module's where none is named.

        Raises
        ------
        InvalidArgumentError : the module has no such table.
        """
        self._steps.gradients.frozen -= self._named(tables)

    def _named(self, tables: Collection[Any]) -> set[str]:
        unknown = [name for name in tables if name not in self.tables]
        if unknown:
            raise InvalidArgumentError(f"expected tables of {[*self.tables]}, found {unknown}")
        return {*tables} or {*self.tables}

    def _checked_rate(self, learning_rate: LearningRate | None) -> LearningRate | None:
        """Return the learning rate of a step.

        Raises
        ------
        InvalidArgumentError : it is given by table, and the module has no such table.
        """
        if isinstance(learning_rate, Mapping):
            self._named(learning_rate)
        return learning_rate

    # Results of loops

    def loop_stats(self) -> Any:
        """Return how many steps the loop of `ahead` has taken, or the last one, and how its time
        was spent, as `embstore_training.times.RunStats`; None: there was no loop."""
        return self._steps.stats()

    def history(self, path: str | os.PathLike[str] | None) -> None:
        """Have each later loop of `ahead` write its history to a file for `embstore report`, when
        it ends; None: stop writing.

        The file is the history of the loop that ended last. If there are several ranks each has its
        own path, or one of them writes. About once in a second, or less often, the store is asked
        for its stats.
        """
        self._steps.report = path

    # Rows

    def _looked_up(self, keys: Mapping[str, Keys], admit: bool) -> dict[str, Found]:
        """Return the rows of keys (n,) by table: of the step at hand, or of the store."""
        return self._steps.rows(self.store, keys, admit=admit)

    def _announced(self, batch: Any, features: Any) -> Announced:
        """Return the announcement of a batch, for which `ahead` was given these features."""
        raise NotImplementedError

    def _loop(
        self, batches: Iterable[Any], features: Callable[[Any], Any], **session: Any
    ) -> "closing[Loop]":
        """Return the steps of a session over batches, each with its announcement; `features` is
        called in the thread that iterates over them. Leaving the block ends the session."""
        announced = (self._announced(batch, features(batch)) for batch in read(batches))
        return closing(self._steps.ahead(self.store, self.tables, announced, **session))

    # Gradients

    def grad_norm(self) -> float:
        """Return the L2 norm of the gradients that backward passes have left, over the rows of all
        tables: a row's gradient is the sum over its occurrences. 0 without any."""
        return self._norm(ALONE)

    def _norm(self, ranks: Ranks) -> float:
        """Return the norm of the mean of the ranks' gradients; this trainer's alone, where the
        framework has no way to gather them."""
        return norm_of([self._steps.sums()])

    # Saving

    def _marker(self) -> bytes:
        """Return the marker that a file of the framework has in place of rows."""
        return marker_of(self._connection.connected, self.tables)

    def _compare(self, marker: bytes) -> None:
        """Warn where a file was made with other rows than there are now."""
        warn_of_others(marker, self._connection.connected, self.tables)

    def save(
        self,
        label: str,
        *,
        directory: str | os.PathLike[str] = ".",
        replace: bool = False,
        protect: bool = False,
        **parts: Any,
    ) -> None:
        """Make a checkpoint of the store, and a file of the other parts, under one label.

        Call it after the update of a batch, in a loop or outside. The place of the loop's session
        is part of it. If there are several ranks one calls it. The files of checkpoints that it
        pushes out are removed with them.

        Parameters
        ----------
        directory : of the file, which the checkpoint names; it is made, if it is not there
        replace : take the label from the checkpoint that has it, also a protected one. Killed in
            between, that one is kept, or the new one as LABEL/replacing
        protect : have newer checkpoints not push it out, as `Store.set_retention`
        parts : other parts to keep, by name: dense=..., optimizer=... In Keras objects with
            variables; in JAX pytrees of arrays, keys of random numbers and Python's numbers; in
            Torch objects with `state_dict()`. In Torch and Keras also dicts of Python's own values,
            as progress={"epoch": 3}

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent; a part, or a leaf of
            it, is something else, as an optimizer of Keras that was not built; `retention` is among
            them.
        Errors of `Store.checkpoint`. The label can be used then.
        CapacityError : `protect`, and 64 others are protected; it is kept as a routine one.
        """
        if "retention" in parts:
            raise InvalidArgumentError(
                "expected no part with the name retention, found one: to protect the checkpoint "
                "give protect=True, and call store.set_retention(label, ...) to change that later"
            )
        self._steps.synchronize()
        how = {"replace": replace, "protect": protect}
        self._file.save(self.store, label, parts, self.last_step, directory, **how)

    def _rolled_back(
        self,
        label: str,
        directory: str | os.PathLike[str],
        parts: Mapping[str, Any],
        restore: Callable[[], object],
    ) -> Any:
        """Have a label restored, once its file fits the parts; then take its place, and return the
        loaded parts."""
        self._steps.wait_for_ranks()
        self._steps.check_outside("load()")
        saved = self._file.find(self.store, label, parts, directory)
        with self._file.removing(self.store, directory):
            restore()
        loaded = saved.load()
        self._steps.roll_back(saved.last_step)
        return loaded


class StoreBackedModule(StoreBacked):
    """The same as a module among others, whose states change in place."""

    def _given(self, *arguments: Any) -> Mapping[str, Any]:
        """Return the ids of every lookup from the arguments of a forward."""
        raise NotImplementedError

    def _given_of(self, features: Any) -> list[Any]:
        """Return the result of `_given` for each forward. Features are the argument of one, a tuple
        of several, or a list of such, for several forwards."""
        forwards = _in_list(features)
        arguments = [given if isinstance(given, tuple) else (given,) for given in forwards]
        return [self._given(*of_forward) for of_forward in arguments]

    def _batches(
        self,
        batches: Iterable[Any],
        features: Callable[[Any], Any],
        *,
        accumulate: int = 1,
        **session: Any,
    ) -> Generator[Any, None, None]:
        """Yield the batches of a loop, each while its step is at hand; `accumulate` of them are one
        step."""
        if accumulate == 1:
            with self._loop(batches, features, **session) as loop:
                for _, announced in loop:
                    yield announced.batch
            return
        groups = in_groups(batches, accumulate)
        with self._loop(groups, partial(_forwards_of, features), **session) as loop:
            for _, announced in loop:
                yield from announced.batch

    def _sent(
        self,
        verdict: Verdict,
        ranks: Ranks = ALONE,
        *,
        learning_rate: LearningRate | None,
        on_nonfinite: Any,
        gradient_scale: float = 1.0,
        max_norm: float | None = None,
        **options: Any,
    ) -> AcknowledgedUpdate | None:
        """Send the gradients, divided by their scale and by the number of ranks, and clipped; skip
        them where the dense part was skipped, and lower the scale where they alone overflow."""
        scale = checked_scale(gradient_scale) / verdict.scale
        if max_norm is not None and not verdict.is_overflow:
            scale *= clip_factor(self._norm(ranks) * scale, max_norm)
        done = self._steps.send(
            self.store,
            is_skipped=verdict.is_overflow,
            learning_rate=self._checked_rate(learning_rate),
            gradient_scale=scale / ranks.world_size,
            on_nonfinite=on_nonfinite or ("refuse" if verdict.lower is None else "skip"),
            **options,
        )
        is_own_overflow = done is not None and done.skipped and not verdict.is_overflow
        if is_own_overflow and verdict.lower is not None:
            verdict.lower()
        return done

    def load(
        self,
        label: str,
        *,
        directory: str | os.PathLike[str] = ".",
        wait_s: float = 0.0,
        force: bool = False,
        **parts: Any,
    ) -> int:
        """Go back to a checkpoint of `save`: the store, the session's place, and the other parts.

        Outside a loop.

        Parameters
        ----------
        wait_s, force : as in `Store.restore`: wait for the session of a trainer that was killed,
            until its lease has run out, or end it

        Returns
        -------
        The place: so many steps of the session are done, and a loop of the same name continues
        after them. Its batches must do the same: `itertools.islice(batches, place, None)`; of a
        tf.data.Dataset, `dataset.skip(place)`.

        Raises
        ------
        CheckpointNotFoundError, InvalidArgumentError : no such checkpoint, or of other parts.
            Nothing has changed.
        TableHeldError : a session is open, still or again. Nothing has changed.
        OSError : the file cannot be read.
        """
        restore = partial(self.store.restore, label, wait_s=wait_s, force=force)
        self._rolled_back(label, directory, parts, restore)
        return self.last_step


def _in_list(features: Any) -> list[Any]:
    return features if isinstance(features, list) else [features]


def _forwards_of(features: Callable[[Any], Any], batches: Iterable[Any]) -> list[Any]:
    """Return the features of several batches, one forward after the other."""
    return [forward for batch in batches for forward in _in_list(features(batch))]
