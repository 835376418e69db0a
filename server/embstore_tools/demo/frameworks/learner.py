"""The interface of a framework for the training loop.

Each step calls, in this order, its `lookup`, then `learn`, then its `update`. `lookup` and `update`
belong to the feed that `opened` returns. So a learner whose adapter keeps the result of a lookup,
and its gradients, can use these instead of the arrays.
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
    """A model of a dense part and embeddings. One thread."""

    def opened(self, way: Way, material: WayInput) -> AbstractContextManager[Feed]:
        """Feed a loop inside the with block."""

    def learn(self, batch: Batch, rows: dict[str, Rows]) -> tuple[float, dict[str, Rows]]:
        """Train the dense part on a batch whose step has looked up `rows`.

        Returns
        -------
        The loss, and the gradients of the rows, (n, dim) by table, which the step then sends.
        """

    def scores(self, integers: NDArray[np.int64], rows: dict[str, Rows]) -> NDArray[np.float32]:
        """Return the logits (n,) of samples whose embeddings are `rows`."""
