"""The positions of a message's arrays in a GPU's memory.

The message can have further arrays on the host (offsets of bags, counts). So it has two payloads:
the usual payload on the host, and a payload on the device, in a segment of its own
(device_segment.py). The offset of an array shows where it is: offsets of DEVICE_OFFSET or more are
in the device's payload.
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from embstore.errors import InvalidArgumentError
from embstore_proto.v1 import embstore_pb2 as pb

DEVICE_OFFSET = 1 << 48
"""The first offset in a payload on a device. No payload on the host is that large."""
DEVICE_ALIGNMENT = 64
"""Alignment of arrays in both payloads, in bytes; kernels need 16 to be fast."""
DTYPES = {np.dtype("<i8"): pb.DTYPE_INT64, np.dtype("<f4"): pb.DTYPE_FLOAT32}
"""The dtypes of keys, and of rows and gradients, on the wire."""


class Place(NamedTuple):
    """The position, shape and dtype of an array in the device's payload."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def byte_count(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """The offset after the array."""
        return self.offset + self.byte_count

    def stored(self) -> pb.Array:
        """Return the array's description for a header."""
        number = DTYPES[self.dtype]
        return pb.Array(dtype=number, shape=self.shape, offset=DEVICE_OFFSET + self.offset)


class OnDevice(Protocol):
    """The device's payload of a message."""

    def array(self, place: Place, what: str) -> Any:
        """Return an array of the payload. Raises InvalidArgumentError if the array is outside the
        payload; `what` names the array in the error."""


class Places:
    """Assigns positions to arrays, one after the other."""

    def __init__(self) -> None:
        self.byte_count = 0
        """Size of the payload up to the end of the last array, in bytes."""

    def add(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Place:
        """Return the position of the next array."""
        place = Place(aligned(self.byte_count), shape, dtype)
        self.byte_count = place.end
        return place


def aligned(offset: int) -> int:
    """Return the smallest aligned offset that is not below `offset`."""
    return -(-offset // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT


def checked_place(stored: pb.Array, expected: np.dtype[Any], dimensions: int, what: str) -> Place:
    """Return the position of an array from its description in a header; the array may still be
    outside the payload.

    Raises InvalidArgumentError if the dtype or the number of dimensions is not as expected, or the
    array is not aligned.
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
