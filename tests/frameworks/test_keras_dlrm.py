"""A DLRM on the demo's data: the losses of the same model with Keras's own tables in memory."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from embstore import Adagrad
from embstore.handles.store import Store
from tests.frameworks.dlrm import (
    COLUMNS,
    DIM,
    RATE,
    ROWS,
    assert_as_in_memory,
    batches_in,
    collection_of,
    rows_of,
)
from tests.frameworks.on_keras import keras, tf
from tests.serving import Server, patient

from embstore_client.keras import Bag, EmbeddingBagCollection, StoreStep  # isort: skip

TINY = 1e-30  # Keras has epsilon within the root, the store behind it
of_logits = keras.losses.BinaryCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return features (n, 13) and ids by table (n, 1), and labels (n, 1) of each batch."""
    return [
        (
            {"x": tf.constant(x)} | {name: tf.constant(of[:, None]) for name, of in ids.items()},
            tf.constant(labels[:, None]),
        )
        for x, ids, labels in batches_in(tmp_path_factory.mktemp("criteo"))
    ]


class Dlrm(keras.Model):
    """Embeddings and dense features meet in dot products."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        keras.utils.set_random_seed(4)
        self.embeddings = embeddings
        self.bottom = keras.layers.Dense(DIM, "relu")
        self.top = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        self.bottom.build((None, 13))
        pairs = np.tril_indices(COLUMNS + 1, -1)
        self._pairs = (pairs[0] * (COLUMNS + 1) + pairs[1]).tolist()
        self.top.build((None, DIM + len(self._pairs)))

    def call(self, features: Any) -> Any:
        bottom = self.bottom(features["x"])
        vectors = tf.stack([bottom, *self.embeddings(features).values()], axis=1)
        products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, 27 * 27])
        return self.top(tf.concat([bottom, tf.gather(products, self._pairs, axis=1)], axis=1))

    @property
    def dense(self) -> list[Any]:
        return [*self.bottom.trainable_variables, *self.top.trainable_variables]


class InMemory(keras.layers.Layer):
    """The same tables as layers of Keras, beginning with the same rows."""

    def __init__(self, embeddings: EmbeddingBagCollection) -> None:
        super().__init__()
        self.bags = {name: keras.layers.Embedding(ROWS, DIM) for name in embeddings.tables}
        for name, bag in self.bags.items():
            bag.build()
            bag.set_weights([rows_of(embeddings.store, name)])

    def call(self, features: Any) -> dict[str, Any]:
        return {name: bag(features[name])[:, 0] for name, bag in self.bags.items()}


WITHOUT_STORE: list[Any] = []


def in_memory(embeddings: EmbeddingBagCollection, batches: list[Any]) -> Any:
    """Return the losses, and the tables, of a training without a store, which is done once."""
    if not WITHOUT_STORE:
        WITHOUT_STORE.extend(_trained_in_memory(embeddings, batches))
    return WITHOUT_STORE


def _trained_in_memory(embeddings: EmbeddingBagCollection, batches: list[Any]) -> Any:
    tables = InMemory(embeddings)
    own = keras.optimizers.Adagrad(RATE, initial_accumulator_value=0.0, epsilon=TINY)
    model, optimizer = Dlrm(tables), keras.optimizers.Adam(1e-3)

    @tf.function
    def trained(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = of_logits(labels, model(features))
        dense, rows = tape.gradient(loss, (model.dense, tables.trainable_variables))
        optimizer.apply(dense, model.dense)
        own.apply([tf.convert_to_tensor(of) for of in rows], tables.trainable_variables)
        return loss

    losses = [float(trained(*batch)) for batch in batches]
    return losses, {name: bag.get_weights()[0] for name, bag in tables.bags.items()}


def by_custom_loop(model: Any, batches: Any) -> list[float]:
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def trained(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = of_logits(labels, model(features, training=True))
        optimizer.apply(tape.gradient(loss, model.dense), model.dense)
        return loss

    losses = []
    for features, labels in batches:
        losses.append(float(trained(features, labels)))
        model.embeddings.step()
    return losses


def by_single_batches(model: Any, batches: Any) -> list[float]:
    model.compile(keras.optimizers.Adam(1e-3), of_logits)
    losses = []
    for features, labels in batches:
        model.reset_metrics()
        losses.append(float(model.train_on_batch(features, labels)))
        model.embeddings.step()
    return losses


def by_fit(model: Any, batches: Any, is_ahead: bool = False) -> list[float]:
    model.compile(keras.optimizers.Adam(1e-3), of_logits)
    losses: list[float] = []

    class Losses(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            losses.append(float(logs["loss"]) * (batch + 1) - sum(losses))  # it is the mean so far

    dataset = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    if is_ahead:
        dataset = model.embeddings.ahead_dataset(dataset, features=lambda batch: batch[0])
    model.fit(dataset, callbacks=[StoreStep(model.embeddings), Losses()], shuffle=False, verbose=0)
    return losses


LOOPS = {
    "custom": (by_custom_loop, False),
    "custom, ahead": (by_custom_loop, True),
    "train_on_batch, ahead": (by_single_batches, True),
    "fit": (by_fit, False),
    "fit, ahead": (partial(by_fit, is_ahead=True), False),
}


def check(store: Store, batches: list[Any], loop: str) -> None:
    names = [name for name in batches[0][0] if name != "x"]
    embeddings = collection_of(EmbeddingBagCollection, Bag, store, names, Adagrad(RATE, TINY))
    wanted, tables = in_memory(embeddings, batches)
    run, is_ahead = LOOPS[loop]
    read = embeddings.ahead(batches, features=lambda batch: batch[0]) if is_ahead else batches
    assert_as_in_memory(store, run(Dlrm(embeddings), read), wanted, tables)


@pytest.mark.parametrize("loop", LOOPS)
def test_losses_are_those_of_tables_in_memory(
    embedded: Store, batches: list[Any], loop: str
) -> None:
    check(embedded, batches, loop)


@pytest.mark.parametrize("loop", ["custom, ahead", "fit, ahead"])
@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_losses_are_those_of_tables_in_memory_behind_a_server(
    server: Server, batches: list[Any], transport: str, loop: str
) -> None:
    address = server.address if transport == "grpc" else f"unix:{server.socket}"
    with patient(address) as store:
        check(store, batches, loop)
