"""What tests of `embstore_client.jax` share: three tables, batches of them, and a loss."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embstore import Adam, RowWiseAdagrad, Uniform
from embstore.handles.store import Store
from embstore_client.jax import Bag, Embeddings, Ids
from tests.frameworks.numpy_twin import bags

ROWS = 40


def embeddings_of(store: Store) -> Embeddings:
    initial = {"rows": ROWS, "initializer": Uniform(-1, 1)}
    return Embeddings(
        store,
        [
            Bag("a", dim=4, features=["x", "y"], optimizer=Adam(0.1), **initial),
            Bag("b", dim=3, features=["z"], mode="mean", optimizer=RowWiseAdagrad(0.1), **initial),
            Ids("c", dim=2, features=["i"], optimizer=Adam(0.1), **initial),
        ],
    )


def batch_of(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return features as JAX has them, "x" with weights, and as the twin has them."""
    plain = {feature: bags(rng, ROWS) for feature in "xyz"}
    weights = rng.standard_normal(len(plain["x"][0]), np.float32)
    given: dict[str, Any] = {
        feature: (jnp.asarray(ids, jnp.int32), jnp.asarray(offsets[:-1], jnp.int32))
        for feature, (ids, offsets) in plain.items()
    }
    given["x"] = (plain["x"][0], plain["x"][1][:-1], jnp.asarray(weights))
    given["i"] = rng.zipf(1.3, (2, 5)) % ROWS
    twins = {feature: (*of, None) for feature, of in plain.items()}
    twins["x"] = (*plain["x"], weights)
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
