"""A DLRM on the demo's data: the losses of the same model with Keras's own tables in memory."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from embstore import Adagrad, Adam, Ftrl, RowWiseAdagrad, Sgd
from embstore.handles.store import Store
from embstore_tools.demo import criteo, synthetic
from embstore_tools.demo.columns import keys_by_table
from embstore_tools.demo.dlrm import dense_features
from tests.frameworks.on_keras import keras, tf
from tests.serving import Server, patient

from embstore_client.keras import Bag, EmbeddingBagCollection, StoreStep  # isort: skip

SAMPLES, BATCH_SIZE, DIM, COLUMNS = 2000, 250, 8, 26
ROWS = tuple([60] * COLUMNS)
RATE = 0.05


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return features (n, 13) and ids by table (n, 1), and labels (n, 1) of each batch."""
    path = tmp_path_factory.mktemp("criteo") / "train.txt"
    synthetic.write(path, samples=SAMPLES, rows=ROWS, advance=lambda count: None)
    return [
        (
            {"x": tf.constant(dense_features(block.integers))}
            | {
                name: tf.constant(ids[:, None])
                for name, ids in keys_by_table(block.categories, ROWS).items()
            },
            tf.constant(block.labels[:, None]),
        )
        for block in criteo.read(path, limit=SAMPLES, block=BATCH_SIZE)
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
        self.bags = {name: keras.layers.Embedding(60, DIM) for name in embeddings.tables}
        for name, bag in self.bags.items():
            bag.build()
            bag.set_weights([embeddings.store.table(name).lookup(np.arange(60))])

    def call(self, features: Any) -> dict[str, Any]:
        return {name: bag(features[name])[:, 0] for name, bag in self.bags.items()}


class Lazy(keras.optimizers.Optimizer):
    """Applies a formula to the rows that have a gradient, and to their state."""

    def __init__(self, formula: Any, parts: int) -> None:
        super().__init__(learning_rate=RATE)
        self._formula, self._part_count = formula, parts

    def build(self, variables: Any) -> None:
        super().build(variables)
        self._states = [
            [
                self.add_variable_from_reference(variable, f"part{part}")
                for part in range(self._part_count)
            ]
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        g, t = tf.convert_to_tensor(gradient), tf.cast(self.iterations + 1, tf.float32)
        used = tf.reduce_any(g != 0, axis=1, keepdims=True)
        old = [variable, *self._states[self._get_variable_index(variable)]]
        values = [tf.convert_to_tensor(part) for part in old]
        for part, before, after in zip(old, values, self._formula(g, t, *values), strict=True):
            part.assign(tf.where(used, after, before))


def row_wise(g: Any, t: Any, w: Any, s: Any) -> Any:
    s = s + tf.reduce_mean(g * g, axis=1, keepdims=True)
    return w - RATE / (tf.sqrt(s) + 1e-8) * g, s


def lazy_adam(g: Any, t: Any, w: Any, m: Any, v: Any) -> Any:
    m, v = m + 0.1 * (g - m), v + 0.001 * (g * g - v)
    root = tf.sqrt(v / (1 - 0.999**t))
    return w - RATE / (1 - 0.9**t) * m / (root + 1e-8), m, v


def proximal(g: Any, t: Any, w: Any, z: Any, n: Any) -> Any:
    more = n + g * g
    z = z + g - (tf.sqrt(more) - tf.sqrt(n)) / RATE * w
    return -z / ((1 + tf.sqrt(more)) / RATE), z, more


TINY = 1e-30  # Keras has epsilon within the root, the store behind it
OPTIMIZERS: dict[str, Any] = {
    "sgd": (Sgd(RATE), lambda: keras.optimizers.SGD(RATE)),
    "adagrad": (
        Adagrad(RATE, TINY),
        lambda: keras.optimizers.Adagrad(RATE, initial_accumulator_value=0.0, epsilon=TINY),
    ),
    "rowwise_adagrad": (RowWiseAdagrad(RATE, 1e-8), lambda: Lazy(row_wise, 1)),
    "adam": (Adam(RATE), lambda: Lazy(lazy_adam, 2)),
    "ftrl": (Ftrl(RATE), lambda: Lazy(proximal, 2)),
}
of_logits = keras.losses.BinaryCrossentropy(from_logits=True)


def embeddings_of(store: Store, batches: list[Any], optimizer: Any) -> EmbeddingBagCollection:
    tables = [
        Bag(name, dim=DIM, rows=60, features=[name], optimizer=optimizer)
        for name in batches[0][0]
        if name != "x"
    ]
    return EmbeddingBagCollection(store, tables)


WITHOUT_STORE: dict[str, Any] = {}


def in_memory(embeddings: EmbeddingBagCollection, batches: list[Any], kind: str) -> Any:
    """Return the losses, and the tables, of a training without a store, which is done once."""
    if kind not in WITHOUT_STORE:
        WITHOUT_STORE[kind] = _trained_in_memory(embeddings, batches, kind)
    return WITHOUT_STORE[kind]


def _trained_in_memory(embeddings: EmbeddingBagCollection, batches: list[Any], kind: str) -> Any:
    tables, own = InMemory(embeddings), OPTIMIZERS[kind][1]()
    model, optimizer = Dlrm(tables), keras.optimizers.Adam(1e-3)

    @tf.function
    def trained(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = of_logits(labels, model(features))
        dense, rows = tape.gradient(loss, (model.dense, tables.trainable_variables))
        optimizer.apply(dense, model.dense)
        own.apply([tf.convert_to_tensor(of) for of in rows], tables.trainable_variables)
        return loss

    return [float(trained(*batch)) for batch in batches], tables


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


def assert_as_in_memory(store: Store, batches: list[Any], kind: str, loop: str) -> None:
    embeddings, (run, is_ahead) = embeddings_of(store, batches, OPTIMIZERS[kind][0]), LOOPS[loop]
    wanted, tables = in_memory(embeddings, batches, kind)
    read = embeddings.ahead(batches, features=lambda batch: batch[0]) if is_ahead else batches
    np.testing.assert_allclose(run(Dlrm(embeddings), read), wanted, rtol=2e-5)
    assert np.mean(wanted[-3:]) < wanted[0]
    for name, bag in tables.bags.items():
        rows = store.table(name).lookup(np.arange(60))
        np.testing.assert_allclose(rows, bag.get_weights()[0], rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("loop", LOOPS)
def test_losses_are_those_of_tables_in_memory(
    embedded: Store, batches: list[Any], loop: str
) -> None:
    assert_as_in_memory(embedded, batches, "adagrad", loop)


@pytest.mark.parametrize("loop", ["custom, ahead", "fit, ahead"])
@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_losses_are_those_of_tables_in_memory_behind_a_server(
    server: Server, batches: list[Any], transport: str, loop: str
) -> None:
    address = server.address if transport == "grpc" else f"unix:{server.socket}"
    with patient(address) as store:
        assert_as_in_memory(store, batches, "adagrad", loop)


@pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS if kind != "adagrad"])
def test_losses_of_every_optimizer_are_those_of_tables_in_memory(
    embedded: Store, batches: list[Any], kind: str
) -> None:
    assert_as_in_memory(embedded, batches, kind, "custom")
