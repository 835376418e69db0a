"""Arguments in the shapes of TensorFlow: the outputs and gradients of an embedding in memory."""

from typing import Any

import numpy as np
import pytest

from embstore import InvalidArgumentError
from embstore.handles.store import Store
from tests.frameworks.on_keras import keras, tf
from tests.frameworks.tables import DIM, ROWS, TABLE, rows_of

from embstore_client.keras import (  # isort: skip
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingCollection,
    Ids,
)


def in_memory(rows: Any) -> Any:
    """Return Keras's own embedding of these rows."""
    layer = keras.layers.Embedding(*rows.shape)
    layer.build()
    layer.set_weights([rows])
    return layer


def pooled(rows: Any, ids: Any, mode: str, weights: Any = None) -> Any:
    """Return bags of rows that TensorFlow has summed."""
    is_ragged = isinstance(ids, tf.RaggedTensor)
    found = tf.gather(rows, ids if is_ragged or ids.shape.rank == 2 else ids[:, None])
    if weights is not None:
        found = found * weights[..., None]
    total = tf.reduce_sum(found, axis=1)
    if mode == "sum":
        return total
    counts = ids.row_lengths()[:, None] if is_ragged else tf.shape(found)[1]
    return tf.math.divide_no_nan(total, tf.cast(counts, tf.float32))


def assert_same(layer: Any, wanted_of: Any, *arguments: Any, run: Any = tf.function) -> None:
    """Compare outputs, and what one step by Sgd(1) does, with those of rows in memory."""
    (name,) = layer.tables
    before = rows_of(layer.store, name)
    rows = tf.Variable(before)

    @run
    def found_and_wanted() -> Any:
        with tf.GradientTape() as tape:
            found, wanted = layer(*arguments), wanted_of(rows)
            weighting = tf.reshape(tf.linspace(-1.0, 1.0, tf.size(wanted)), tf.shape(wanted))
            loss = tf.reduce_sum(weighting * found) + tf.reduce_sum(weighting * wanted)
        return found, wanted, tf.convert_to_tensor(tape.gradient(loss, rows))

    found, wanted, gradient = found_and_wanted()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    layer.step()
    np.testing.assert_allclose(before - rows_of(layer.store, name), gradient, atol=1e-6)


IDS = tf.constant([[3, 3, 7], [1, 49, 3]], tf.int64)
SHAPES = {
    "bags of one length": IDS,
    "int32": tf.cast(IDS, tf.int32),
    "empty bags": tf.ragged.constant([[], [3, 3, 7, 1], [], [49, 3], []], dtype=tf.int64),
    "ragged int32": tf.ragged.constant([[1, 1], [2]], dtype=tf.int32),
    "row splits of int32": tf.ragged.constant([[1, 1], [2]], row_splits_dtype=tf.int32),
    "one sample": tf.constant([[9]]),
    "one id a bag": tf.constant([9, 9, 4]),
    "no bags": tf.zeros([0, 3], tf.int64),
    "bags of no id": tf.zeros([2, 0], tf.int64),
    "no ids": tf.ragged.constant([[], []], dtype=tf.int64, ragged_rank=1),
}


def as_it_is(function: Any) -> Any:
    return function


@pytest.mark.parametrize("run", [as_it_is, tf.function])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bags_are_those_of_rows_in_memory(embedded: Store, mode: Any, shape: str, run: Any) -> None:
    ids = SHAPES[shape]
    layer = EmbeddingBag(embedded, "t", **TABLE, mode=mode)
    assert_same(layer, lambda rows: pooled(rows, ids, mode), ids, run=run)


def test_bags_are_means_where_nothing_is_said(embedded: Store) -> None:
    layer = EmbeddingBag(embedded, "t", **TABLE)
    assert_same(layer, lambda rows: pooled(rows, IDS, "mean"), IDS)


