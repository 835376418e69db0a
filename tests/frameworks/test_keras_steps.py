"""What Keras alone has of steps: tapes, graphs, threads that flush denormals, and saved models."""

import pickle
from typing import Any

import numpy as np
import pytest

from embstore import Adam, InvalidArgumentError, Sgd
from embstore.arithmetic.denormals import keeps_denormals
from embstore.handles.store import Store
from tests.frameworks.bags_of_steps import ROWS
from tests.frameworks.numpy_twin import Forward, Twin
from tests.frameworks.on_keras import (
    Adapter,
    as_it_is,
    batch_of,
    collection,
    compiled,
    keras,
    loss_of,
    one_table,
    tf,
)
from tests.serving import Server, patient

from embstore_client.keras import EmbeddingBag  # isort: skip


def probed(outputs: Any) -> tuple[Any, Any]:
    """Return outputs, and zeros within them that get their gradients."""
    probes = {feature: tf.Variable(tf.zeros_like(rows)) for feature, rows in outputs.items()}
    return {feature: rows + probes[feature] for feature, rows in outputs.items()}, probes


def forwards(twins: list[Any], gradients: list[Any]) -> list[Forward]:
    return [Forward(*of) for of in zip(twins, gradients, strict=True)]


def test_the_order_is_that_of_the_calls_not_of_the_ways_back(embedded: Store) -> None:
    rng, layer = np.random.default_rng(3), collection(embedded)
    twin, batch = Twin(layer), [batch_of(rng) for _ in range(3)]
    tapes, all_probes, losses = [], [], []
    for given, _ in batch:
        with tf.GradientTape() as tape:
            outputs, probes = probed(layer(given))
            losses.append(loss_of(outputs))
        tapes.append(tape)
        all_probes.append(probes)
    found = [
        tape.gradient(loss, probes)
        for tape, loss, probes in reversed(list(zip(tapes, losses, all_probes, strict=True)))
    ]
    twin.step(forwards([twins for _, twins in batch], found[::-1]))
    layer.step()
    twin.assert_same()


def test_a_second_way_back_adds_to_the_gradient(embedded: Store) -> None:
    rng, layer = np.random.default_rng(4), collection(embedded)
    twin, (given, twins) = Twin(layer), batch_of(rng)
    with tf.GradientTape(persistent=True) as tape:
        outputs, probes = probed(layer(given))
        losses = [loss_of(outputs), loss_of(outputs, "x")]
    first, second = (tape.gradient(loss, probes) for loss in losses)
    total = {
        name: rows if second[name] is None else rows + second[name] for name, rows in first.items()
    }
    twin.step(forwards([twins], [total]))
    layer.step()
    twin.assert_same()


@pytest.mark.parametrize("run", [as_it_is, compiled])
def test_a_forward_that_is_computed_again_counts_once(embedded: Store, run: Any) -> None:
    layer = one_table(embedded)
    before = embedded.table("t").lookup(np.arange(ROWS))
    ids, scale = tf.constant([[1, 2, 1], [2, 5, 9]]), tf.Variable(1.0)

    @tf.recompute_grad
    def computed(scale: Any) -> Any:
        return layer(ids) * scale

    @run
    def train() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(computed(scale))
        tape.gradient(loss, scale)

    train()
    layer.step()
    moved = before - embedded.table("t").lookup(np.arange(ROWS))
    wanted = np.bincount([1, 2, 1, 2, 5, 9], minlength=ROWS)[:, None] * np.float32(0.1)
    np.testing.assert_allclose(moved, np.broadcast_to(wanted, moved.shape), atol=1e-6)


def test_a_graph_within_a_tape_that_is_outside(embedded: Store) -> None:
    """TensorFlow then makes zeros of the gradients of what is not used."""
    rng, layer = np.random.default_rng(6), collection(embedded)
    twin, call = Twin(layer), tf.function(layer)
    for features in ("xyz", "x"):
        given, twins = batch_of(rng)
        with tf.GradientTape() as tape:
            outputs, probes = probed(call(given))
            loss = loss_of(outputs, features)
        found = tape.gradient(loss, probes, unconnected_gradients="zero")
        twin.step(forwards([twins], [found]))
        layer.step()
    twin.assert_same()


