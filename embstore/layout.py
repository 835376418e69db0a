"""The layout of a row: what its record is made of, and how many bytes each part takes.

A **row** is one record that moves as a whole, in the cache, on its way and on the disk:

    [0, dim)                  weights
    [dim, dim + state_dim)    optimizer state
    [dim + state_dim, stride) zeros, up to a multiple of four elements and of 16 bytes

Log and base store it as a **record**: a header (checksum and row key, storage/format.py), then the
row. All elements of a row have one type, in which it is kept. Arithmetic has a type of its own,
that of **values**: a kernel loads an element as a value, and stores a value as an element. Both are
fp32. They are named here for Python and in `kernels/types.cuh` for CUDA; whoever needs a size in
bytes asks here.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_ELEMENTS = 4
"""What a lane of a GPU moves at a time, at most."""
VALUE = np.dtype(np.float32)
"""The type of what is computed and sent: looked-up rows, gradients, sums, scalars."""
VALUE_BYTES = VALUE.itemsize
ELEMENT = np.dtype(np.float32)
"""The type of every element of a row, as it is kept."""
ELEMENT_BYTES = ELEMENT.itemsize
ROW_ALIGNMENT_BYTES = math.lcm(16, PIECE_ELEMENTS * ELEMENT_BYTES)
"""A row is whole pieces, and begins where 16 bytes can be moved at a time."""
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

    @cached_property
    def element(self) -> np.dtype[Any]:
        """The type of an element."""
        return ELEMENT

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row, padding included."""
        used = ELEMENT_BYTES * (self.dim + self.state_dim)
        return -(-used // ROW_ALIGNMENT_BYTES) * ROW_ALIGNMENT_BYTES

    @cached_property
    def stride(self) -> int:
        """Elements of a row, padding included."""
        return self.row_bytes // ELEMENT_BYTES

    @cached_property
    def record_bytes(self) -> int:
        """Bytes of a row's record in log and base."""
        return RECORD_HEADER_BYTES + self.row_bytes
