"""How many rows files are read and written at a time."""

from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES

BATCH_BYTES = 16 << 20
"""The bytes of a batch of rows: large enough that a call's own cost is small in comparison."""


def rows_of_batch(config: TableConfig, given: int | None, *, with_state: bool) -> int:
    """Return how many rows of a table are a batch: as given, or as many as BATCH_BYTES have.

    Raises InvalidArgumentError: it has given less than one.
    """
    if given is None:
        elements = config.dim + (config.state_dim if with_state else 0)
        return max(BATCH_BYTES // (VALUE_BYTES * elements), 1)
    if given < 1:
        raise InvalidArgumentError(f"expected batch_rows of at least 1, found {given}")
    return given
