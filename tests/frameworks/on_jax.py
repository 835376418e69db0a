"""What tests of `embstore_client.jax` share: three tables, batches of them, and a loss; and what
tests of steps do by callbacks (`test_steps.py` says what each is for)."""

import pickle
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import embstore_client.jax
from embstore import Adam, Sgd
from embstore.handles.store import Store
from embstore_client.jax import Bag, Embeddings, Ids
from tests.frameworks.bags_of_steps import INITIAL, ROWS, bags_of, drawn


def embeddings_of(store: Store) -> Embeddings:
    ids = Ids("c", dim=2, features=["i"], optimizer=Adam(0.1), **INITIAL)
    return Embeddings(store, [*bags_of(embstore_client.jax), ids])


def batch_of(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return features as JAX has them, "x" with weights, and as the twin has them."""
    plain, weights, twins = drawn(rng)
    given: dict[str, Any] = {
        feature: (jnp.asarray(ids, jnp.int32), jnp.asarray(offsets[:-1], jnp.int32))
        for feature, (ids, offsets) in plain.items()
    }
    given["x"] = (plain["x"][0], plain["x"][1][:-1], jnp.asarray(weights))
    given["i"] = rng.zipf(1.3, (2, 5)) % ROWS
    twins["i"] = (given["i"].reshape(-1), None, None)
    return given, twins


def loss_of(outputs: dict[str, Any], features: str = "xyzi") -> Any:
    return jnp.sin(sum(jnp.square(outputs[feature]).sum() for feature in features))


def steps_of(embeddings: Embeddings, batches: list[Any], is_ahead: bool) -> Iterator[Any]:
    """Yield each batch and its step."""
    if is_ahead:
        loop = embeddings.ahead(batches, features=lambda batch: batch[0], lookahead=3)
        yield from ((step.batch, step) for step in loop)
    else:
        yield from ((batch, embeddings.lookup(batch[0])) for batch in batches)


gradients_of = jax.jit(jax.grad(loss_of), static_argnums=1)


def features_of(embeddings: Embeddings) -> list[tuple[str, Any]]:
    return [(name, table) for table in embeddings.tables.values() for name in table.features]


# By callbacks

ANCHOR = jnp.zeros(())


def fixed_batch(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a batch whose arrays are of the same shapes each time, and as the twin has it."""
    ids = {feature: rng.zipf(1.3, (5, 3)) % ROWS for feature in "xyzi"}
    ends = np.arange(6) * 3
    twins: dict[str, Any] = {feature: (of.reshape(-1), ends, None) for feature, of in ids.items()}
    twins["i"] = (ids["i"].reshape(-1), None, None)
    return {feature: jnp.asarray(of, jnp.int32) for feature, of in ids.items()}, twins


def gradients_by(embeddings: Embeddings, features: str = "xyzi") -> Any:
    """Return a compiled function of ids: one loss, its gradients kept by callbacks."""

    @jax.jit
    def train(ids: Any, scale: Any) -> Any:
        def loss(parameters: Any) -> Any:
            activations = embeddings.callback(ids, parameters["anchor"])
            return parameters["scale"] * loss_of(activations, features), activations

        parameters = {"anchor": ANCHOR, "scale": scale}
        (_, activations), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        return activations, gradients

    return train


def wanted_of(activations: Any, features: str = "xyzi", scale: float = 1.0) -> dict[str, Any]:
    """Return the gradients of the same loss, of activations that were looked up."""
    compiled = jax.jit(jax.grad(lambda of: scale * loss_of(of, features)))
    return dict.fromkeys("xyzi") | compiled({name: activations[name] for name in features})


class Adapter:
    features = "xyzi"
    collection = staticmethod(embeddings_of)
    batch_of = staticmethod(fixed_batch)
    ids = staticmethod(jnp.asarray)

    def __init__(self) -> None:
        self._trains: dict[Any, Any] = {}

    def one_table(self, store: Store, name: str = "t", **options: Any) -> Embeddings:
        usual = {"dim": 4, "rows": ROWS, "optimizer": Sgd(0.1)}
        return Embeddings(store, [Bag(name, features=["ids"], **(usual | options))])

    def call(self, embeddings: Embeddings, given: Any, training: bool = True) -> Any:
        named = given if isinstance(given, dict) else {"ids": given}
        if training:
            return jax.vjp(lambda anchor: embeddings.callback(named, anchor), ANCHOR)[0]
        return embeddings.callback(named, ANCHOR)

    def back(self, embeddings: Embeddings, batches: list[Any], features: str = "xyzi") -> list[Any]:
        train = self._trains.setdefault(features, gradients_by(embeddings, features))
        activations = [train(given, 1.0)[0] for given in batches]
        assert train._cache_size() == 1
        return [wanted_of(of, features) for of in activations]

    def back_of(self, embeddings: Embeddings, ids: Any, factor: float = 1.0) -> None:
        def loss(anchor: Any) -> Any:
            return (jnp.square(embeddings.callback({"ids": ids}, anchor)["ids"]) * factor).sum()

        jax.jit(jax.grad(loss))(ANCHOR)

    def ahead(self, embeddings: Embeddings, batches: Any, features: Any = None, **how: Any) -> Any:
        named = features or (lambda ids: {"ids": ids})
        return (step.batch for step in embeddings.ahead(batches, features=named, **how))

    def forget(self, embeddings: Embeddings) -> None:
        embeddings.zero_grad()

    def carried(self, embeddings: Embeddings) -> tuple[Any, bytes]:
        data = pickle.dumps(embeddings)
        return pickle.loads(data), data