def test_a_layer_that_is_not_trainable_is_not_updated(embedded: Store) -> None:
    layer = one_table(embedded, trainable=False)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([[1]]), training=True))
    tape.gradient(loss, [])
    assert layer.step() is None


def test_a_step_within_a_graph_is_refused(embedded: Store) -> None:
    layer = one_table(embedded)
    with pytest.raises(InvalidArgumentError, match=r"outside tf\.function"):
        tf.function(layer.step, autograph=False)()


def test_several_replicas_are_refused(embedded: Store) -> None:
    layer, strategy = one_table(embedded), tf.distribute.MirroredStrategy(["cpu:0"])
    assert strategy.run(layer, args=(tf.constant([[1]]),)).shape == (1, 4)
    with strategy.scope(), pytest.raises(InvalidArgumentError, match="one replica"):
        layer(tf.constant([[1]]))


# A thread that flushes denormals


def test_gradients_of_repeated_keys_are_summed_in_threads_that_flush_denormals(
    store: Store,
) -> None:
    """TensorFlow's do; this raised DeviceError."""
    layer = EmbeddingBag(store, "t", dim=4, rows=ROWS, optimizer=Sgd(1.0), mode="sum")
    table, tiny = store.table("t"), np.float32(1e-40)
    table.assign(np.arange(ROWS), np.full((ROWS, 4), tiny))
    keys, kept_by_threads = np.array([3, 3, 3, 7]), []

    def in_a_callback(_: Any) -> Any:
        kept_by_threads.append(keeps_denormals())
        table.update(keys, np.full((4, 4), -tiny))
        return table.lookup_pooled(keys, np.array([0, 4]))

    found = tf.function(lambda ids: tf.numpy_function(in_a_callback, [ids], tf.float32))(keys)
    assert kept_by_threads == [False]
    np.testing.assert_array_equal(found, np.full((1, 4), 14 * tiny))
    np.testing.assert_array_equal(tf.function(layer)(keys[None]), np.full((1, 4), 14 * tiny))


# A loop over a session


def test_a_dataset_is_read_ahead(store: Store) -> None:
    layer, twin = collection(store), Twin(collection(store))
    ids = np.random.default_rng(8).zipf(1.3, (8, 6, 2)) % ROWS
    dataset = tf.data.Dataset.from_tensor_slices({"x": ids, "y": ids, "z": ids.astype(np.int32)})
    for features in layer.ahead(dataset, features=lambda batch: batch, lookahead=2):
        flat = (features["x"].numpy().reshape(-1), np.arange(7) * 2, None)
        gradients = Adapter("compiled").back(layer, [features])
        twin.step(forwards([dict.fromkeys("xyz", flat)], gradients))
        layer.step()
    twin.assert_same()
    assert layer.last_step == 8


# Copies


def model_of(layer: Any) -> Any:
    ids = keras.Input((3,), dtype="int64")
    return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))


QUIET = "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
"""What NumPy says to Keras, where it copies a variable of TensorFlow."""


@pytest.mark.filterwarnings(QUIET)
def test_a_model_is_saved_without_rows_and_connects_again(server: Server, tmp_path: Any) -> None:
    ids, path = np.array([[1, 2, 3]]), tmp_path / "model.keras"
    with patient(server.address, token="not to be carried") as store:
        layer = EmbeddingBag(
            store, "t", dim=64, rows=10_000, optimizer=Adam(0.1), mode="mean", name="ads"
        )
        model = model_of(layer)
        layer(np.arange(10_000))
        wanted = model(ids)
        model.save(path)
    assert path.stat().st_size < 30_000
    assert "not to be carried" not in str(layer.get_config())
    arrived = keras.saving.load_model(path)
    np.testing.assert_array_equal(arrived(ids), wanted)
    layers = [arrived.get_layer("ads"), pickle.loads(pickle.dumps(layer))]
    for copied in layers:
        assert copied.tables == layer.tables
        assert copied.step() is None
        copied.store.close()


def test_a_layer_of_an_embedded_store_asks_for_another(embedded: Store) -> None:
    arrived = keras.models.clone_model(model_of(one_table(embedded))).layers[1]
    with pytest.raises(InvalidArgumentError, match="attach"):
        _ = arrived.store
    arrived.attach(embedded)
    assert arrived.store is embedded
