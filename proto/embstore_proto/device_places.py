"""Where the arrays of a message are that lie in a GPU's memory.

A message may have arrays of the host beside them (offsets of bags, counts), so it has two payloads:
that of the host, as ever, and that of the device, in a segment of its own (device_segment.py). The
offset of an array tells which: from DEVICE_OFFSET on it counts in the device's.
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from embstore.errors import InvalidArgumentError
from embstore_proto.v1 import embstore_pb2 as pb

DEVICE_OFFSET = 1 << 48
"""Above whatever a payload of the host may have."""
DEVICE_ALIGNMENT = 64
"""Of arrays in the device's payload, as in the host's; kernels are fast from 16 on."""
DTYPES = {np.dtype("<i8"): pb.DTYPE_INT64, np.dtype("<f4"): pb.DTYPE_FLOAT32}
"""Keys; rows and gradients."""


class Place(NamedTuple):
    """An array in the device's payload."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def byte_count(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.byte_count

    def stored(self) -> pb.Array:
        """Return it as it stands in a header."""
        number = DTYPES[self.dtype]
        return pb.Array(dtype=number, shape=self.shape, offset=DEVICE_OFFSET + self.offset)


class OnDevice(Protocol):
    """The device's payload of a message."""

    def array(self, place: Place, what: str) -> Any:
        """Return an array of it. Raises InvalidArgumentError: outside; `what` names the array."""


class Places:
    """The places of arrays, one after the other."""

    def __init__(self) -> None:
        self.byte_count = 0
        """Up to the end of the last."""

    def add(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Place:
        """Return the place of the next array."""
        place = Place(aligned(self.byte_count), shape, dtype)
        self.byte_count = place.end
        return place


def aligned(offset: int) -> int:
    """Return the least place for an array from an offset on."""
    return -(-offset // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT


def checked_place(stored: pb.Array, expected: np.dtype[Any], dimensions: int, what: str) -> Place:
    """Return the place that a header says; whether it is inside is not known here.

    Raises InvalidArgumentError: another dtype or number of dimensions, not aligned.
    """
    shape = tuple(stored.shape)
    offset = stored.offset - DEVICE_OFFSET
    if stored.dtype != DTYPES.get(expected, -1) or len(shape) != dimensions:
        raise InvalidArgumentError(
            f"{what}: expected {expected.name} of {dimensions} dimensions in a GPU's memory, found "
            f"dtype {stored.dtype} of shape {shape}"
        )
    if offset % DEVICE_ALIGNMENT or max(shape) > 1 << 40:
        raise InvalidArgumentError(
            f"{what}: expected an array at a multiple of {DEVICE_ALIGNMENT} bytes of a GPU's "
            f"memory, found offset {offset} and shape {shape}"
        )
    return Place(offset, shape, expected)
