"""LossScaleOptimizer: dense part and store are skipped together, and the scale leaves no trace."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embstore import InvalidArgumentError, RowWiseAdagrad, Uniform
from embstore.handles.store import Store
from tests.frameworks.on_keras import keras, tf

from embstore_client.keras import EmbeddingBag, LossScale, StoreStep  # isort: skip

ROWS = 30
IDS = tf.constant([[1, 2], [2, 3], [29, 1]])
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer


def as_it_is(function: Any) -> Any:
    return function


class Trainer:
    """A dense layer over one table, and an optimizer that scales the loss."""

    def __init__(self, store: Store, name: str = "t", optimizer: Any = None, **layer: Any) -> None:
        options = {"dim": 4, "rows": ROWS, "optimizer": RowWiseAdagrad(0.1), "seed": 1}
        self.embedding = EmbeddingBag(
            store, name, initializer=Uniform(-1, 1), **options, **layer, mode="sum"
        )
        self.table = store.table(name)
        keras.utils.set_random_seed(1)
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 4))
        if optimizer is None:
            optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.1), dynamic_growth_steps=2)
        self.optimizer = optimizer
        self.scale = LossScale(optimizer)

    def step(self, factor: float = 1.0, of_rows: float = 1.0, run: Any = tf.function) -> Any:
        """Train on one batch; the factors multiply all gradients, and those of the rows."""
        run(self._trained)(tf.constant(factor), tf.constant(of_rows))
        return self.embedding.step(self.scale.verdict())

    def _trained(self, factor: Any, of_rows: Any) -> None:
        variables = self.dense.trainable_variables
        with tf.GradientTape() as tape:
            pooled = self.embedding(IDS)
            as_read = tf.stop_gradient(pooled)
            pooled = as_read + (pooled - as_read) * of_rows  # the same value
            loss = tf.reduce_sum(tf.square(self.dense(pooled))) * factor
            loss = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(loss, variables), variables)

    def state(self) -> Any:
        """Return the bits of everything that is trained."""
        rows = self.table.read_rows(np.arange(ROWS))
        return [*self.dense.get_weights(), *rows]


def assert_same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("run", [as_it_is, tf.function])
def test_a_scale_leaves_no_trace(store: Store, run: Any) -> None:
    scaled = Trainer(store, "s")
    others = [
        Trainer(store, "p", keras.optimizers.SGD(0.1)),
        Trainer(store, "f", keras.optimizers.SGD(0.1, loss_scale_factor=1024.0)),
    ]
    for _ in range(5):
        for trainer in (scaled, *others):
            trainer.step(run=run)
    assert float(scaled.optimizer.dynamic_scale) == 2.0**17
    for trainer in others:
        assert_same(scaled.state(), trainer.state())


def test_an_overflow_skips_the_store_with_the_dense_part(store: Store) -> None:
    trainer = Trainer(store)
    trainer.step()
    before, scale = trainer.state(), float(trainer.optimizer.dynamic_scale)
    assert trainer.step(factor=1e38) is None
    assert_same(trainer.state(), before)
    assert float(trainer.optimizer.dynamic_scale) == scale / 2
    assert trainer.table.t == 1
    assert trainer.step().t == {"t": 2}


def test_an_overflow_where_the_scale_would_have_grown_is_one(embedded: Store) -> None:
    trainer = Trainer(embedded)
    for factor in (1.0, 1.0, 1e38, 1e38, 1.0, 1.0, 1.0, 1e38):
        done = trainer.step(factor)
        assert (done is None) == (factor > 1)
    assert trainer.table.t == trainer.optimizer.iterations == 5


def test_an_overflow_skips_the_step_of_a_session(store: Store) -> None:
    trainer = Trainer(store)
    for factor in trainer.embedding.ahead([1.0, 1e38, 1.0], features=lambda _: IDS):
        done = trainer.step(factor)
        assert done.skipped == (factor > 1)
    assert trainer.table.t == 2
    assert trainer.embedding.last_step == 3


def test_an_overflow_of_the_store_alone_lowers_the_scale(store: Store) -> None:
    trainer = Trainer(store)
    rows = trainer.table.lookup(np.arange(ROWS))
    assert trainer.step(of_rows=1e38).skipped
    np.testing.assert_array_equal(trainer.table.lookup(np.arange(ROWS)), rows)
    assert float(trainer.optimizer.dynamic_scale) == 2.0**14
    assert not trainer.step().skipped


def test_a_verdict_is_of_one_step(embedded: Store) -> None:
    trainer = Trainer(embedded)
    with pytest.raises(InvalidArgumentError, match=r"one step of the optimizer .* found 0"):
        trainer.scale.verdict()
    trainer.step()
    for _ in range(2):
        tf.function(trainer._trained)(tf.constant(1.0), tf.constant(1.0))
    with pytest.raises(InvalidArgumentError, match="found 2"):
        trainer.scale.verdict()


@pytest.fixture
def mixed() -> Iterator[None]:
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("is_eager", [False, True])
def test_fit_in_mixed_precision_skips_both(embedded: Store, is_eager: bool) -> None:
    """Keras makes the optimizer that scales; its first scale is too large for this loss."""
    keras.utils.set_random_seed(1)
    options = {"dim": 4, "rows": ROWS, "optimizer": RowWiseAdagrad(0.1)}
    layer = EmbeddingBag(embedded, "t", initializer=Uniform(-1, 1), **options, mode="sum")
    ids = keras.Input((2,), dtype="int64")
    outputs = keras.layers.Dense(1)(layer(ids))
    model = keras.Model(ids, keras.layers.Activation("linear", dtype="float32")(outputs))
    inner = keras.optimizers.SGD(0.001)
    model.compile(inner, "mse", run_eagerly=is_eager)
    assert isinstance(model.optimizer, LossScaleOptimizer)
    assert model.layers[1].compute_dtype == "float16"
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append((embedded.table("t").t, int(inner.iterations)))

    labels = np.full((30, 1), 30.0)
    model.fit(
        np.arange(60).reshape(30, 2) % ROWS,
        labels,
        batch_size=3,
        callbacks=[StoreStep(layer), Seen()],
        verbose=0,
    )
    assert all(of_store == of_dense for of_store, of_dense in seen)
    assert 0 < seen[-1][0] < 10
