"""The interface of a framework for the training loop.

In each step, in this order: `lookup` and `update` of the step come from the feed that `opened`
gives, and `learn` is between them. Therefore a learner whose adapter keeps the result of a lookup,
and its gradients, may use those in place of the arrays.
"""

from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore_tools.demo.steps import Batch
from embstore_tools.demo.ways import Feed, Way, WayInput

DENSE_LEARNING_RATE = 2e-3
"""Learning rate of Adam over the dense part."""


class Learner(Protocol):
    """A model of dense part and embeddings. One thread."""

    def opened(self, way: Way, material: WayInput) -> AbstractContextManager[Feed]:
        """Feed a loop inside the with block."""

    def learn(self, batch: Batch, rows: dict[str, Rows]) -> tuple[float, dict[str, Rows]]:
        """Train the dense part on a batch, whose step has looked up `rows`.

        Returns
        -------
        The loss, and the gradients of the rows, (n, dim) by table, which the step sends.
        """

    def scores(self, integers: NDArray[np.int64], rows: dict[str, Rows]) -> NDArray[np.float32]:
        """Return the logits (n,) of samples, of which `rows` are the embeddings."""
