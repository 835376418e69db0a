"""The layout of a row: the parts of its record, and how many bytes each part takes.

A **row** is one record that moves as a whole, in the cache, on the wire and on the disk:

    [0, dim)                  weights
    [dim, dim + state_dim)    optimizer state
    [dim + state_dim, stride) zeros, up to a multiple of four elements and of 16 bytes

The log and the base store a row as a **record**: a header (checksum and row key,
storage/format.py), then the row. All elements of a row are stored in one type. Arithmetic uses its
own type, the type of **values**: a kernel loads an element as a value, and stores a value as an
element. Both types are fp32. This module names the two types for Python, and `kernels/types.cuh`
names them for CUDA. Code that needs a size in bytes takes the size from this module.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_ELEMENTS = 4
"""The most elements that a lane of a GPU moves at a time."""
VALUE = np.dtype(np.float32)
"""The type of values that are computed and sent: looked-up rows, gradients, sums, scalars."""
VALUE_BYTES = VALUE.itemsize
ELEMENT = np.dtype(np.float32)
"""The type in which every element of a row is stored."""
ELEMENT_BYTES = ELEMENT.itemsize
ROW_ALIGNMENT_BYTES = math.lcm(16, PIECE_ELEMENTS * ELEMENT_BYTES)
"""A row consists of whole pieces, and begins at an address from which 16 bytes can be moved at a
time."""
RECORD_HEADER_BYTES = 16


def record_bytes_of(rows: NDArray[Any]) -> int:
    """Return the bytes of one row's record, given rows of shape (n, stride)."""
    return RECORD_HEADER_BYTES + int(rows.shape[1]) * rows.itemsize


@dataclass(frozen=True)
class Layout:
    """The properties that rows must share to be in the same slots and in one call of a kernel.

    Parameters
    ----------
    dim, state_dim : number of elements of weights and of optimizer state
    optimizer : kind of the optimizer whose formula updates the rows
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
        """Bytes of a row's record in the log and the base."""
        return RECORD_HEADER_BYTES + self.row_bytes
