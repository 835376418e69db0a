"""Adam for the dense part (Kingma and Ba, arXiv:1412.6980), which the trainer owns itself.

The store's Adam is apart from this one: it keeps state by row, and its bits are promised. Here
arrays are few and whole, and nothing is promised.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]


class Adam:
    """First and second moments beside each of `parameters`, which `step` changes in place."""

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
        rate = self._learning_rate * (1 - b2**self._t) ** 0.5 / (1 - b1**self._t)
        for parameter, (m, v), g in zip(self._parameters, self._moments, gradients, strict=True):
            m += (1 - b1) * (g - m)
            v += (1 - b2) * (g * g - v)
            parameter -= rate * m / (np.sqrt(v) + self._epsilon)
