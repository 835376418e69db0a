"""Tables of a store as a part of a model: an adapter, for any framework.

**A step.** The classes here have no parameters of the framework. A forward looks up rows, and a
backward pass keeps the gradients of the forward's outputs. `step` sends these gradients as one
update (`steps`), and the store's own optimizer applies it. So any number of passes can happen
between two steps: micro-batches, several backward passes, a forward that is computed again, a
forward whose output is not used. A row without a gradient is not updated. Outside a loop of `ahead`
each lookup and each update is a separate call. Within such a loop, lookups and updates belong to
the current announced step: the step's tables have no other writer, and the place of the session
(its last finished step) is part of every checkpoint.

**Exactness.** A bag's gradient becomes the gradients of its ids by rule 8 of contract.md. The
gradients of one id are added by rule 2, in the order of the forwards, then of the features, then of
the ids. Therefore a table has the same digest as if a NumPy program had sent the same gradients of
bags.

    StoreBacked         tables, their store, the session's place, and a checkpoint of all of them
    StoreBackedModule   a StoreBacked for frameworks whose modules' state changes in place

A framework adds its own parts: how its arrays become ids (`_given`, `_announced`), how rows become
activations, and the contents of its file (`saving.KeptFile`).

A program must not use an adapter in several threads at a time. The framework may run callbacks and
backward passes in threads of its own.
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
    """Tables of a store, and the place (the last finished step) of the session that trains them;
    each checkpoint contains the tables and the place."""

    tables: Mapping[str, Any]
    """The tables by name, each as the first entry of that table describes it."""
    entries: Sequence[Any]
    """The arguments of the module's constructor: each an `Ids` or a `Bag`."""
    lookups: Sequence[FeatureLookup]
    """The lookups of a forward, in the order of its activations."""
    _file: ClassVar[KeptFile]
    """The framework's files, one of which is saved with each checkpoint."""

    def _use(self, store: Store | Connection, entries: Sequence[Ids], steps: Steps) -> None:
        """Use the tables of these entries, and create those that the store lacks. Call this method
        once, after the framework's own part of the object has been initialized."""
        self.entries = entries
        self.tables = by_name(entries)
        self.lookups = lookups_of(entries)
        self._steps = steps
        steps.gradients.frozen |= {
            name for name, table in self.tables.items() if not table.trainable
        }
        if isinstance(store, Connection):  # this object is a copy; its tables exist
            self._connection = store
        else:
            self.attach(store)
            for table in self.tables.values():
                table.create(store)

    @property
    def store(self) -> Store:
        """The store. A module that was sent to another process connects when this property is first
        read.

        Raises
        ------
        InvalidArgumentError : the store was embedded in the process from which the module was sent.
        """
        return self._connection.store

    def attach(self, store: Store) -> None:
        """From now on, use another store, which must have the tables.

        Raises
        ------
        InvalidArgumentError : the argument is no store.
        """
        if not hasattr(store, "executor"):
            raise InvalidArgumentError(
                "expected a store, as embstore.connect(address) or embstore.open(directory) "
                f"returns it, found {store!r}"
            )
        self._connection = Connection(store)

    @property
    def last_step(self) -> int:
        """The last finished step of the loop's session: the place that `save` stores."""
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
        """Stop training these tables, or all tables of the module if none is named. The gradients
        of frozen tables are not kept, so the tables get no update, and their t and digest stay.

        Gradients that were kept before are still sent by `step`.

        Raises
        ------
        InvalidArgumentError : the module has no such table.
        """
        self._steps.gradients.frozen |= self._named(tables)

    def unfreeze(self, *tables: str) -> None:
        """Train these tables again, or all tables of the module if none is named.

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
        InvalidArgumentError : rates are given by table, and the module lacks one of these tables.
        """
        if isinstance(learning_rate, Mapping):
            self._named(learning_rate)
        return learning_rate

    # Results of loops

    def loop_stats(self) -> Any:
        """Return the number of steps of the current or last loop of `ahead`, and how its time was
        spent, as `embstore_training.times.RunStats`. None: there was no loop."""
        return self._steps.stats()

    def history(self, path: str | os.PathLike[str] | None) -> None:
        """Make each later loop of `ahead` write its history to a file for `embstore report` when
        the loop ends. None: stop writing.

        The file has the history of the loop that ended last. Several ranks need different paths,
        unless only one rank writes. A loop with a history asks the store for its stats about once a
        second, or less often.
        """
        self._steps.report = path

    # Rows

    def _looked_up(self, keys: Mapping[str, Keys], admit: bool) -> dict[str, Found]:
        """Return the rows of keys (n,) by table, from the current step or from the store."""
        return self._steps.rows(self.store, keys, admit=admit)

    def _announced(self, batch: Any, features: Any) -> Announced:
        """Return the announcement of a batch, from the features that the caller's function returned
        for it."""
        raise NotImplementedError

    def _loop(
        self, batches: Iterable[Any], features: Callable[[Any], Any], **session: Any
    ) -> "closing[Loop]":
        """Return an iterator of pairs: a step of a session, and the announcement of the step's
        batch. `features` is called in the thread that iterates over the batches. Leaving the block
        ends the session."""
        announced = (self._announced(batch, features(batch)) for batch in read(batches))
        return closing(self._steps.ahead(self.store, self.tables, announced, **session))

    # Gradients

    def grad_norm(self) -> float:
        """Return the L2 norm of the gradients that backward passes have left, over the rows of all
        tables. A row's gradient is the sum over its occurrences. Return 0 if there are no
        gradients."""
        return self._norm(ALONE)

    def _norm(self, ranks: Ranks) -> float:
        """Return the norm of the mean of the ranks' gradients. If the framework cannot gather the
        gradients of other ranks, return the norm of this trainer's gradients alone."""
        return norm_of([self._steps.sums()])

    # Saving

    def _marker(self) -> bytes:
        """Return the marker that a file of the framework contains in place of rows."""
        return marker_of(self._connection.connected, self.tables)

    def _compare(self, marker: bytes) -> None:
        """Warn if the marker, from a file of the framework, shows that the tables' rows have
        changed since the file was saved."""
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

        Call this method after the update of a batch, in a loop or outside. The place of the loop's
        session is part of the checkpoint. If there are several ranks, one rank calls the method. If
        the new checkpoint pushes out old checkpoints, their files are removed too.

        Parameters
        ----------
        directory : directory of the file that the checkpoint names; created if it does not exist
        replace : give the label to the new checkpoint, and drop the checkpoint that has the label
            now, even if it is protected. If the process is killed in between, either the old
            checkpoint is kept, or the new one under LABEL/replacing
        protect : protect the checkpoint, so that newer checkpoints do not push it out, as
            `Store.set_retention` does
        parts : other parts to save, by name: dense=..., optimizer=... In Keras, parts are objects
            with variables; in JAX, pytrees of arrays, random keys and Python numbers; in Torch,
            objects with `state_dict()`. In Torch and Keras, dicts of plain Python values can be
            parts too, such as progress={"epoch": 3}

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent; a part, or a leaf of a
            part, is of a kind that cannot be saved, such as a Keras optimizer that was not built;
            or a part is named `retention`.
        The errors of `Store.checkpoint`. If the store has refused the checkpoint, its file is
        removed, and a label that was free is still free.
        CapacityError : `protect` is set, and 64 other checkpoints are protected. The new checkpoint
            is kept, but it is not protected.
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
        """Restore the checkpoint of a label, after checking that its file fits the parts. Then set
        the session's place to that of the checkpoint, and return the loaded parts."""
        self._steps.wait_for_ranks()
        self._steps.check_outside("load()")
        saved = self._file.find(self.store, label, parts, directory)
        with self._file.removing(self.store, directory):
            restore()
        self._file.check_same(self.store, label, saved)
        loaded = saved.load()
        self._steps.roll_back(saved.last_step)
        return loaded