@pytest.mark.parametrize("ids", [IDS, IDS[0], tf.constant(4), tf.reshape(IDS, [1, 2, 3]), IDS[:0]])
def test_ids_of_any_shape_are_those_of_rows_in_memory(store: Store, ids: Any) -> None:
    assert_same(Embedding(store, "t", **TABLE), lambda rows: tf.gather(rows, ids), ids)


def test_rows_are_those_of_keras(embedded: Store) -> None:
    layer = Embedding(embedded, "t", **TABLE)
    np.testing.assert_array_equal(layer(IDS), in_memory(rows_of(embedded, "t"))(IDS))
    assert layer(IDS.numpy()).shape == (2, 3, DIM)


@pytest.mark.parametrize("run", [as_it_is, tf.function])
@pytest.mark.parametrize("ids", [IDS, SHAPES["empty bags"]], ids=["dense", "ragged"])
def test_weights_of_ids_and_their_gradients(embedded: Store, ids: Any, run: Any) -> None:
    layer = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    before = rows_of(embedded, "t")
    rows, flat = tf.Variable(before), tf.Variable(tf.linspace(-1.0, 2.0, 6))
    reshape = tf.reshape if ids is IDS else lambda flat, _: ids.with_values(flat)

    @run
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, reshape(flat, tf.shape(ids))) ** 2)
        with tf.GradientTape() as other:
            wanted = tf.reduce_sum(pooled(rows, ids, "sum", reshape(flat, tf.shape(ids))) ** 2)
        of_rows, of_weights = other.gradient(wanted, [rows, flat])
        return tape.gradient(loss, flat), of_weights, tf.convert_to_tensor(of_rows)

    found, wanted, of_rows = gradients()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    layer.step()
    np.testing.assert_allclose(before - rows_of(embedded, "t"), of_rows, atol=1e-5)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_weights_get_their_gradient_where_rows_get_none(embedded: Store, is_frozen: bool) -> None:
    layer = EmbeddingBag(embedded, "t", **TABLE, trainable=not is_frozen, mode="sum")
    weights = tf.Variable(tf.ones([2, 3]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS, weights, training=is_frozen))
    wanted = rows_of(embedded, "t")[IDS].sum(axis=2)
    np.testing.assert_allclose(tape.gradient(loss, weights), wanted, rtol=1e-5)
    assert layer.step() is None


