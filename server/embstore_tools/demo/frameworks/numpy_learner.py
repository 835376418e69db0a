"""The model in plain NumPy (dlrm.py), with lookups and updates by direct calls to the store."""

from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.config import TableConfig
from embstore_tools.demo.criteo import CATEGORIES, INTEGERS
from embstore_tools.demo.dlrm import Adam, Dlrm, dense_features
from embstore_tools.demo.frameworks.learner import DENSE_LEARNING_RATE
from embstore_tools.demo.steps import Batch
from embstore_tools.demo.ways import Feed, Way, WayInput


class NumpyLearner:
    """The learner in NumPy; see `learner.Learner`."""

    def __init__(self, configs: list[TableConfig], *, seed: int) -> None:
        self._tables = [config.name for config in configs]
        self._model = Dlrm(integers=INTEGERS, columns=CATEGORIES, dim=configs[0].dim, seed=seed)
        self._optimizer = Adam(self._model.parameters, DENSE_LEARNING_RATE)

    def opened(self, way: Way, material: WayInput) -> AbstractContextManager[Feed]:
        """Return the feed of the given way to train."""
        return way.opened(material)

    def learn(self, batch: Batch, rows: dict[str, Rows]) -> tuple[float, dict[str, Rows]]:
        """Return loss and gradients."""
        features = dense_features(batch.integers)
        found = self._model.gradients(features, self._stacked(rows, len(batch)), batch.labels)
        self._optimizer.step(found.dense)
        columns = found.embeddings.swapaxes(0, 1)
        parts = np.split(columns, len(self._tables))
        dim = columns.shape[2]
        return found.loss, {
            name: np.ascontiguousarray(of.reshape(-1, dim))
            for name, of in zip(self._tables, parts, strict=True)
        }

    def scores(self, integers: NDArray[np.int64], rows: dict[str, Rows]) -> NDArray[np.float32]:
        """Return logits."""
        return self._model.scores(dense_features(integers), self._stacked(rows, len(integers)))

    def _stacked(self, rows: dict[str, Rows], count: int) -> Rows:
        """Return the rows of all tables as (count, columns, dim)."""
        of_tables = (rows[name] for name in self._tables)
        columns = [of for rows in of_tables for of in rows.reshape(-1, count, rows.shape[1])]
        return np.stack(columns, axis=1)
