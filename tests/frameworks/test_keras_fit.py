"""`model.fit` and `train_on_batch`: a step for each batch, compiled or not."""

from typing import Any

import numpy as np
import pytest

from embstore import InvalidArgumentError, Sgd, Uniform
from embstore.handles.store import Store
from tests.frameworks.on_keras import keras, tf

from embstore_client.keras import (  # isort: skip
    Bag,
    EmbeddingBag,
    EmbeddingBagCollection,
    StoreStep,
)

ROWS, SAMPLES, BATCH_SIZE = 40, 64, 8
TABLE: dict[str, Any] = {
    "dim": 4,
    "rows": ROWS,
    "optimizer": Sgd(0.1),
    "initializer": Uniform(-1, 1),
}


def data() -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(1)
    ids = {name: rng.zipf(1.3, (SAMPLES, 3)) % ROWS for name in ("query", "ad")}
    return ids, rng.random((SAMPLES, 1), np.float32)


class Trainer:
    """Two tables and a dense layer."""

    def __init__(self, store: Store, *, prefix: str = "", **compiled: Any) -> None:
        self.store = store
        keras.utils.set_random_seed(1)
        tables = [
            Bag(f"{prefix}{name}", features=[name], seed=1, **TABLE) for name in ("query", "ad")
        ]
        self.embeddings = EmbeddingBagCollection(store, tables)
        inputs = {name: keras.Input((3,), name=name, dtype="int64") for name in ("query", "ad")}
        pooled = keras.layers.Concatenate()(list(self.embeddings(inputs).values()))
        self.model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
        self.model.compile(**{"optimizer": "sgd", "loss": "mse"} | compiled)

    def fit(self, **options: Any) -> list[float]:
        ids, labels = data()
        callbacks = [StoreStep(self.embeddings), *options.pop("callbacks", [])]
        given = {"batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0} | options
        history = self.model.fit(ids, labels, callbacks=callbacks, **given)
        return [float(loss) for loss in history.history["loss"]]

    def state(self) -> Any:
        digests = {name.rpartition("/")[2]: table for name, table in self.embeddings.tables.items()}
        rows = {
            name: self.store.table(table.name).lookup(np.arange(ROWS)).tolist()
            for name, table in digests.items()
        }
        return rows, [weights.tolist() for weights in self.model.get_weights()]


def test_a_compiled_step_and_one_that_is_not_come_to_the_same(store: Store) -> None:
    compiled = Trainer(store, prefix="c/", run_eagerly=False)
    eager = Trainer(store, prefix="e/", run_eagerly=True)
    np.testing.assert_allclose(compiled.fit(epochs=2), eager.fit(epochs=2), rtol=1e-6)
    for found, wanted in zip(compiled.state()[0].values(), eager.state()[0].values(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert store.table("c/ad").t == store.table("e/ad").t == 2 * SAMPLES // BATCH_SIZE
    assert not compiled.model.jit_compile


@pytest.mark.parametrize("is_eager", [False, True])
def test_single_batches_are_what_fit_does(store: Store, is_eager: bool) -> None:
    fitted = Trainer(store, prefix="f/", run_eagerly=is_eager)
    looped = Trainer(store, prefix="l/", run_eagerly=is_eager)
    fitted.fit(epochs=1)
    ids, labels = data()
    batches = [
        ({name: of[begin : begin + BATCH_SIZE] for name, of in ids.items()}, labels[begin:][:8])
        for begin in range(0, SAMPLES, BATCH_SIZE)
    ]
    for x, y in looped.embeddings.ahead(batches, features=lambda batch: batch[0], lookahead=3):
        looped.model.train_on_batch(x, y)
        looped.embeddings.step()
    assert looped.state() == fitted.state()


@pytest.mark.parametrize("is_eager", [False, True])
def test_fit_with_look_ahead_is_what_it_is_without(store: Store, is_eager: bool) -> None:
    plain = Trainer(store, prefix="p/", run_eagerly=is_eager)
    ahead = Trainer(store, prefix="a/", run_eagerly=is_eager)
    losses = plain.fit(epochs=3)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH_SIZE).prefetch(4)
    announced = ahead.embeddings.ahead_dataset(
        dataset, features=lambda batch: batch[0], name="job", lookahead=3
    )
    stepping, begun = StoreStep(ahead.embeddings), []
    counting = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begun.append(ahead.embeddings.last_step)
    )
    history = ahead.model.fit(
        announced, epochs=3, callbacks=[stepping, counting], shuffle=False, verbose=0
    )
    assert history.history["loss"] == losses
    assert ahead.state() == plain.state()
    assert begun == [0, 8, 16]
    assert ahead.embeddings.last_step == 24
    assert store.sessions.stats() == []


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # what Keras says of such datasets
def test_look_ahead_goes_through_datasets_of_unknown_size_and_over_epochs(embedded: Store) -> None:
    trainer = Trainer(embedded)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH_SIZE)
    unknown = dataset.filter(lambda ids, labels: True)
    for batches, options in ((unknown, {}), (dataset.repeat(), {"steps_per_epoch": 5})):
        ahead = trainer.embeddings.ahead_dataset(
            batches, features=lambda batch: batch[0], name="job"
        )
        callbacks = [StoreStep(trainer.embeddings)]
        trainer.model.fit(ahead, callbacks=callbacks, epochs=2, shuffle=False, verbose=0, **options)
    assert embedded.table("ad").t == trainer.embeddings.last_step == 2 * 8 + 2 * 5
    assert embedded.sessions.stats() == []


