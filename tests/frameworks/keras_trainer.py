"""A model of one table in Keras with dropout, whose random numbers are part of it."""

from collections.abc import Callable
from typing import Any

from embstore.handles.store import Store
from tests.frameworks.on_keras import keras, tf
from tests.frameworks.trainers import LOOP, TABLE, Saving, nothing

from embstore_client.keras import Bag, EmbeddingBagCollection  # isort: skip


class Trainer(Saving):
    UNSAVEABLE = tuple(
        (part, "dense to have variables") for part in (object(), keras.layers.Dense(1))
    )

    def __init__(self, store: Store) -> None:
        self.embeddings = EmbeddingBagCollection(store, [Bag("t", **TABLE)])
        keras.utils.set_random_seed(2)
        ids = {"x": keras.Input((3,), name="x", dtype="int64")}
        dropped = keras.layers.Dropout(0.5, seed=3)(self.embeddings(ids)["x"])
        self._model = keras.Model(ids, keras.layers.Dense(1)(dropped))
        self._optimizer = keras.optimizers.Adam(0.1)
        self._optimizer.build(self._model.trainable_variables)
        self.parts = {"model": self._model, "optimizer": self._optimizer}
        self.losses = []
        self._compiled = tf.function(self._trained)

    def _trained(self, ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self._model({"x": ids}, training=True)))
        variables = self._model.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def train(
        self,
        batches: Any,
        before: Callable[[int], Any] = nothing,
        after: Callable[[int], Any] = nothing,
    ) -> None:
        for ids in self.embeddings.ahead(batches, **LOOP):
            self.losses.append(float(self._compiled(tf.constant(ids))))
            before(self.embeddings.last_step + 1)
            self.embeddings.step()
            after(self.embeddings.last_step)

    def state(self) -> Any:
        digest = self.embeddings.store.table("t").digest()
        parts = [part.variables for part in self.parts.values()]
        return digest, [variable.value.numpy().tolist() for of in parts for variable in of]
