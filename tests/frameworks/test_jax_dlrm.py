"""A DLRM on the demo's data: the losses of the same model with arrays of JAX in memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402

from embstore import Adagrad, Adam, RowWiseAdagrad, Sgd  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.jax import Bag, Embeddings, pool  # noqa: E402
from embstore_tools.demo import criteo, synthetic  # noqa: E402
from embstore_tools.demo.columns import keys_by_table  # noqa: E402
from embstore_tools.demo.dlrm import dense_features  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin  # noqa: E402

SAMPLES, BATCH_SIZE, DIM, COLUMNS = 2000, 250, 8, 26
ROWS = tuple([60] * COLUMNS)
RATE, DENSE_RATE, EPSILON = 0.05, 0.01, 1e-8
PAIRS = np.tril_indices(COLUMNS + 1, -1)


class Batch(NamedTuple):
    """Features (n, 13), ids by table (n,), and labels (n,)."""

    x: Any
    ids: dict[str, Any]
    labels: Any


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    path = tmp_path_factory.mktemp("criteo") / "train.txt"
    synthetic.write(path, samples=SAMPLES, rows=ROWS, advance=lambda count: None)
    return [
        Batch(
            dense_features(block.integers),
            keys_by_table(block.categories, ROWS),
            np.asarray(block.labels, np.float32),
        )
        for block in criteo.read(path, limit=SAMPLES, block=BATCH_SIZE)
    ]


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


# Optimizers of tables in memory: (table, state, gradient, t) to table and state. A row without a
# gradient keeps its state.


def sgd(w: Any, state: Any, g: Any, t: int) -> Any:
    return w - RATE * g, state


def adagrad(w: Any, s: Any, g: Any, t: int) -> Any:
    s = s + g * g
    return w - RATE * g / (jnp.sqrt(s) + EPSILON), s


def rowwise_adagrad(w: Any, s: Any, g: Any, t: int) -> Any:
    s = s + jnp.mean(g * g, axis=1, keepdims=True)
    return w - RATE * g / (jnp.sqrt(s) + EPSILON), s


def adam(w: Any, mv: Any, g: Any, t: int) -> Any:
    (m, v), is_used = mv, (g != 0).any(axis=1, keepdims=True)
    m = m + is_used * 0.1 * (g - m)
    v = v + is_used * 0.001 * (g * g - v)
    root = jnp.sqrt(v / (1 - 0.999**t))
    return w - is_used * RATE / (1 - 0.9**t) * m / (root + EPSILON), (m, v)


OPTIMIZERS: dict[str, Any] = {
    "sgd": (Sgd(RATE), sgd, lambda w: ()),
    "adagrad": (Adagrad(RATE, EPSILON), adagrad, jnp.zeros_like),
    "rowwise_adagrad": (
        RowWiseAdagrad(RATE, EPSILON),
        rowwise_adagrad,
        lambda w: jnp.zeros((len(w), 1)),
    ),
    "adam": (Adam(RATE), adam, lambda w: (jnp.zeros_like(w), jnp.zeros_like(w))),
}


def embeddings_of(store: Store, batches: list[Batch], optimizer: Any) -> Embeddings:
    names = batches[0].ids
    return Embeddings(
        store,
        [Bag(n, dim=DIM, rows=ROWS[0], features=[n], optimizer=optimizer) for n in names],
    )


class InMemory:
    """The same tables as arrays of JAX, beginning with the same rows."""

    def __init__(self, embeddings: Embeddings, kind: str) -> None:
        _, self._apply, state = OPTIMIZERS[kind]
        self.tables = {
            name: jnp.asarray(embeddings.store.table(name).lookup(np.arange(ROWS[0])))
            for name in embeddings.tables
        }
        self._states = {name: state(table) for name, table in self.tables.items()}

    def losses(self, batches: list[Batch]) -> list[float]:
        dense, losses = dense_of(), []
        for t, batch in enumerate(batches, 1):
            loss, (of_dense, of_tables) = of_tables_in_memory(dense, self.tables, batch)
            dense = stepped(dense, of_dense)
            for name, gradient in of_tables.items():
                self.tables[name], self._states[name] = self._apply(
                    self.tables[name], self._states[name], gradient, t
                )
            losses.append(float(loss))
        return losses


def by_activations(embeddings: Embeddings, see: Callable[[Any, Any], None] | None = None) -> Any:
    def run(dense: Any, step: Any, batch: Batch) -> Any:
        loss, (of_dense, gradients) = of_activations(dense, step.activations, batch)
        if see is not None:
            see(batch, gradients)
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


def check(
    embeddings: Embeddings, batches: list[Batch], kind: str, form: str, is_ahead: bool
) -> None:
    """Compare losses and rows with those of tables in memory."""
    plain = InMemory(embeddings, kind)
    found = trained(embeddings, batches, FORMS[form], is_ahead)
    wanted = plain.losses(batches)
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
    assert np.mean(wanted[-3:]) < wanted[0]
    for name, table in plain.tables.items():
        rows = embeddings.store.table(name).lookup(np.arange(ROWS[0]))
        np.testing.assert_allclose(rows, table, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_losses_are_those_of_tables_in_memory(
    embedded: Store, batches: list[Batch], kind: str, is_ahead: bool
) -> None:
    embeddings = embeddings_of(embedded, batches, OPTIMIZERS[kind][0])
    check(embeddings, batches, kind, "activations", is_ahead)


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_trains_through_each_store(
    store: Store, batches: list[Batch], form: str, is_ahead: bool
) -> None:
    embeddings = embeddings_of(store, batches, RowWiseAdagrad(RATE, EPSILON))
    check(embeddings, batches, "rowwise_adagrad", form, is_ahead)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_digests_are_those_of_numpy_with_the_same_gradients(
    store: Store, batches: list[Batch], is_ahead: bool
) -> None:
    embeddings = embeddings_of(store, batches, RowWiseAdagrad(RATE))
    twin = Twin(embeddings)

    def see(batch: Batch, gradients: Any) -> None:
        given = {name: (ids, None, None) for name, ids in batch.ids.items()}
        twin.step([Forward(given, gradients)])

    trained(embeddings, batches, lambda of: by_activations(of, see), is_ahead)
    twin.assert_same()
