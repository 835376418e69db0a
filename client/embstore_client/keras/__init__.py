"""Embedding tables of a store as layers of Keras 3 on TensorFlow. Importing this package loads
Keras and TensorFlow.

    embeddings = EmbeddingBagCollection(
        store, [Bag("ads", dim=64, rows=10**7, features=["c1"], optimizer=RowWiseAdagrad(0.05))]
    )
    model = keras.Model(inputs, dense(embeddings(inputs)))
    model.compile("adam", "binary_crossentropy")
    batches = embeddings.ahead_dataset(dataset, features=lambda batch: batch[0], lookahead=16)
    model.fit(batches, callbacks=[StoreStep(embeddings)])

    features    ids in the shapes of TensorFlow, split into ids and bags
    forward     a call: from rows to activations, and their gradients in the backward pass
    layer       the base class of all layers
    layers      the four layers
    stepping    a step for each batch of `fit`
    datasets    batches for `fit`, read on demand
    clipping    gradients of variables and of rows, clipped together
    scaling     the verdict of a LossScaleOptimizer
    saving      a checkpoint of the store, and a file of variables, under one label

`frameworks.backed` describes a step, and how exact it is. Lookups and the work of a backward pass
are Python functions in TensorFlow's graph, so compiled steps use the same functions.

**How a backward pass reaches a layer.** TensorFlow's backward pass visits only values that depend
on a watched variable. Each layer has one scalar that every tape watches (`forward.Watched`). This
scalar is not a Keras variable, so it is not trained, counted or saved.

Activations are pooled by rule 8 of contract.md, so they are bitwise equal to the results of
`lookup_pooled`.

Two alternatives were rejected. If gradients were tf.IndexedSlices of a variable that stands for a
table, Keras's optimizers would apply them, and sum them in another order. A `train_step` for models
to inherit would exclude functional models, which cannot inherit one.
"""

from embstore_client.frameworks.tables import Bag, Ids
from embstore_client.keras.clipping import clip_by_global_norm
from embstore_client.keras.layers import (
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingCollection,
)
from embstore_client.keras.scaling import LossScale
from embstore_client.keras.stepping import StoreStep

__all__ = [
    "Bag",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingCollection",
    "Ids",
    "LossScale",
    "StoreStep",
    "clip_by_global_norm",
]
