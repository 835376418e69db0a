"""A multi-layer perceptron with ReLU, forward and backward, in plain NumPy.

    a[0] = x    z[k] = a[k] W[k] + b[k]    a[k+1] = max(z[k], 0), but the last layer may be linear

Forward keeps its activations, and backward walks them in reverse. A ReLU's derivative is read off
its own output (above 0 or not), so z need not be kept.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
"""Of the dtype that the network was made with: float32 to train, float64 to test gradients."""


class Mlp:
    """Layers of the given widths. `parameters` are W and b of each layer in turn, in place."""

    def __init__(
        self, widths: tuple[int, ...], rng: np.random.Generator, *, linear_end: bool, dtype: Any
    ) -> None:
        self.parameters: list[Floats] = []
        for inputs, outputs in pairwise(widths):
            # He's scale for ReLU: it keeps the variance of activations from layer to layer.
            weights = rng.normal(0.0, np.sqrt(2.0 / inputs), (inputs, outputs))
            self.parameters += [weights.astype(dtype), np.zeros(outputs, dtype)]
        self._linear_end = linear_end

    def forward(self, x: Floats) -> list[Floats]:
        """Return the activations of `x` (n, inputs), `x` first and the output last."""
        activations = [x]
        last = len(self.parameters) - 2
        for k in range(0, len(self.parameters), 2):
            weights, bias = self.parameters[k : k + 2]
            z = activations[-1] @ weights + bias
            activations.append(z if k == last and self._linear_end else np.maximum(z, 0, out=z))
        return activations

    def backward(self, activations: list[Floats], gradient: Floats) -> tuple[Floats, list[Floats]]:
        """Return the gradients of the input and of `parameters`, given that of the output."""
        gradients: list[Floats] = []
        for k in reversed(range(len(self.parameters) // 2)):
            linear = self._linear_end and 2 * k == len(self.parameters) - 2
            if not linear:
                gradient = gradient * (activations[k + 1] > 0)
            gradients = [activations[k].T @ gradient, gradient.sum(axis=0), *gradients]
            gradient = gradient @ self.parameters[2 * k].T
        return gradient, gradients
