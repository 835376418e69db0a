"""Embedding tables of a store for programs in JAX. Importing this package loads jax.

    embeddings = Embeddings(
        store, [Bag("ads", dim=64, rows=10**7, features=["c1"], optimizer=RowWiseAdagrad(0.05))]
    )

    @jax.jit
    def train(dense, activations, x, labels):
        return jax.value_and_grad(loss, argnums=(0, 1))(dense, activations, x, labels)

    for step in embeddings.ahead(batches, features=lambda batch: batch.ids, name="job"):
        loss, (of_dense, of_rows) = train(dense, step.activations, step.batch.x, step.batch.labels)
        step.update(of_rows)

    steps        one batch: activations, rows, and the update by their gradients
    padding      distinct rows in arrays of few sizes, pooled within a compiled function
    callbacks    lookups from within a compiled function
    trees        pytrees in a file, saved with a checkpoint of the store
    embeddings   the class `Embeddings`: tables and loops

**Three forms** of a step differ in where rows are pooled, and so in the gradients that the store
gets.

    activations   pooled on the host      gradients of bags    step.update
    rows, places  pooled by `pool`        gradients of rows    step.update_unique
    callback      pooled on the host      gradients of bags    embeddings.step

**Exactness.** A table has the same digest as if a NumPy program had passed the same gradients to
the store. With gradients of bags, the gradient of a bag becomes the gradients of its ids by rule 8
of contract.md, and the gradients of an id are added by rule 2. The rows of a bag are added by rule
2 in the forward, too. XLA computes only the dense part. With gradients of rows, XLA computes the
sums in forward and backward pass; on a GPU their order may change from run to run.

Two alternatives were rejected. One was to apply rule 2 within a compiled function. This would not
be exact, because XLA may contract products and sums, and flushes denormals. The other was that
`pool` returns, as the gradient of rows, an array in which the gradient of activations is hidden.
"""

from embstore_client.frameworks.tables import Bag, Ids
from embstore_client.jax.embeddings import Embeddings, Loaded
from embstore_client.jax.padding import Places, pool
from embstore_client.jax.steps import Step

__all__ = ["Bag", "Embeddings", "Ids", "Loaded", "Places", "Step", "pool"]
