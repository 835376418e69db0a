"""Layers of sparse keys train to the bit as those of dense ones do, whatever int64 ids are."""

from typing import Any

import numpy as np
import pytest

from embstore import InvalidArgumentError, hash_ids
from tests.frameworks.on_keras import keras, tf
from tests.frameworks.sparse import DIM, IDS, TABLE, TWIN, assert_same_rows, drawn, ids_of
from tests.frameworks.test_keras_hashed import RUNS, WORDS
from tests.serving import patient

from embstore_client.keras import (  # isort: skip
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    Ids,
)


def train(run: Any, layer: Any, *given: Any) -> None:
    @run
    def back(*given: Any) -> None:
        with tf.GradientTape() as tape:
            rows = layer(*given)
            loss = tf.reduce_sum(tf.cumsum(tf.square(tf.reshape(rows, [-1, DIM]))))
        tape.gradient(loss, [])

    back(*given)
    layer.step()


@RUNS
@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag])
def test_ids_of_any_sign(embedded, run, kind):
    places = drawn(1, 6, 5, padding=0.4)
    train(run, kind(embedded, "t", **TABLE), tf.constant(ids_of(places)))
    train(run, kind(embedded, "twin", **TWIN), tf.constant(places))
    assert_same_rows(embedded, "t", "twin")


@RUNS
def test_unsigned_and_ragged_ids(embedded, run):
    lengths = [5, 0, len(IDS) - 5]
    ids = tf.RaggedTensor.from_row_lengths(tf.constant(IDS.view(np.uint64)), lengths)
    places = tf.RaggedTensor.from_row_lengths(tf.range(len(IDS), dtype=tf.int64), lengths)
    train(run, EmbeddingBag(embedded, "t", **TABLE), ids)
    train(run, EmbeddingBag(embedded, "twin", **TWIN), places)
    assert_same_rows(embedded, "t", "twin")


def test_arrays_of_unsigned_ids(embedded):
    layer = Embedding(embedded, "t", padding_idx=-2, **TABLE)
    found = layer(IDS.view(np.uint64)).numpy()
    assert found.any(axis=1).tolist() == (IDS != -2).tolist()
    with pytest.raises(InvalidArgumentError, match=r"int32 or int64, found .*uint64"):
        Embedding(embedded, "twin", **TWIN)(IDS.view(np.uint64))


@RUNS
def test_hashes_are_keys_as_they_are(embedded, run):
    keys = hash_ids(WORDS, feature="t")
    assert (keys < 0).any()
    train(run, Embedding(embedded, "t", ids="hash", **TABLE), tf.constant(WORDS))
    assert (embedded.table("t").lookup(keys) != 0.25).any(axis=1).all()


def test_features_of_a_dataset_ahead(store):
    for name, options in (("t", TABLE), ("twin", TWIN)):
        entries = [Bag(name, features=["x"], **options), Ids(name, features=["y"], **options)]
        layer = EmbeddingBagCollection(store, entries)
        of = ids_of if name == "t" else np.array
        batches = [
            {"x": tf.constant(of(drawn(seed, 4, 3))), "y": tf.constant(of(drawn(seed, 5)))}
            for seed in range(2)
        ]
        for batch in layer.ahead(batches, features=lambda batch: batch):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(tf.square(of)) for of in layer(batch).values()])
            tape.gradient(loss, [])
            layer.step()
    assert_same_rows(store, "t", "twin")


def test_a_saved_layer_has_sparse_keys(server, tmp_path):
    with patient(server.address) as store:
        layer = Embedding(store, "t", **TABLE)
        ids = keras.Input((len(IDS),), dtype="int64")
        keras.Model(ids, layer(ids)).save(tmp_path / "model.keras")
        train(tf.function, layer, tf.constant(IDS))
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert loaded(tf.constant(IDS[None])).numpy().tobytes() == layer(IDS).numpy().tobytes()
