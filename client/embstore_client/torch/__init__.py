"""Embedding tables of a store as PyTorch modules. Importing this package loads torch.

    ebc = EmbeddingBagCollection(
        store, [Bag("ads", dim=64, rows=10**7, features=["c1"], optimizer=RowWiseAdagrad(0.05))]
    )
    for x, f, y in ebc.ahead(loader, features=lambda batch: batch[1], name="job", lookahead=16):
        loss = bce(dense(x, ebc(f)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ebc.step()

    features     ids in the shapes of Torch, split into keys and bags
    pooling      from rows to activations; backward passes keep the gradients
    gpu          a GPU that Torch and an embedded store share: no data leaves it
    announced    ids on that GPU, read by the loader's thread
    clipping     gradients of the dense part and of rows, clipped together
    scaling      the verdict of a GradScaler, and how the scaler is notified of an overflow of rows
    ranks        the ranks of torch.distributed
    saving       a checkpoint of the store, and a file of Torch, under one label
    forwards     rows and activations of one forward, by these modules
    embedding    the base class of all modules
    modules      the four modules
    pretrained   modules whose tables begin with given rows
    optimizer    tables as an optimizer of Torch, for schedules of their rates

`frameworks.backed` describes a step, and how exact it is. Torch computes the forward's sums on the
device of the ids, with Torch's guarantees.

Two alternatives were rejected. `lookup_pooled` sends fewer bytes if bags are long, but it computes
no gradients of weights, cannot use rows that were read ahead, and takes only one table per call.
Torch's autograd through the pooling computes gradients of means as products with a reciprocal, and
sums by key in no fixed order.
"""

from embstore_client.frameworks.tables import Bag, Ids
from embstore_client.torch.clipping import clip_grad_norm_
from embstore_client.torch.modules import (
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingCollection,
)
from embstore_client.torch.optimizer import StoreOptimizer

__all__ = [
    "Bag",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingCollection",
    "Ids",
    "StoreOptimizer",
    "clip_grad_norm_",
]
