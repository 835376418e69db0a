"""What all layers are: tables of a store, calls over some features, and a step.

Outside a loop of `ahead`, a call looks rows up in the store, and `step` is an update of its own.
Within it, both are those of the step at hand (`frameworks.rows.AnnouncedStep`): its tables have no
other writer, and its place is part of every checkpoint.

One thread at a time; calls and backward passes may run in TensorFlow's own.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Self

import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]
import numpy as np
import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.arrays import Keys
from embstore.commands import OnNonfinite
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate
from embstore_client.frameworks.connection import Connection
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.steps import Announced, Steps
from embstore_client.frameworks.tables import Ids, by_name, config_of, table_of
from embstore_client.keras import saving
from embstore_client.keras.datasets import on_demand
from embstore_client.keras.features import Given
from embstore_client.keras.forward import Forward, Watched
from embstore_client.keras.scaling import Verdict


class StoreLayer(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """Tables of a store as a layer without variables. Its classes are in `layers`."""

    _kind: type[Ids] = Ids

    def __init__(self, store: Store | Connection, tables: Sequence[Ids], **layer: Any) -> None:
        """Make the tables that are not there; see `Store.create_table`.

        Raises
        ------
        InvalidArgumentError : Keras is on another backend than TensorFlow.
        """
        if keras.backend.backend() != "tensorflow":
            raise InvalidArgumentError(
                "expected Keras on TensorFlow (KERAS_BACKEND=tensorflow), found "
                f"{keras.backend.backend()}"
            )
        super().__init__(autocast=False, **layer)
        self.supports_jit = False  # so that Keras's jit_compile="auto" compiles without XLA
        self.tables: Mapping[str, Any] = by_name(tables, self._kind)
        """The tables by name."""
        self._steps = Steps("clear_gradients")
        self._watched = Watched()
        self._loop: Generator[Any, None, None] | None = None  # Of `ahead_dataset`, until it ended.
        if isinstance(store, Connection):
            self._connection = store
        else:
            self._connection = Connection(store)
            for table in self.tables.values():
                table.create(store)

    def get_config(self) -> dict[str, Any]:
        """Return address, names and configuration: no rows, no gradients, no token."""
        tables = [config_of(table) for table in self.tables.values()]
        return {**super().get_config(), "store": self._connection.options, "tables": tables}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a layer that connects when it is first used; see `attach`."""
        layer = dict(config)
        connection = Connection(None, layer.pop("store"))
        tables = [table_of(cls._kind, table) for table in layer.pop("tables")]
        made = cls.__new__(cls)
        StoreLayer.__init__(made, connection, tables, **layer)
        return made

    @property
    def store(self) -> Store:
        """The store. A layer that was made from its configuration connects now.

        Raises
        ------
        InvalidArgumentError : its store was embedded in the process that it comes from.
        """
        return self._connection.store

    def attach(self, store: Store) -> None:
        """Use another store from now on, which has the tables."""
        self._connection = Connection(store)

    @property
    def last_step(self) -> int:
        """The last finished step of the loop's session: the place that `save` keeps."""
        return self._steps.last_step

    # Calls

    def _given(self, *arguments: Any) -> dict[str, Given]:
        """Return the ids of every feature from the arguments of `call`."""
        raise NotImplementedError

    def _activations(self, given: Mapping[str, Given], training: bool | None) -> dict[str, Any]:
        """Return the activations of every feature, in the order of the tables."""
        if tf.distribute.in_cross_replica_context() or (
            tf.distribute.get_replica_context().num_replicas_in_sync > 1
        ):
            raise InvalidArgumentError(
                "expected one replica, found a tf.distribute strategy of several: each would be a "
                "trainer of its own"
            )
        look_up = partial(self._looked_up, training is not False)
        is_trained = training is not False and self.trainable
        kept = self._steps.gradients if is_trained else None
        forward = Forward(self.tables, given, look_up, kept)
        found = forward.activations(self._watched)
        return {feature: tf.cast(rows, self.compute_dtype) for feature, rows in found.items()}

    def _looked_up(self, is_training: bool, keys: dict[str, Keys]) -> dict[str, Found]:
        return self._steps.rows(self.store, keys, admit=is_training)

    # Step

    def step(
        self,
        verdict: Verdict | None = None,
        *,
        learning_rate: float | None = None,
        on_nonfinite: OnNonfinite | None = None,
    ) -> AcknowledgedUpdate | None:
        """Send the gradients that backward passes have left, as one update of all their tables.

        A table without any is not updated, and its t stays. In a loop of `ahead` the step is
        finished by it. Of `fit`, `StoreStep` calls it.

        Parameters
        ----------
        verdict : what a `LossScale` has found, behind the optimizer's step: the store's part is
            skipped where the dense part was; where the store's own gradients overflow, only the
            store's is, and the scale is lowered
        learning_rate : for this update only; None: the tables'
        on_nonfinite : of gradients that are not finite: "refuse" raises, "skip" skips the update;
            None: "skip" with a verdict, else "refuse"

        Returns
        -------
        What the store says; None: there were no gradients, or the dense part was skipped, and no
        step had to be finished.

        Raises
        ------
        InvalidArgumentError : within a tf.function, which would do it once, when it is traced; or
            a gradient is not finite, and is not to be skipped: gradients are kept then, for another
            try or `clear_gradients`.
        """
        if tf.inside_function():
            raise InvalidArgumentError(
                "expected step() outside tf.function: call it behind the compiled function"
            )
        verdict = Verdict() if verdict is None else verdict
        done = self._steps.send(
            self.store,
            is_skipped=verdict.is_overflow,
            learning_rate=learning_rate,
            gradient_scale=1.0 / verdict.scale,
            on_nonfinite=on_nonfinite or verdict.on_nonfinite,
        )
        if done is not None and done.skipped and not verdict.is_overflow:
            verdict.note_skipped()
        return done

    def clear_gradients(self) -> None:
        """Forget the gradients that backward passes have left. `step` has done so too."""
        self._steps.clear()

    # Look-ahead

    def ahead(
        self,
        dataset: Iterable[Any],
        *,
        features: Callable[[Any], Any],
        name: str | None = None,
        lookahead: int = 16,
        **session: Any,
    ) -> Generator[Any, None, None]:
        """Yield the batches of a dataset, whose rows are brought into the cache ahead of the loop.

        Each batch is a step of a session, which is open as long as the loop; its body ends with
        `step`. A batch without is released, with a warning if its rows were used. The tables have
        no other writer meanwhile.

        Parameters
        ----------
        dataset : a tf.data.Dataset or any other iterable; a thread of its own iterates over it
        features : returns of a batch what the layer is called with: one argument, or a tuple of
            several; or a list of such, for calls of several micro-batches
        name : of the session; one that was open under it is gone on with. None: one of its own
        lookahead : how many steps are announced ahead
        session : more options of `embstore.Store.session`

        Raises
        ------
        InvalidArgumentError : within a loop; or a batch ends with gradients that were not sent.
        What `Store.session` and its `Run` raise.
        """
        if session.keys() & {"rank", "world_size"}:
            raise InvalidArgumentError("expected no ranks: a layer of Keras is one trainer's")
        batches = (Announced(batch, self._announced(features(batch))) for batch in dataset)
        how: dict[str, Any] = {"lookahead": lookahead, "name": name} | session
        with closing(self._steps.ahead(self.store, self.tables, batches, **how)) as loop:
            for _, announced in loop:
                yield announced.batch

    def ahead_dataset(self, dataset: Any, *, features: Callable[[Any], Any], **session: Any) -> Any:
        """Return a dataset for `fit` whose batches are those of `ahead`; each epoch is a loop.

        It reads nothing before it is asked, so that `StoreStep` has finished the step before: do
        not add `prefetch`, which `dataset` may have, nor give `fit` a `class_weight`, which does.

        Parameters
        ----------
        dataset : a tf.data.Dataset of batches, of one epoch
        features, session : as in `ahead`
        """

        def batches() -> Iterator[Any]:
            self.end_loop()
            self._loop = self.ahead(dataset, features=features, **session)
            yield from self._loop

        return on_demand(batches, dataset)

    def end_loop(self) -> None:
        """Close the session of a loop of `ahead_dataset`, if one is open. `StoreStep` does so."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _announced(self, features: Any) -> dict[str, Keys]:
        calls = features if isinstance(features, list) else [features]
        arguments = [given if isinstance(given, tuple) else (given,) for given in calls]
        given = [self._given(*of_call) for of_call in arguments]
        return {
            name: np.concatenate([of[feature].ids for of in given for feature in table.features])
            for name, table in self.tables.items()
        }

    # Saving

    def save(self, label: str, *, directory: str | os.PathLike[str] = ".", **parts: Any) -> None:
        """Make a checkpoint of the store, and a file of the other parts, under one label.

        Behind `step`, in a loop or outside. The place of the loop's session is part of it.

        Parameters
        ----------
        directory : of the file, which the checkpoint names
        parts : what has Keras variables, by name: model=..., optimizer=...

        Raises
        ------
        InvalidArgumentError : there are gradients that `step` has not sent; a part has no
            variables, as an optimizer that was not built.
        What `Store.checkpoint` raises. The label can be used then.
        """
        self._steps.synchronize()
        saving.save(self.store, label, parts, last_step=self.last_step, directory=directory)

    def load(
        self,
        label: str,
        *,
        directory: str | os.PathLike[str] = ".",
        wait_s: float = 0.0,
        force: bool = False,
        **parts: Any,
    ) -> int:
        """Go back to what `save` has kept: the store, the session's place, and the other parts.

        Outside a loop.

        Parameters
        ----------
        wait_s, force : as in `Store.restore`, where a session is open: that of a trainer that was
            killed ends with its lease

        Returns
        -------
        The place: so many steps of the session are done, and a loop of the same name goes on behind
        them. Its batches must too: `dataset.skip(place)`.

        Raises
        ------
        CheckpointNotFoundError, InvalidArgumentError : no such checkpoint, or of other parts.
            Nothing has changed.
        TableHeldError : a session is open, still or again. Nothing has changed.
        OSError : the file cannot be read.
        """
        found = saving.read(self.store, label, parts, directory=directory)
        self.store.restore(label, wait_s=wait_s, force=force)
        self._steps.go_back(found.load(parts))
        return self.last_step
