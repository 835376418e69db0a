"""What `step` sends: to the bit what a program in NumPy sends that is given the same gradients."""

import pickle
from typing import Any

import numpy as np
import pytest

from embstore import Adam, InvalidArgumentError, RowWiseAdagrad, Sgd, Uniform
from embstore.arithmetic.denormals import keeps_denormals
from embstore.handles.store import Store
from tests.frameworks.numpy_twin import Forward, Twin, bags
from tests.frameworks.on_keras import keras, tf
from tests.serving import Server, patient

from embstore_client.keras import (  # isort: skip
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
)

ROWS = 40


def as_it_is(function: Any) -> Any:
    return function


def compiled(function: Any) -> Any:
    return tf.function(function, reduce_retracing=True)


def collection(store: Store) -> EmbeddingBagCollection:
    initial = {"rows": ROWS, "initializer": Uniform(-1, 1)}
    return EmbeddingBagCollection(
        store,
        [
            Bag("a", dim=4, features=["x", "y"], optimizer=Adam(0.1), **initial),
            Bag("b", dim=3, features=["z"], mode="mean", optimizer=RowWiseAdagrad(0.1), **initial),
        ],
    )


def one_table(store: Store, **layer: Any) -> EmbeddingBag:
    return EmbeddingBag(store, "t", dim=4, rows=ROWS, optimizer=Sgd(0.1), **layer)


