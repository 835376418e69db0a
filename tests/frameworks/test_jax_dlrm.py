"""A DLRM on the demo's data: the losses of the same model with arrays of JAX in memory."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402

from embstore import RowWiseAdagrad  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.jax import Bag, Embeddings, pool  # noqa: E402
from tests.frameworks.dlrm import (  # noqa: E402
    COLUMNS,
    DIM,
    EPSILON,
    RATE,
    ROWS,
    Batch,
    assert_as_in_memory,
    batches_in,
    collection_of,
    rows_of,
)

DENSE_RATE = 0.01
PAIRS = np.tril_indices(COLUMNS + 1, -1)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    return batches_in(tmp_path_factory.mktemp("criteo"))


def dense_of() -> Any:
    """Return the dense part: embeddings and dense features meet in dot products."""
    keys = jax.random.split(jax.random.key(4), 3)
    widths = ((13, DIM), (DIM + len(PAIRS[0]), 16), (16, 1))
    return [
        {"w": jax.random.normal(key, of) / np.sqrt(of[0]), "b": jnp.zeros(of[1])}
        for key, of in zip(keys, widths, strict=True)
    ]


def loss_of(dense: Any, activations: dict[str, Any], batch: Batch) -> Any:
    first, second, last = dense
    bottom = jax.nn.relu(batch.x @ first["w"] + first["b"])
    vectors = jnp.stack([bottom, *activations.values()], axis=1)
    products = (vectors @ vectors.mT)[:, *PAIRS]
    top = jax.nn.relu(jnp.concatenate([bottom, products], axis=1) @ second["w"] + second["b"])
    logits = (top @ last["w"] + last["b"])[:, 0]
    return jnp.mean(jnp.logaddexp(0, logits) - batch.labels * logits)


# Compiled once for all tests: loss and gradients.


@jax.jit
def of_tables_in_memory(dense: Any, tables: Any, batch: Batch) -> Any:
    def loss(dense: Any, tables: Any) -> Any:
        found = {name: table[batch.ids[name]] for name, table in tables.items()}
        return loss_of(dense, found, batch)

    return jax.value_and_grad(loss, argnums=(0, 1))(dense, tables)


of_activations = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1)))


@jax.jit
def of_rows(dense: Any, rows: Any, places: Any, batch: Batch) -> Any:
    def loss(dense: Any, rows: Any) -> Any:
        return loss_of(dense, pool(rows, places), batch)

    return jax.value_and_grad(loss, argnums=(0, 1))(dense, rows)


def stepped(dense: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda part, of: part - DENSE_RATE * of, dense, gradients)


def in_memory(rows: dict[str, Any], batches: list[Batch]) -> tuple[list[float], dict[str, Any]]:
    """Train tables of JAX that begin with these rows by row-wise Adagrad; a row without a gradient
    has no square to add. Return losses and tables."""
    tables = {name: jnp.asarray(of) for name, of in rows.items()}
    sums, dense, losses = dict.fromkeys(tables, jnp.zeros((ROWS, 1))), dense_of(), []
    for batch in batches:
        loss, (of_dense, of_tables) = of_tables_in_memory(dense, tables, batch)
        dense = stepped(dense, of_dense)
        for name, g in of_tables.items():
            sums[name] += jnp.mean(g * g, axis=1, keepdims=True)
            tables[name] -= RATE * g / (jnp.sqrt(sums[name]) + EPSILON)
        losses.append(float(loss))
    return losses, tables


def by_activations(embeddings: Embeddings) -> Any:
    def run(dense: Any, step: Any, batch: Batch) -> Any:
        loss, (of_dense, gradients) = of_activations(dense, step.activations, batch)
        step.update(gradients)
        return loss, of_dense

    return run


def by_rows(embeddings: Embeddings) -> Any:
    def run(dense: Any, step: Any, batch: Batch) -> Any:
        loss, (of_dense, gradients) = of_rows(dense, step.rows, step.places, batch)
        step.update_unique(gradients)
        return loss, of_dense

    return run


def by_callbacks(embeddings: Embeddings) -> Any:
    @jax.jit
    def train(dense: Any, anchor: Any, batch: Batch) -> Any:
        def loss(dense: Any, anchor: Any) -> Any:
            return loss_of(dense, embeddings.callback(batch.ids, anchor), batch)

        loss_now, (of_dense, _) = jax.value_and_grad(loss, argnums=(0, 1))(dense, anchor)
        return loss_now, of_dense

    def run(dense: Any, step: Any, batch: Batch) -> Any:
        done = train(dense, jnp.zeros(()), batch)
        embeddings.step()
        return done

    return run


FORMS: dict[str, Any] = {"activations": by_activations, "rows": by_rows, "callback": by_callbacks}


def trained(embeddings: Embeddings, batches: list[Batch], form: Any, is_ahead: bool) -> list[float]:
    """Train a new dense part over embeddings; return the losses."""
    dense, losses, run = dense_of(), [], form(embeddings)
    if is_ahead:
        loop = embeddings.ahead(batches, features=lambda batch: batch.ids)
        steps = ((step, step.batch) for step in loop)
    else:
        steps = ((embeddings.lookup(batch.ids), batch) for batch in batches)
    for step, batch in steps:
        loss, gradients = run(dense, step, batch)
        dense = stepped(dense, gradients)
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_losses_are_those_of_tables_in_memory(
    store: Store, batches: list[Batch], form: str, is_ahead: bool
) -> None:
    names = batches[0].ids
    embeddings = collection_of(Embeddings, Bag, store, names, RowWiseAdagrad(RATE, EPSILON))
    rows = {name: rows_of(store, name) for name in names}
    found = trained(embeddings, batches, FORMS[form], is_ahead)
    assert_as_in_memory(store, found, *in_memory(rows, batches))
