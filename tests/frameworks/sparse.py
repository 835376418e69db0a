"""What tests of sparse keys in adapters share: ids of any bits, and a dense twin of their rows.

Rows of the twin are those of `PLACES`: its initializer is a constant, as that of the sparse table,
so that rows are equal to the bit by id.
"""

from typing import Any

import numpy as np

from embstore import Adam, Constant
from embstore.handles.store import Store

DIM = 4
IDS = np.array(
    [7, -2, 0, -(2**63), 2**63 - 1, -3, 2**40, 12, -(2**31) - 1, 2**32 + 7, 1, -256], np.int64
)
"""Distinct ones."""
TABLE: dict[str, Any] = {
    "dim": DIM,
    "optimizer": Adam(0.1),
    "initializer": Constant(0.25),
}
TWIN: dict[str, Any] = {**TABLE, "rows": len(IDS)}


def drawn(seed: int, *shape: int, padding: float = 0.0) -> Any:
    """Return places among IDS, int64 of a shape, and -1 for a share of them."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, len(IDS), shape)
    places[rng.random(shape) < padding] = -1
    return places


def ids_of(places: Any) -> Any:
    """Return the ids of places; -1 stays."""
    return np.where(places == -1, -1, IDS[places])


def assert_same_rows(store: Store, name: str, twin: str) -> None:
    """Compare a sparse table with its dense twin, which has been trained as often."""
    rows = store.table(name).lookup(IDS, admit=False)
    assert rows.tobytes() == store.table(twin).lookup(np.arange(len(IDS)), admit=False).tobytes()
    assert (rows != 0.25).any()
    assert store.table(name).t == store.table(twin).t > 0
