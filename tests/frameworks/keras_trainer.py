"""A training in Keras that saves, and may end in the middle: what test_keras_saving runs.

    python -m tests.frameworks.keras_trainer ADDRESS DIRECTORY

It trains on all batches, saves behind step 4, and kills itself behind step 7.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from embstore import Adam, Uniform
from embstore.handles.store import Store
from tests.frameworks.on_keras import keras, tf
from tests.serving import patient

from embstore_client.keras import Bag, EmbeddingBagCollection  # isort: skip

BATCHES = [np.random.default_rng(n).zipf(1.3, (5, 3)) % 90 for n in range(10)]
SAVED, KILLED = 4, 7


class Trainer:
    """A model with dropout, whose random numbers are part of it, and its dense optimizer."""

    def __init__(self, store: Store) -> None:
        table = Bag(
            "t", dim=4, rows=90, features=["x"], optimizer=Adam(0.1), initializer=Uniform(-1, 1)
        )
        self.embeddings = EmbeddingBagCollection(store, [table])
        keras.utils.set_random_seed(2)
        ids = {"x": keras.Input((3,), name="x", dtype="int64")}
        dropped = keras.layers.Dropout(0.5, seed=3)(self.embeddings(ids)["x"])
        self.model = keras.Model(ids, keras.layers.Dense(1)(dropped))
        self.optimizer = keras.optimizers.Adam(0.1)
        self.optimizer.build(self.model.trainable_variables)
        self.losses: list[float] = []
        self._compiled = tf.function(self._trained)

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def _trained(self, ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model({"x": ids}, training=True)))
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def train(self, batches: Any, behind: Any = None) -> None:
        """Train on batches, and do what there is to do behind a step of the session."""
        features = {"name": "job", "features": lambda ids: {"x": ids}}
        for ids in self.embeddings.ahead(batches, lookahead=3, **features):
            self.losses.append(float(self._compiled(tf.constant(ids))))
            self.embeddings.step()
            (behind or {}).get(self.embeddings.last_step, lambda: None)()

    def state(self) -> Any:
        digest = self.embeddings.store.table("t").digest()
        parts = [part.variables for part in self.parts.values()]
        return digest, [variable.value.numpy().tolist() for of in parts for variable in of]


def main(address: str, directory: Path) -> None:
    store = patient(address)
    trainer = Trainer(store)

    def save() -> None:
        trainer.embeddings.save("half", directory=directory, **trainer.parts)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    trainer.train(BATCHES, {SAVED: save, KILLED: die})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
