"""The layout of a row: what its record is made of, and how many bytes each part takes.

A **row** is one record that moves as a whole, in the cache, on its way and on the disk:

    [0, dim)                  weights
    [dim, dim + state_dim)    optimizer state
    [dim + state_dim, stride) zeros, up to a multiple of 16 bytes, which kernels move at a time

Log and base store it as a **record**: a header (checksum and row key, storage/format.py), then the
row. All parts have elements of one type. It is named here for Python and in `kernels/common.cuh`
for CUDA; whoever needs a size in bytes asks here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ELEMENT = np.dtype(np.float32)
"""The type of every element of a row, and of gradients and sums."""
ELEMENT_BYTES = ELEMENT.itemsize
ROW_ALIGNMENT_BYTES = 16
RECORD_HEADER_BYTES = 16


def record_bytes_of(rows: NDArray[Any]) -> int:
    """Return the bytes of the record of each of some rows, (n, stride)."""
    return RECORD_HEADER_BYTES + int(rows.shape[1]) * rows.itemsize


@dataclass(frozen=True)
class Layout:
    """What rows must have in common to share slots, and one call of a kernel.

    Parameters
    ----------
    dim, state_dim : elements of weights and of optimizer state
    optimizer : the kind whose formula updates the rows
    """

    dim: int
    state_dim: int
    optimizer: str

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, padding included."""
        used = ELEMENT_BYTES * (self.dim + self.state_dim)
        return -(-used // ROW_ALIGNMENT_BYTES) * ROW_ALIGNMENT_BYTES

    @property
    def stride(self) -> int:
        """Elements of a row, padding included."""
        return self.row_bytes // ELEMENT_BYTES

    @property
    def record_bytes(self) -> int:
        """Bytes of a row's record in log and base."""
        return RECORD_HEADER_BYTES + self.row_bytes