def batch_of(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return features as TensorFlow has them, "x" with weights, and as the twin has them."""
    plain = {feature: bags(rng, ROWS) for feature in "xyz"}
    weights = rng.standard_normal(len(plain["x"][0]), np.float32)
    given: dict[str, Any] = {
        feature: tf.RaggedTensor.from_row_splits(ids, offsets)
        for feature, (ids, offsets) in plain.items()
    }
    given["x"] = (given["x"], given["x"].with_values(weights))
    twins = {feature: (*of, None) for feature, of in plain.items()}
    twins["x"] = (*plain["x"], weights)
    return given, twins


def loss_of(outputs: dict[str, Any], features: str = "xyz") -> Any:
    squares = [tf.square(outputs[feature]) for feature in features]
    return tf.sin(tf.reduce_sum(tf.concat(squares, axis=1)))


def probed(outputs: Any) -> tuple[Any, Any]:
    """Return outputs, and zeros within them that get their gradients."""
    probes = {feature: tf.Variable(tf.zeros_like(rows)) for feature, rows in outputs.items()}
    return {feature: rows + probes[feature] for feature, rows in outputs.items()}, probes


def gradients_of(layer: Any, batches: list[Any], run: Any, features: str = "xyz") -> list[Any]:
    """Call the layer on each batch, go back, and return the gradients of what was called."""
    batch_probes = [
        {feature: tf.zeros([6, dim]) for feature, dim in zip("xyz", (4, 4, 3), strict=True)}
        for _ in batches
    ]

    @run
    def went_back(batches: Any, probes: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(probes)
            losses = []
            for given, zeros in zip(batches, probes, strict=True):
                outputs = layer(given, training=True)
                within = {feature: rows + zeros[feature] for feature, rows in outputs.items()}
                losses.append(loss_of(within, features))
            loss = tf.add_n(losses)
        return tape.gradient(loss, probes)

    return went_back(batches, batch_probes)


def forwards(twins: list[Any], gradients: list[Any]) -> list[Forward]:
    return [Forward(*of) for of in zip(twins, gradients, strict=True)]


@pytest.mark.parametrize("run", [as_it_is, compiled])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_updates_are_those_of_numpy(store: Store, is_ahead: bool, run: Any) -> None:
    rng, layer = np.random.default_rng(1), collection(store)
    twin = Twin(layer)
    batches: Any = [batch_of(rng) for _ in range(6)]
    if is_ahead:
        batches = layer.ahead(batches, features=lambda batch: batch[0], lookahead=3)
    for given, twins in batches:
        twin.step(forwards([twins], gradients_of(layer, [given], run)))
        layer.step()
    twin.assert_same()
    assert store.table("a").t == 6


@pytest.mark.parametrize("run", [as_it_is, compiled])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_micro_batches_are_one_update_in_their_order(
    embedded: Store, is_ahead: bool, run: Any
) -> None:
    """Also within one graph, whose operations run side by side where they may."""
    rng, layer = np.random.default_rng(2), collection(embedded)
    twin = Twin(layer)
    batches: Any = [[batch_of(rng) for _ in range(4)] for _ in range(2)]
    if is_ahead:
        batches = layer.ahead(batches, features=lambda batch: [given for given, _ in batch])
    for batch in batches:
        given, twins = zip(*batch, strict=True)
        twin.step(forwards(list(twins), gradients_of(layer, list(given), run)))
        layer.step()
    twin.assert_same()
    assert embedded.table("a").t == 2


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


def test_micro_batches_are_to_the_bit_the_whole_batch(embedded: Store) -> None:
    rng = np.random.default_rng(3)
    options = {"dim": 8, "rows": ROWS, "optimizer": Sgd(0.1), "initializer": Uniform(-1, 1)}
    whole, parts = (Embedding(embedded, name, seed=5, **options) for name in ("w", "p"))
    ids = rng.zipf(1.2, 600) % ROWS
    for layer, chunks in ((whole, [ids]), (parts, np.split(ids, 4))):
        for chunk in chunks:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(layer(chunk)))
            tape.gradient(loss, [])
        layer.step()
    found = [embedded.table(name).lookup(np.arange(ROWS)) for name in ("w", "p")]
    np.testing.assert_array_equal(*found)


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


@pytest.mark.parametrize("run", [as_it_is, compiled])
def test_what_the_loss_does_not_use_is_no_update(store: Store, run: Any) -> None:
    rng, layer = np.random.default_rng(5), collection(store)
    twin, command = Twin(layer), store.command
    given, twins = batch_of(rng)
    run(layer)(given, training=True)
    assert layer.step() is None
    assert store.command == command
    twin.step(forwards([twins], gradients_of(layer, [given], run, "z")))
    layer.step()
    twin.assert_same()
    assert store.table_facts()["a"].t == 0
    assert store.table_facts()["b"].t == 1


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


def test_what_has_no_gradient_is_not_updated_by_a_step_of_a_session(store: Store) -> None:
    rng, layer = np.random.default_rng(6), collection(store)
    twin = Twin(layer)
    batches = [batch_of(rng) for _ in range(6)]
    for number, (given, twins) in enumerate(layer.ahead(batches, features=lambda b: b[0])):
        if number % 3:
            features = "z" if number % 3 == 1 else "xz"  # ids of "y" were announced
            twin.step(forwards([twins], gradients_of(layer, [given], as_it_is, features)))
        layer.step()
    twin.assert_same()
    facts = store.table_facts()
    assert (facts["a"].t, facts["b"].t) == (2, 4)


def test_a_learning_rate_is_of_one_step(embedded: Store) -> None:
    rng, layer = np.random.default_rng(7), collection(embedded)
    twin = Twin(layer)
    for options in ({}, {"learning_rate": 0.5}, {}):
        given, twins = batch_of(rng)
        twin.step(forwards([twins], gradients_of(layer, [given], as_it_is)), **options)
        layer.step(**options)
    twin.assert_same()


def test_reading_alone_keeps_nothing_and_admits_no_row(embedded: Store) -> None:
    rng, layer = np.random.default_rng(9), collection(embedded)
    given, _ = batch_of(rng)
    with tf.GradientTape() as tape:
        loss = loss_of(layer(given, training=False))
    tape.gradient(loss, [])
    assert embedded.table("a").stats()["resident_rows"] == 0
    assert layer.step() is None
    layer(given)
    assert embedded.table("a").stats()["resident_rows"] > 0


def test_reading_alone_within_a_step_reads_what_is_there(embedded: Store) -> None:
    layer, ids = one_table(embedded), tf.constant([[1, 2]])
    for batch in layer.ahead([ids, ids], features=lambda batch: batch):
        with tf.GradientTape() as tape:
            before = layer(batch)
        tape.gradient(before, [])
        layer.step()
        now = layer(tf.constant([[1, 2], [30, 31]]), training=False)
        assert (now[0] != before[0]).numpy().any()


def test_a_layer_that_is_not_trainable_is_not_updated(embedded: Store) -> None:
    layer = one_table(embedded, trainable=False)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([[1]]), training=True))
    tape.gradient(loss, [])
    assert layer.step() is None


def test_gradients_that_are_refused_are_kept(embedded: Store) -> None:
    layer = one_table(embedded)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([[1, 2]])) * np.inf)
    tape.gradient(loss, [])
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="finite"):
            layer.step()
    layer.clear_gradients()
    assert layer.step() is None
    assert embedded.table("t").t == 0


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
    layer = EmbeddingBag(store, "t", dim=4, rows=ROWS, optimizer=Sgd(1.0))
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
        gradients = gradients_of(layer, [features], compiled)
        twin.step(forwards([dict.fromkeys("xyz", flat)], gradients))
        layer.step()
    twin.assert_same()
    assert layer.last_step == 8


def test_gradients_that_were_not_sent_are_not_lost_in_silence(embedded: Store) -> None:
    layer = one_table(embedded)
    with pytest.raises(InvalidArgumentError, match=r"step\(\)"):
        for batch in layer.ahead([tf.constant([[1]])] * 2, features=lambda batch: batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(batch))
            tape.gradient(loss, [])
    assert layer.step() is None


def test_ids_that_were_not_announced_are_refused_by_name(embedded: Store) -> None:
    layer = one_table(embedded)
    for _ in layer.ahead([tf.constant([[1, 2]])], features=lambda batch: batch):
        layer(tf.constant([[2], [2]]))
        with pytest.raises(InvalidArgumentError, match="step 1, found 3"):
            layer(tf.constant([[2, 3]]))
        layer.step()


def test_arguments_of_one_table_may_be_a_tuple(embedded: Store) -> None:
    layer, ids = one_table(embedded), np.array([[1, 2], [3, 1]])
    batches = [(ids, np.ones((2, 2), np.float32))]
    for batch in layer.ahead(batches, features=lambda batch: batch):
        assert layer(*batch).shape == (2, 4)
        layer.step()
    assert layer.last_step == 1


def test_a_loop_that_is_left_closes_its_session(embedded: Store) -> None:
    layer = one_table(embedded)
    for _ in layer.ahead([np.array([[n]]) for n in range(5)], features=lambda batch: batch):
        with pytest.raises(InvalidArgumentError, match="loop before"):
            next(layer.ahead([], features=lambda batch: batch))
        break
    assert embedded.sessions.stats() == []
    assert layer(np.array([[1]])).shape == (1, 4)


def test_a_batch_without_a_step_is_released(embedded: Store) -> None:
    layer = one_table(embedded)
    for _ in layer.ahead([np.array([[1]])] * 3, features=lambda batch: batch):
        pass
    assert layer.last_step == 3
    assert embedded.table("t").t == 0


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


def test_a_collection_is_its_configuration(server: Server) -> None:
    with patient(server.address) as store:
        layer = collection(store)
        made = EmbeddingBagCollection.from_config(layer.get_config())
        assert made.tables == layer.tables
        assert made.get_config() == layer.get_config()
        given, _ = batch_of(np.random.default_rng(13))
        for found, wanted in zip(made(given).values(), layer(given).values(), strict=True):
            np.testing.assert_array_equal(found, wanted)
        made.store.close()


def test_a_layer_of_an_embedded_store_asks_for_another(embedded: Store) -> None:
    arrived = keras.models.clone_model(model_of(one_table(embedded))).layers[1]
    with pytest.raises(InvalidArgumentError, match="attach"):
        _ = arrived.store
    arrived.attach(embedded)
    assert arrived.store is embedded
