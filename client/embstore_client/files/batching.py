"""The number of rows per batch, for reading and writing files."""

from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES

BATCH_BYTES = 16 << 20
"""The size of a batch of rows in bytes: so large that the fixed cost of a call is small in
comparison."""


def rows_of_batch(config: TableConfig, given: int | None, *, with_state: bool) -> int:
    """Return the number of rows per batch: the given number, or as many rows as fit in BATCH_BYTES.

    Raises InvalidArgumentError if the given number is below 1.
    """
    if given is None:
        elements = config.dim + (config.state_dim if with_state else 0)
        return max(BATCH_BYTES // (VALUE_BYTES * elements), 1)
    if given < 1:
        raise InvalidArgumentError(f"expected batch_rows of at least 1, found {given}")
    return given