class StoreBackedModule(StoreBacked):
    """A `StoreBacked` for frameworks in which a model consists of modules whose states change in
    place."""

    def _given(self, *arguments: Any) -> Mapping[str, Any]:
        """Return the ids of every lookup from the arguments of a forward."""
        raise NotImplementedError

    def _given_of(self, features: Any) -> list[Any]:
        """Return the result of `_given` for each forward. `features` is the argument of one
        forward, or a tuple of its arguments; a list contains these for several forwards."""
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
        """Yield the batches of a loop; the step of the yielded batch is the current step.
        `accumulate` batches form one step."""
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
        """Divide the gradients by their scale and by the number of ranks, clip them, and send them.
        If the dense part was skipped, discard them instead. Lower the scale if only the store's
        gradients overflow."""
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

        Call this method outside a loop.

        Parameters
        ----------
        wait_s, force : as in `Store.restore`. If a killed trainer has left a session open, `wait_s`
            is how long to wait until the session's lease expires, and `force` ends the session

        Returns
        -------
        The place: the number of finished steps of the session. A loop of the same name continues
        after these steps. The loop must be given the batches that follow them:
        `itertools.islice(batches, place, None)`, or `dataset.skip(place)` for a tf.data.Dataset.

        Raises
        ------
        CheckpointNotFoundError, InvalidArgumentError : there is no such checkpoint, or its parts
            are not those of `parts`. Nothing has changed.
        TableHeldError : a session is open. Nothing has changed.
        OSError : the file cannot be read.
        """
        restore = partial(self.store.restore, label, wait_s=wait_s, force=force)
        self._rolled_back(label, directory, parts, restore)
        return self.last_step


def _in_list(features: Any) -> list[Any]:
    return features if isinstance(features, list) else [features]


def _forwards_of(features: Callable[[Any], Any], batches: Iterable[Any]) -> list[Any]:
    """Return the features of several batches as a list of forwards, in the order of the batches."""
    return [forward for batch in batches for forward in _in_list(features(batch))]
