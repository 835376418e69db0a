"""DLRM: embeddings and dense features meet in dot products (Naumov et al., arXiv:1906.00091).

    integers (n, 13) -> log(1 + x) -> bottom MLP -> one more vector (n, dim)
    the 27 vectors of a sample: all 351 dot products between two of them
    [bottom output, dot products] -> top MLP -> one logit

The dot products are the strict lower triangle of Z Z^T, Z (27, dim) being a sample's vectors; if D
is the gradient of that matrix, zero elsewhere, Z's gradient is (D + D^T) Z.

The model holds the dense part alone. Embeddings come in and their gradients go out: where they
live, and which optimizer applies them, is the store's part. Nothing here reaches a row but by
those gradients, so BLAS and libm are free to differ between machines.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore_server.demo.mlp import Floats, Mlp


@dataclass(frozen=True)
class Gradients:
    """Gradients of one batch's mean loss, beside the loss itself."""

    loss: float
    embeddings: Floats
    """(n, columns, dim), C-contiguous."""
    dense: list[Floats]
    """One for each of `Dlrm.parameters`."""


@dataclass(frozen=True)
class _Pass:
    """What a forward pass keeps for the way back."""

    bottom: list[Floats]
    vectors: Floats
    top: list[Floats]


def dense_features(integers: NDArray[np.int64], dtype: Any = np.float32) -> Floats:
    """Return log(1 + x), with 0 for negative x: counts spread over many orders of magnitude."""
    return np.log1p(np.maximum(integers, 0)).astype(dtype)


class Dlrm:
    """The dense part for `columns` embeddings of `dim` each. `parameters` are changed in place."""

    def __init__(
        self,
        *,
        integers: int,
        columns: int,
        dim: int,
        hidden: tuple[int, ...] = (64,),
        top_hidden: tuple[int, ...] = (128, 64),
        seed: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        rng = np.random.default_rng(seed)
        self._pairs = np.tril_indices(columns + 1, -1)
        self._dim = dim
        inputs = dim + len(self._pairs[0])
        self._bottom = Mlp((integers, *hidden, dim), rng, linear_end=False, dtype=dtype)
        self._top = Mlp((inputs, *top_hidden, 1), rng, linear_end=True, dtype=dtype)
        self.parameters = [*self._bottom.parameters, *self._top.parameters]

    def scores(self, features: Floats, embeddings: Floats) -> Floats:
        """Return the logits (n,) of `features` (n, integers), `embeddings` (n, columns, dim)."""
        scores: Floats = self._forward(features, embeddings).top[-1][:, 0]
        return scores

    def gradients(self, features: Floats, embeddings: Floats, labels: Floats) -> Gradients:
        """Return the mean logistic loss of a batch and its gradients; changes nothing."""
        done = self._forward(features, embeddings)
        logits = done.top[-1][:, 0]
        loss = np.mean(np.logaddexp(0, logits) - labels * logits)
        d_logits = (_sigmoid(logits) - labels) / len(labels)
        d_top_input, d_top = self._top.backward(done.top, d_logits[:, None])
        d_vectors = self._interaction_gradient(done.vectors, d_top_input[:, self._dim :])
        d_bottom_output = d_vectors[:, 0] + d_top_input[:, : self._dim]
        _, d_bottom = self._bottom.backward(done.bottom, d_bottom_output)
        embeddings_gradient = np.ascontiguousarray(d_vectors[:, 1:])
        return Gradients(float(loss), embeddings_gradient, [*d_bottom, *d_top])

    def _forward(self, features: Floats, embeddings: Floats) -> _Pass:
        bottom = self._bottom.forward(features)
        vectors = np.concatenate([bottom[-1][:, None], embeddings], axis=1)
        products = vectors @ vectors.transpose(0, 2, 1)
        inputs = np.concatenate([bottom[-1], products[:, *self._pairs]], axis=1)
        return _Pass(bottom, vectors, self._top.forward(inputs))

    def _interaction_gradient(self, vectors: Floats, d_products: Floats) -> Floats:
        count = vectors.shape[1]
        lower = np.zeros((len(vectors), count, count), vectors.dtype)
        lower[:, *self._pairs] = d_products
        gradient: Floats = (lower + lower.transpose(0, 2, 1)) @ vectors
        return gradient


def _sigmoid(x: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)) without overflow, in the dtype of x."""
    result: Floats = 0.5 * (1 + np.tanh(0.5 * x))
    return result
