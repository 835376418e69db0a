"""DLRM: embeddings and dense features interact in dot products (Naumov et al., arXiv:1906.00091).

    integers (n, 13) -> log(1 + x) -> bottom MLP -> one more vector (n, dim)
    the 27 vectors of a sample: all 351 dot products between two of them
    [bottom output, dot products] -> top MLP -> one logit

The dot products are the strict lower triangle of Z Z^T, where Z (27, dim) contains a sample's
vectors. If D contains the gradients of the dot products in that triangle and zeros elsewhere, the
gradient of Z is (D + D^T) Z.

The model is only the dense part. Embeddings are its input, and their gradients are its output. The
store decides where embeddings are stored, and which optimizer applies the gradients. This module
affects rows only by the gradients of embeddings, so its results may depend on the machine's BLAS
and libm.

An MLP has the layers a[0] = x, z[k] = a[k] W[k] + b[k], a[k+1] = max(z[k], 0); the last layer may
be linear. The forward pass keeps the activations a[k], and the backward pass visits them in
reverse. The derivative of a ReLU follows from its output (above 0 or not), so z need not be kept.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
"""Arrays of the network's dtype: float32 for training, float64 for tests of gradients."""


@dataclass(frozen=True)
class Gradients:
    """The mean loss of one batch, and its gradients."""

    loss: float
    embeddings: Floats
    """(n, columns, dim), C-contiguous."""
    dense: list[Floats]
    """One gradient for each of `Dlrm.parameters`."""


def dense_features(integers: NDArray[np.int64], dtype: Any = np.float32) -> Floats:
    """Return log(1 + x), with 0 for negative x: counts span many orders of magnitude."""
    return np.log1p(np.maximum(integers, 0)).astype(dtype)


class Mlp:
    """Layers of the given widths. `parameters` are W and b of each layer in order; they are not
    copies."""

    def __init__(
        self, widths: tuple[int, ...], rng: np.random.Generator, *, linear_end: bool, dtype: Any
    ) -> None:
        self.parameters: list[Floats] = []
        for inputs, outputs in pairwise(widths):
            # He initialization for ReLU: it keeps the variance of activations constant across
            # layers.
            weights = rng.normal(0.0, np.sqrt(2.0 / inputs), (inputs, outputs))
            self.parameters += [weights.astype(dtype), np.zeros(outputs, dtype)]
        self.linear_end = linear_end

    def forward(self, x: Floats) -> list[Floats]:
        """Return the activations of `x` (n, inputs): `x` first, the output last."""
        activations = [x]
        last = len(self.parameters) - 2
        for k in range(0, len(self.parameters), 2):
            weights, bias = self.parameters[k : k + 2]
            z = activations[-1] @ weights + bias
            activations.append(z if k == last and self.linear_end else np.maximum(z, 0, out=z))
        return activations

    def backward(self, activations: list[Floats], gradient: Floats) -> tuple[Floats, list[Floats]]:
        """Return the gradients of the input and of `parameters`, given the output's gradient."""
        gradients: list[Floats] = []
        for k in reversed(range(len(self.parameters) // 2)):
            linear = self.linear_end and 2 * k == len(self.parameters) - 2
            if not linear:
                gradient = gradient * (activations[k + 1] > 0)
            gradients = [activations[k].T @ gradient, gradient.sum(axis=0), *gradients]
            gradient = gradient @ self.parameters[2 * k].T
        return gradient, gradients


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
        self.bottom = Mlp((integers, *hidden, dim), rng, linear_end=False, dtype=dtype)
        self.top = Mlp((inputs, *top_hidden, 1), rng, linear_end=True, dtype=dtype)
        self.parameters = [*self.bottom.parameters, *self.top.parameters]

    def scores(self, features: Floats, embeddings: Floats) -> Floats:
        """Return the logits (n,) of `features` (n, integers) and `embeddings` (n, columns, dim)."""
        _, _, top = self._forward(features, embeddings)
        scores: Floats = top[-1][:, 0]
        return scores

    def gradients(self, features: Floats, embeddings: Floats, labels: Floats) -> Gradients:
        """Return the mean logistic loss of a batch and its gradients, without changing the
        model."""
        bottom, vectors, top = self._forward(features, embeddings)
        logits = top[-1][:, 0]
        loss = np.mean(np.logaddexp(0, logits) - labels * logits)
        d_logits = (_sigmoid(logits) - labels) / len(labels)
        d_top_input, d_top = self.top.backward(top, d_logits[:, None])
        d_vectors = self._interaction_gradient(vectors, d_top_input[:, self._dim :])
        d_bottom_output = d_vectors[:, 0] + d_top_input[:, : self._dim]
        _, d_bottom = self.bottom.backward(bottom, d_bottom_output)
        embeddings_gradient = np.ascontiguousarray(d_vectors[:, 1:])
        return Gradients(float(loss), embeddings_gradient, [*d_bottom, *d_top])

    def _forward(
        self, features: Floats, embeddings: Floats
    ) -> tuple[list[Floats], Floats, list[Floats]]:
        """Return the bottom MLP's activations, all vectors, and the top MLP's activations."""
        bottom = self.bottom.forward(features)
        vectors = np.concatenate([bottom[-1][:, None], embeddings], axis=1)
        products = vectors @ vectors.transpose(0, 2, 1)
        inputs = np.concatenate([bottom[-1], products[:, *self._pairs]], axis=1)
        return bottom, vectors, self.top.forward(inputs)

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


class Adam:
    """Adam for the dense part, in the trainer (Kingma and Ba, arXiv:1412.6980).

    Each array of `parameters`, which `step` changes in place, has a first and a second moment. The
    store's Adam is a separate implementation, which keeps state by row, and guarantees the bits of
    its results. In this class the arrays are few and are updated as a whole, and no bits are
    guaranteed.
    """

    def __init__(
        self,
        parameters: list[Floats],
        learning_rate: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self._parameters = parameters
        self._learning_rate = learning_rate
        self._betas = betas
        self._epsilon = epsilon
        self._moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
        self._t = 0

    def step(self, gradients: list[Floats]) -> None:
        """Apply one gradient for each parameter."""
        self._t += 1
        b1, b2 = self._betas
        correction = (1 - b2**self._t) ** 0.5
        rate, epsilon = self._learning_rate * correction / (1 - b1**self._t), self._epsilon
        for parameter, (m, v), g in zip(self._parameters, self._moments, gradients, strict=True):
            m += (1 - b1) * (g - m)
            v += (1 - b2) * (g * g - v)
            parameter -= rate * m / (np.sqrt(v) + epsilon * correction)


def area_under_curve(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float | None:
    """Return the AUC of `scores` (n,) for `labels` (n,), 0 or 1; None if one of the two labels is
    absent.

    The AUC is the probability that a positive sample scores above a negative sample, where ties
    count half (the Mann-Whitney statistic). If R is the sum of the ranks of the positive samples
    (ties share their mean rank),

        AUC = (R - positives * (positives + 1) / 2) / (positives * negatives)

    This costs one sort; counting pairs would cost positives * negatives.
    """
    positives = int(np.count_nonzero(labels))
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(mean_ranks[place][labels > 0].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
