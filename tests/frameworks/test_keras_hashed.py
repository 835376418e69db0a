"""Layers whose tables hash ids train the rows that hash_ids names, whatever ids come as."""

from typing import Any

import numpy as np
import pytest

from embstore import Adam, InvalidArgumentError, Uniform, hash_ids
from tests.frameworks.on_keras import as_it_is, compiled, keras, tf
from tests.frameworks.tables import DIM, ROWS, rows_of
from tests.serving import patient

from embstore_client.keras import (  # isort: skip
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    Ids,
)

RUNS = pytest.mark.parametrize("run", [as_it_is, compiled])
TABLE: dict[str, Any] = {
    "dim": DIM,
    "rows": ROWS,
    "seed": 7,
    "optimizer": Adam(0.1),
    "initializer": Uniform(-1, 1),
}
WORDS = ["user_1", "ü", "", "5", "user_1"]


def hashed(ids: Any) -> Any:
    return tf.constant(hash_ids(ids, feature="t", rows=ROWS))


def trained(store: Any, run: Any, kind: Any, ids: Any, *rest: Any) -> None:
    """Train a table by hashed ids, and another by the keys that hash_ids makes of them."""
    keys = (
        ids.with_flat_values(hashed(ids.flat_values))
        if isinstance(ids, tf.RaggedTensor)
        else hashed(ids)
    )
    for name, given, options in (("t", ids, {"ids": "hash"}), ("keys", keys, {})):
        layer = kind(store, name, **TABLE, **options)

        @run
        def back(*given, layer=layer):
            with tf.GradientTape() as tape:
                rows = layer(*given)
                loss = tf.reduce_sum(tf.cumsum(tf.square(tf.reshape(rows, [-1, DIM]))))
            tape.gradient(loss, [])

        back(given, *rest)
        layer.step()
    assert rows_of(store, "t").tobytes() == rows_of(store, "keys").tobytes()
    assert store.table("t").t == 1


@RUNS
@pytest.mark.parametrize(
    "ids",
    [
        tf.constant(WORDS),
        tf.constant([WORDS, WORDS[::-1]]),
        tf.constant([5, 2**63 - 1, -3], tf.int64),
        tf.constant([5, 7], tf.int32),
        tf.constant([2**64 - 2, 7], tf.uint64),
    ],
    ids=lambda ids: f"{ids.dtype.name}-{ids.shape.rank}",
)
def test_ids_of_tensors(embedded, run, ids):
    trained(embedded, run, Embedding, ids)


@pytest.mark.parametrize("ids", [np.array(WORDS), np.array([2**64 - 2], np.uint64)], ids=str)
def test_ids_of_arrays(embedded, ids):
    trained(embedded, as_it_is, Embedding, ids)


@RUNS
def test_ragged_bags_with_weights(embedded, run):
    ids = tf.ragged.constant([["a", "b"], [], ["b"]])
    weights = tf.ragged.constant([[0.5, 1.0], [], [-1.0]])
    trained(embedded, run, EmbeddingBag, ids)
    embedded.drop_table("t")
    embedded.drop_table("keys")
    trained(embedded, run, EmbeddingBag, ids, weights)


@RUNS
def test_padding_is_an_id_before_it_is_hashed(embedded, run):
    layer = Embedding(embedded, "t", ids="hash", padding_idx="", **TABLE)
    found = run(layer)(tf.constant([["a", ""], ["", "b"]])).numpy()
    assert found.any(axis=2).tolist() == [[True, False], [False, True]]


def collection(store: Any, name: str, **options: Any) -> EmbeddingBagCollection:
    pooled = Bag(name, features=["x"], **TABLE, **options)
    return EmbeddingBagCollection(store, [pooled, Ids(name, features=["y"], **TABLE, **options)])


def test_features_of_a_dataset_ahead(store):
    features = {"x": tf.constant([["a", "b"], ["b", "ü"]]), "y": tf.constant(["c", "a"])}
    for name, given, options in (
        ("t", features, {"ids": "hash"}),
        ("keys", {of: hashed(ids) for of, ids in features.items()}, {}),
    ):
        layer = collection(store, name, **options)
        for batch in layer.ahead([given] * 2, features=lambda batch: batch):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(tf.square(of)) for of in layer(batch).values()])
            tape.gradient(loss, [])
            layer.step()
    assert rows_of(store, "t").tobytes() == rows_of(store, "keys").tobytes()


def test_a_saved_layer_hashes_too(server, tmp_path):
    with patient(server.address) as store:
        layer = Embedding(store, "t", ids="hash", padding_idx="", **TABLE)
        ids = keras.Input((2,), dtype="string")
        model = keras.Model(ids, layer(ids))
        model.save(tmp_path / "model.keras")
        given = tf.constant([["a", ""], ["ü", "5"]])
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert loaded(given).numpy().tobytes() == model(given).numpy().tobytes()


def test_ids_that_are_no_keys_are_refused_with_advice(embedded):
    layer = Embedding(embedded, "t", **TABLE)
    for ids in (tf.constant(WORDS), np.array([1.0]), tf.constant([1], tf.uint64)):
        with pytest.raises(InvalidArgumentError) as refused:
            layer(ids)
        assert "embstore.hash_ids(" in str(refused.value) and 'ids="hash"' in str(refused.value)
