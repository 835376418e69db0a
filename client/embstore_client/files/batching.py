"""How many rows files are read and written at a time."""

from embstore.config import TableConfig
from embstore.layout import VALUE_BYTES

BATCH_BYTES = 16 << 20
"""Of a batch of rows: large enough that a call costs little beside what it carries."""


def rows_of_batch(config: TableConfig, *, with_state: bool) -> int:
    """Return how many rows of a table are a batch."""
    elements = config.dim + (config.state_dim if with_state else 0)
    return max(BATCH_BYTES // (VALUE_BYTES * elements), 1)
