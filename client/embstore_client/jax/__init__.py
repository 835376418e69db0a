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
    trees        pytrees in a file, kept with a checkpoint of the store
    embeddings   tables, loops, and all of these

**Three forms.** They differ in the place where rows are pooled, and so in the store's gradients.

    activations   pooled on the host      gradients of bags    step.update
    rows, places  pooled by `pool`        gradients of rows    step.update_unique
    callback      pooled on the host      gradients of bags    embeddings.step

**Exactness.** A table has the same digest as in a program in NumPy that is given the same
gradients, as they are passed to `update`, `update_unique` or a callback. By bags, the gradient of a
bag becomes the gradients of its ids as contract.md, rule 8 says, and the gradients of an id are
added by rule 2; so are the rows of a bag on the way there. XLA computes the dense part alone. By
rows, XLA sums forwards and backwards: on a GPU perhaps in another order each time.

Rejected: rule 2 within a compiled function, whose products and sums XLA may contract, and whose
denormals it flushes; and a gradient of activations that `pool` would hide in the gradient of rows.
"""

from embstore_client.frameworks.tables import Bag, Ids
from embstore_client.jax.embeddings import Embeddings, Loaded
from embstore_client.jax.padding import Places, pool
from embstore_client.jax.steps import Step

__all__ = ["Bag", "Embeddings", "Ids", "Loaded", "Places", "Step", "pool"]
