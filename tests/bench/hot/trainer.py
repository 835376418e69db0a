"""The model of one contestant: the demo's DLRM, with the same beginning for all."""

from typing import Any

import numpy as np

from embstore.arrays import Rows
from embstore_tools.demo.criteo import INTEGERS
from embstore_tools.demo.dlrm import Adam, Dlrm, area_under_curve
from tests.bench.hot.scale import Scale
from tests.bench.hot.trace import FEATURES, LABELS, Columns, Trace

_DENSE_LEARNING_RATE = 2e-3


class Trainer:
    """The dense part, and what it does with a batch's rows."""

    def __init__(self, trace: Trace, scale: Scale) -> None:
        self._trace = trace
        self._model = Dlrm(integers=INTEGERS, columns=len(trace.tables), dim=scale.dim)
        self._optimizer = Adam(self._model.parameters, _DENSE_LEARNING_RATE)

    def gradients(self, batch: Columns, rows: dict[str, Rows]) -> dict[str, Rows]:
        """Train the dense part on a batch, and return the gradients of its rows by table."""
        found = self._model.gradients(batch[FEATURES], self._stacked(rows), batch[LABELS])
        self._optimizer.step(found.dense)
        return {
            table: np.ascontiguousarray(found.embeddings[:, column])
            for column, table in enumerate(self._trace.tables)
        }

    def held_out_auc(self, store: Any) -> float | None:
        """Return the AUC of the held-out samples. The cache stays as training left it."""
        held_out, scores = self._trace.held_out, []
        for batch in self._trace.batches(held_out):
            rows = store.lookup(self._trace.keys_of(batch), admit=False)
            scores.append(self._model.scores(batch[FEATURES], self._stacked(rows)))
        return area_under_curve(held_out[LABELS].astype(np.float32), np.concatenate(scores))

    def _stacked(self, rows: dict[str, Rows]) -> Rows:
        return np.stack([rows[table] for table in self._trace.tables], axis=1)