def test_a_fit_with_look_ahead_that_is_broken_off_closes_its_session(embedded: Store) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 2

    trainer = Trainer(embedded)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH_SIZE)
    ahead = trainer.embeddings.ahead_dataset(dataset, features=lambda batch: batch[0])
    callbacks = [StoreStep(trainer.embeddings), Stop()]
    trainer.model.fit(ahead, callbacks=callbacks, shuffle=False, verbose=0)
    assert embedded.table("ad").t == 3
    assert embedded.sessions.stats() == []
    trainer.fit(epochs=1)


def test_a_fit_with_look_ahead_that_failed_is_followed_by_another(embedded: Store) -> None:
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    trainer = Trainer(embedded)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH_SIZE)
    ahead = trainer.embeddings.ahead_dataset(dataset, features=lambda batch: batch[0], name="job")
    options: dict[str, Any] = {"shuffle": False, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        trainer.model.fit(ahead, callbacks=[Fail(), StoreStep(trainer.embeddings)], **options)
    trainer.model.fit(ahead, callbacks=[StoreStep(trainer.embeddings)], **options)
    assert embedded.table("ad").t == trainer.embeddings.last_step == SAMPLES // BATCH_SIZE


def test_validation_and_prediction_change_nothing(store: Store) -> None:
    plain, watched = Trainer(store, prefix="p/"), Trainer(store, prefix="w/")
    ids, labels = data()
    plain.fit(epochs=2)
    watched.fit(epochs=2, validation_data=(ids, labels))
    watched.model.evaluate(ids, labels, verbose=0)
    watched.model.predict(ids, verbose=0)
    assert watched.state() == plain.state()


def test_layers_of_their_own_are_updates_of_their_own(embedded: Store) -> None:
    ids = keras.Input((3,), dtype="int64")
    layers = [EmbeddingBag(embedded, name, **TABLE, mode="sum") for name in ("a", "b")]
    outputs = keras.layers.Dense(1)(keras.layers.Add()([layer(ids) for layer in layers]))
    model = keras.Model(ids, outputs)
    model.compile("adam", "mse")
    given, labels = data()
    model.fit(given["ad"], labels, callbacks=[StoreStep(*layers)], verbose=0)
    assert embedded.table("a").t == embedded.table("b").t == 2


def test_a_batch_that_was_broken_off_leaves_nothing(embedded: Store) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    trainer, ids = Trainer(embedded), data()[0]
    with pytest.raises(KeyboardInterrupt):  # behind the compiled step, before the store's
        trainer.model.fit(*data(), callbacks=[Stop(), StoreStep(trainer.embeddings)], verbose=0)
    assert embedded.table("ad").t == 0
    before = trainer.state()[0]
    trainer.fit(epochs=1, steps_per_epoch=1)
    changed = np.any(np.array(trainer.state()[0]["ad"]) != np.array(before["ad"]), axis=1)
    assert set(np.flatnonzero(changed)) <= set(ids["ad"][:BATCH_SIZE].flatten())


# What is refused


@pytest.mark.parametrize(
    ("compiled", "match"),
    [
        ({"steps_per_execution": 2}, "steps_per_execution=1"),
        ({"optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2)}, "accumulat"),
        ({"optimizer": keras.optimizers.SGD(loss_scale_factor=3.0)}, "power of two"),
    ],
)
def test_what_a_callback_cannot_see_is_refused(embedded: Store, compiled: Any, match: str) -> None:
    trainer = Trainer(embedded, **compiled)
    with pytest.raises(InvalidArgumentError, match=match):
        trainer.fit()
    assert embedded.table("ad").t == 0


def test_a_model_that_keras_would_compute_no_gradients_of_is_refused(embedded: Store) -> None:
    ids, layer = keras.Input((3,), dtype="int64"), EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    model = keras.Model(ids, layer(ids))
    model.compile("sgd", "mse")
    with pytest.raises(InvalidArgumentError, match="weights of its own"):
        model.fit(data()[0]["ad"], np.zeros((SAMPLES, 4)), callbacks=[StoreStep(layer)], verbose=0)


@pytest.mark.parametrize("layers", [[], [None]])
def test_a_callback_is_of_layers_of_a_store(layers: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="layers of a store"):
        StoreStep(*layers)


def test_xla_is_left_out_with_a_warning_of_keras(embedded: Store) -> None:
    with pytest.warns(UserWarning, match="Proceeding with `jit_compile=False`"):
        trainer = Trainer(embedded, jit_compile=True)
    trainer.fit()
    assert embedded.table("ad").t == SAMPLES // BATCH_SIZE
