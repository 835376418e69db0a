"""The table of tests of shapes: with Sgd(1) an update takes the gradients off the rows."""

from typing import Any

import numpy as np

from embstore import Sgd, Uniform
from embstore.handles.store import Store

ROWS, DIM = 50, 4
TABLE: dict[str, Any] = {
    "dim": DIM,
    "rows": ROWS,
    "optimizer": Sgd(1.0),
    "initializer": Uniform(-1, 1),
}


def rows_of(store: Store, name: str) -> Any:
    """Return all rows of a table."""
    return store.table(name).lookup(np.arange(ROWS), admit=False)