def test_gradients_of_some_rows_of_the_activations(embedded: Store) -> None:
    """TensorFlow has them as IndexedSlices."""
    layer = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    before = rows_of(embedded, "t")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(layer(IDS), [1, 1]))
    tape.gradient(loss, [])
    layer.step()
    wanted = np.zeros_like(before)
    wanted[[1, 49, 3]] = 2
    np.testing.assert_allclose(before - rows_of(embedded, "t"), wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16", "float64"])
def test_activations_are_of_the_compute_dtype(embedded: Store, dtype: str) -> None:
    layer = EmbeddingBag(embedded, "t", **TABLE, dtype=dtype, mode="sum")
    before = rows_of(embedded, "t")
    with tf.GradientTape() as tape:
        output = layer(tf.constant([[1, 2]]), tf.constant([[1.0, 1.0]]))
        loss = tf.reduce_sum(output)
    assert output.dtype == keras.DTypePolicy(dtype).compute_dtype
    tape.gradient(loss, [])
    layer.step()
    np.testing.assert_allclose((before - rows_of(embedded, "t"))[[1, 2]], 1, rtol=1e-5)


def collection(store: Store) -> EmbeddingBagCollection:
    a = Bag("a", features=["x", "y"], **TABLE)
    b = Bag("b", features=["z"], mode="mean", **TABLE)
    return EmbeddingBagCollection(store, [a, b])


def test_bags_of_several_tables_come_by_feature(store: Store) -> None:
    layer, ragged = collection(store), SHAPES["empty bags"]
    weights = ragged.with_values(tf.linspace(0.0, 1.0, 6))
    found = layer({"z": IDS, "y": (ragged, weights), "x": IDS[:, 0], "other": None})
    assert {name: tuple(rows.shape) for name, rows in found.items()} == {
        "x": (2, DIM),
        "y": (5, DIM),
        "z": (2, DIM),
    }
    of_a = rows_of(store, "a")
    np.testing.assert_array_equal(found["x"], of_a[IDS[:, 0]])
    np.testing.assert_allclose(found["y"], pooled(of_a, ragged, "sum", weights), atol=1e-6)
    np.testing.assert_allclose(found["z"], pooled(rows_of(store, "b"), IDS, "mean"), atol=1e-6)


def test_activations_are_bit_by_bit_those_of_pooled_lookups(store: Store) -> None:
    ids = tf.ragged.constant([list(range(50)) * 2, [], [7]], dtype=tf.int64)
    for mode in ("sum", "mean"):
        layer = EmbeddingBag(store, f"{mode}s", **TABLE, mode=mode)
        table = store.table(f"{mode}s")
        wanted = table.lookup_pooled(ids.values.numpy(), ids.row_splits.numpy(), mode)
        np.testing.assert_array_equal(layer(ids), wanted)


def test_ids_of_several_tables_come_by_feature(store: Store) -> None:
    tables = [Ids("a", features=["x", "y"], **TABLE), Ids("b", features=["z"], **TABLE)]
    found = EmbeddingCollection(store, tables)({"z": IDS, "x": IDS[0], "y": tf.constant([[0]])})
    assert {name: tuple(rows.shape) for name, rows in found.items()} == {
        "x": (3, DIM),
        "y": (1, 1, DIM),
        "z": (2, 3, DIM),
    }
    np.testing.assert_array_equal(found["z"], rows_of(store, "b")[IDS])


def test_shapes_are_known_when_a_model_is_made(embedded: Store) -> None:
    ids = keras.Input((3,), name="x", dtype="int32")
    ragged = keras.Input((None,), name="z", dtype="int64", ragged=True)
    found = collection(embedded)({"x": ids, "y": ids, "z": ragged})
    assert {rows.shape for rows in found.values()} == {(None, DIM)}
    assert Embedding(embedded, "e", **TABLE)(ids).shape == (None, 3, DIM)
    model = keras.Model([ids, ragged], list(found.values()))
    assert model.variables == []
    outputs = model([IDS[:, :3], SHAPES["ragged int32"]])
    assert [tuple(rows.shape) for rows in outputs] == [(2, DIM)] * 3


WRONG = {
    "floats": (tf.constant([[1.0]]),),
    "three dimensions": (tf.zeros([1, 1, 1], tf.int64),),
    "a bag": (tf.constant(1),),
    "ragged of ragged": (tf.ragged.constant([[[1]]]),),
    "sparse": (tf.sparse.from_dense([[1]]),),
    "weights of another shape": (IDS, tf.ones([2, 2])),
    "weights that are ragged": (IDS, tf.ragged.constant([[1.0], [2.0]])),
    "weights that are integers": (IDS, IDS),
    "an id beyond the table": (tf.constant([[ROWS]]),),
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(embedded: Store, arguments: Any) -> None:
    layer = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    with pytest.raises(InvalidArgumentError, match="'t'"):
        layer(*arguments)


def test_weights_that_are_not_one_for_each_id_are_refused_when_it_runs(embedded: Store) -> None:
    layer = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    with pytest.raises(InvalidArgumentError, match="3 weights, found 2"):
        layer(SHAPES["ragged int32"], tf.ragged.constant([[1.0], [2.0]]))


def test_what_is_wrong_in_a_graph_is_said_by_tensorflow(embedded: Store) -> None:
    layer = tf.function(EmbeddingBag(embedded, "t", **TABLE, mode="sum"))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 't'.*50"):
        layer(tf.constant([[ROWS]]))


def test_ragged_ids_need_bags(embedded: Store) -> None:
    with pytest.raises(InvalidArgumentError, match="dense"):
        Embedding(embedded, "t", **TABLE)(SHAPES["empty bags"])


def test_features_are_a_mapping(embedded: Store) -> None:
    with pytest.raises(InvalidArgumentError, match="mapping"):
        collection(embedded)(IDS)
