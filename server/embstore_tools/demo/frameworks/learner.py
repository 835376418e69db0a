"""The interface between a framework and the training loop.

For each step, the loop calls `lookup` of the step, then `learn`, then `update` of the step.
`lookup` and `update` belong to the feed that `opened` returns. So if a framework's adapter keeps
the result of a lookup and its gradients, the learner can use these instead of the arrays.
"""

from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore_tools.demo.steps import Batch
from embstore_tools.demo.ways import Feed, Way, WayInput

DENSE_LEARNING_RATE = 2e-3
"""The learning rate of Adam for the dense part."""


class Learner(Protocol):
    """A model of a dense part and embeddings. One thread at a time."""

    def opened(self, way: Way, material: WayInput) -> AbstractContextManager[Feed]:
        """Return a context manager; inside its block, the feed provides the steps of a loop."""

    def learn(self, batch: Batch, rows: dict[str, Rows]) -> tuple[float, dict[str, Rows]]:
        """Train the dense part on a batch whose step has looked up `rows`.

        Returns
        -------
        The loss, and the gradients of the rows, (n, dim) by table, which the step then sends.
        """

    def scores(self, integers: NDArray[np.int64], rows: dict[str, Rows]) -> NDArray[np.float32]:
        """Return the logits (n,) of samples whose embeddings are `rows`."""
