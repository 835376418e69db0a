"""The base class of the layers: it holds tables of a store (`frameworks.backed`), looks up features
when it is called, and sends gradients by `step`.

A program must not use a layer in several threads at a time. TensorFlow may run the layer's calls
and backward passes in threads of its own.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]
import numpy as np
import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.commands import LearningRate, OnNonfinite
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore.results import AcknowledgedUpdate
from embstore_client.frameworks.backed import StoreBackedModule
from embstore_client.frameworks.connection import Connection
from embstore_client.frameworks.occurrences import keys_by_table
from embstore_client.frameworks.scaling import Verdict
from embstore_client.frameworks.steps import Announced, Steps
from embstore_client.frameworks.tables import Ids, checked, config_of, table_of
from embstore_client.keras import saving
from embstore_client.keras.datasets import on_demand
from embstore_client.keras.features import FeatureIds
from embstore_client.keras.forward import Forward, Watched, occurrences_of

_MARKER = "embstore"
"""The name of the `frameworks.marker` in a file of Keras."""
_LOOKS = "call with training=False"


class StoreLayer(StoreBackedModule, keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """Tables of a store as a layer without variables. `layers` has the concrete classes."""

    _kinds: tuple[type[Ids], ...]
    _file = saving.FILE

    def __init__(self, store: Store | Connection, tables: Sequence[Ids], **layer: Any) -> None:
        """Create the tables that do not exist; see `Store.create_table`.

        Parameters
        ----------
        tables : `Bag` or `Ids` objects, as the class requires; several objects can name one table
        layer : name, dtype and trainable of a Keras layer; activations have its compute dtype

        Raises
        ------
        InvalidArgumentError : Keras runs on another backend than TensorFlow.
        """
        if keras.backend.backend() != "tensorflow":
            raise InvalidArgumentError(
                "expected Keras on TensorFlow (KERAS_BACKEND=tensorflow), found "
                f"{keras.backend.backend()}"
            )
        super().__init__(autocast=False, **layer)
        self.supports_jit = False  # makes Keras's jit_compile="auto" compile without XLA
        self._watched = Watched()
        self._dataset_loop: Generator[Any, None, None] | None = None  # None after its end.
        self._use(store, checked(tables, *self._kinds), Steps("clear_gradients", _LOOKS))

    def get_config(self) -> dict[str, Any]:
        """Return the store's address, the names and the configuration of the tables; rows,
        gradients and the token are left out."""
        tables = [
            config_of(replace(entry, trainable=entry.name not in self.frozen))
            for entry in self.entries
        ]
        return {**super().get_config(), "store": self._connection.options, "tables": tables}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a layer that connects when it is first used; see `attach`."""
        layer = dict(config)
        connection = Connection(None, layer.pop("store"))
        tables = [table_of(table) for table in layer.pop("tables")]
        made = cls.__new__(cls)
        StoreLayer.__init__(made, connection, tables, **layer)
        return made

    def __repr__(self) -> str:
        tables = ", ".join(map(repr, self._tables_now()))
        return f"<{type(self).__name__} name={self.name}, tables=[{tables}]>"

    def save_own_variables(self, store: Any) -> None:
        """Write the marker that Keras's files contain in place of rows: the store's id, and t of
        each table."""
        super().save_own_variables(store)
        store[_MARKER] = np.frombuffer(self._marker(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Warn if t shows that the store's rows have changed since a file was saved."""
        self._compare(bytes(np.asarray(store[_MARKER])))

    def _announced(self, batch: Any, features: Any) -> Announced:
        forwards = [occurrences_of(self.lookups, given) for given in self._given_of(features)]
        return Announced(batch, keys_by_table(*forwards))

    # Calls

    def _activations(
        self, given: Mapping[str, FeatureIds], training: bool | None
    ) -> dict[str, Any]:
        """Return the activations of every lookup, in the order of the lookups."""
        if tf.distribute.in_cross_replica_context() or (
            tf.distribute.get_replica_context().num_replicas_in_sync > 1
        ):
            raise InvalidArgumentError(
                "expected one replica, found a tf.distribute strategy of several: each would be a "
                "trainer of its own"
            )
        look_up = partial(self._looked_up, admit=training is not False)
        is_trained = training is not False and self.trainable
        kept = self._steps.gradients if is_trained else None
        forward = Forward(self.lookups, given, look_up, kept)
        found = forward.activations(self._watched)
        return {feature: tf.cast(rows, self.compute_dtype) for feature, rows in found.items()}

    # Step

    def step(
        self,
        verdict: Verdict | None = None,
        *,
        learning_rate: LearningRate | None = None,
        on_nonfinite: OnNonfinite | None = None,
        gradient_scale: float = 1.0,
        max_norm: float | None = None,
    ) -> AcknowledgedUpdate | None:
        """Send the gradients that backward passes have left, as one update of all tables that have
        gradients.

        A table without gradients is not updated, and its t stays. In a loop of `ahead` this method
        finishes the step. In `fit`, `StoreStep` calls it.

        Parameters
        ----------
        verdict : the verdict of a `LossScale`, taken after the optimizer's step. The store's part
            is skipped if the dense part was skipped. If only the store's gradients overflow, only
            the store's part is skipped, and the scale is lowered
        learning_rate : the rate for this update only, of all tables or by table, {name: rate}.
            None: the learning rates of the tables
        on_nonfinite : if gradients are not finite, "refuse" raises an error, and "skip" skips the
            update. None: "skip" with a verdict, otherwise "refuse"
        gradient_scale : the factor by which sums of gradients are multiplied
        max_norm : the bound of the norm of the sent gradients. Only this layer's gradients are
            clipped, by their `grad_norm` times `gradient_scale`

        Returns
        -------
        The store's answer. None: there were no gradients, or the dense part was skipped, and no
        step had to be finished.

        Raises
        ------
        InvalidArgumentError : the call is within a tf.function, which would run it only once, when
            the function is traced; or a gradient is not finite, and such updates are not skipped.
            Gradients are then kept, so that `step` or `clear_gradients` can be called again.
        """
        if tf.inside_function():
            raise InvalidArgumentError(
                "expected step() outside tf.function: call it after the compiled function"
            )
        return self._sent(
            verdict or Verdict(),
            learning_rate=learning_rate,
            on_nonfinite=on_nonfinite,
            gradient_scale=gradient_scale,
            max_norm=max_norm,
        )

    def clear_gradients(self) -> None:
        """Discard the gradients that backward passes have left. `step` also discards them."""
        self._steps.clear()

    # Look-ahead

    def ahead(
        self,
        dataset: Iterable[Any],
        *,
        features: Callable[[Any], Any],
        name: str | None = None,
        lookahead: int = 16,
        accumulate: int = 1,
        **session: Any,
    ) -> Generator[Any, None, None]:
        """Yield the batches of a dataset; the store reads their rows into its cache ahead of the
        loop.

        Each batch is a step of a session, which is open as long as the loop. The loop's body ends
        with `step`. If the body does not call `step` for a batch, the batch is released, with a
        warning if its rows were used. During the loop the tables have no other writer.

        Parameters
        ----------
        dataset : a tf.data.Dataset or any other iterable; a separate thread iterates over it
        features : function that returns the layer's arguments for a batch: one argument, a tuple of
            several, or a list of these for the calls of several micro-batches
        name : name of the session; an earlier session of this name is resumed. None: a session
            without a name
        lookahead : number of steps that are announced ahead
        accumulate : number of batches per step. `step` is called after the last of these batches,
            and after the last batch of the dataset
        session : further arguments of `Store.session`

        Raises
        ------
        InvalidArgumentError : the call is within a loop; or a batch ends with gradients that were
            not sent.
        The errors of `Store.session` and its `Run`.
        """
        if session.keys() & {"rank", "world_size"}:
            raise InvalidArgumentError(
                "expected no ranks, found some: a Keras layer trains in a single process"
            )
        how: dict[str, Any] = {"lookahead": lookahead, "name": name}
        yield from self._batches(dataset, features, accumulate=accumulate, **how, **session)

    def ahead_dataset(self, dataset: Any, *, features: Callable[[Any], Any], **session: Any) -> Any:
        """Return a dataset for `fit` with the batches of `ahead`; each epoch is a loop.

        The dataset reads a batch only when `fit` requests it, because `StoreStep` must have
        finished the previous step. So do not call `prefetch` on the result, and do not give `fit` a
        `class_weight`, which makes it prefetch. The argument `dataset` itself may prefetch.

        Parameters
        ----------
        dataset : a tf.data.Dataset with the batches of one epoch
        features, session : as in `ahead`
        """

        def batches() -> Iterator[Any]:
            self.end_loop()
            self._dataset_loop = self.ahead(dataset, features=features, **session)
            yield from self._dataset_loop

        return on_demand(batches, dataset)

    def end_loop(self) -> None:
        """If a loop of `ahead_dataset` is open, close its session. `StoreStep` calls this
        method."""
        loop, self._dataset_loop = self._dataset_loop, None
        if loop is not None:
            loop.close()
