"""Messages whose arrays are in a GPU's memory: they copy the arrays to the server, and return the
rows.

The server shares the GPU's memory (`device_segment`). Arrays on the host are the payload of the
message.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from embstore.arrays import device_address, is_on_device, shape_of
from embstore.errors import InvalidArgumentError
from embstore_client import device_segment
from embstore_client.device_segment import OpenSegment
from embstore_proto import device_segment as frames
from embstore_proto.device_places import OnDevice, Place, Places, aligned
from embstore_proto.frame import Framed, Message
from embstore_proto.v1 import embstore_pb2 as pb

DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<i8"), 2: np.dtype("<f4")}
"""The dtype of an array by its number of dimensions: keys have one; rows and gradients have two."""
_NOT_SHARED = (
    "which needs a shared-memory connection to a server of this host and user; this connection is "
    "by gRPC"
)


def rows_not_shared() -> InvalidArgumentError:
    """Return the error for a step whose rows are wanted in a GPU's memory, over a connection that
    shares no memory."""
    return InvalidArgumentError(
        "expected rows of steps on the host, found a request for them in a GPU's memory, "
        f"{_NOT_SHARED}"
    )


class DeviceMessage(Message):
    """A message with arrays in a GPU's memory; its arrays on the host are its payload."""

    def __init__(self, outs: Sequence[Any]) -> None:
        """Make a message without arrays. `outs` are the outputs for the rows of each table; None:
        the rows are lent."""
        super().__init__()
        self.outs = outs
        self._places = Places()
        self._arrays: list[tuple[Any, Place]] = []

    def add(self, array: Any) -> pb.Array:
        """Append an array, and return its description and position for the header."""
        if not is_on_device(array):
            return super().add(array)
        shape = shape_of(array)
        dtype = DTYPES.get(len(shape))
        if dtype is None:
            raise InvalidArgumentError(f"expected one or two dimensions, found shape {shape}")
        device_address(array.__cuda_array_interface__, dtype)
        place = self._places.add(shape, dtype)
        self._arrays.append((array, place))
        return place.stored()

    def place(self, connection: Any, rows_bytes: int, deadline: float) -> bytes:
        """Copy the arrays into the device segment of a connection, where the server reads them.
        Return the frame that announces them. The segment is replaced by a larger one if necessary.

        Raises InvalidArgumentError if CuPy is not installed, an array cannot be copied, or the
        server's GPU cannot be shared.
        """
        device_segment.opened_gpu()  # so that a missing CuPy fails before memory is requested
        byte_count = self._places.byte_count
        wanted = max(aligned(byte_count) + rows_bytes, 1)
        segment = connection.device_segment_of(wanted, deadline)
        self._follow(segment)
        for array, place in self._arrays:
            if place.byte_count:
                segment.write(array, place.offset, place.byte_count)
        segment.record()
        return frames.on_device(byte_count)

    def _follow(self, segment: OpenSegment) -> None:
        """Make the copies, and the next use of the segment, wait for the caller's streams."""
        segment.follow(
            [array for array, _ in self._arrays] + [o for o in self.outs if o is not None]
        )

    def rows(self, segment: OpenSegment, lend: Callable[[], object] | None) -> OnDevice:
        """Return an object that takes the rows of the answer from a segment.

        `lend` returns the object that lent rows keep alive; None: the rows are copied instead.
        """
        return _Rows(segment, self.outs, lend)

    def total_bytes(self, header: bytes) -> int:
        """Raise InvalidArgumentError, like all methods that networks need: this message can be sent
        only through shared memory."""
        self._refuse()

    def joined(self, header: bytes) -> bytes:
        """Raise InvalidArgumentError, as `total_bytes` does."""
        self._refuse()

    def framed(self, header: bytes) -> Framed:
        """Raise InvalidArgumentError, as `total_bytes` does."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidArgumentError(
            f"expected host arrays, found some in a GPU's memory, {_NOT_SHARED}"
        )


class StepMessage(DeviceMessage):
    """A lookup of a step whose rows are returned on a GPU; its own arrays are on the host."""

    def _follow(self, segment: OpenSegment) -> None:
        super()._follow(segment)
        if not self.outs or any(own is None for own in self.outs):  # some rows are lent
            segment.follow_current()

    def _refuse(self) -> NoReturn:
        raise rows_not_shared()


class _Rows:
    """The rows of one answer, table after table."""

    def __init__(
        self, segment: OpenSegment, outs: Sequence[Any], lend: Callable[[], object] | None
    ) -> None:
        self._segment, self._lend = segment, lend
        self._outs = iter(outs)

    def array(self, place: Place, what: str) -> Any:
        """Return an array of the answer: the caller's output, filled, or an array in the
        segment."""
        if place.end > self._segment.byte_count:
            raise InvalidArgumentError(
                f"{what}: expected rows in the GPU's memory, found them outside"
            )
        out = next(self._outs, None)
        if out is not None:
            if shape_of(out) != place.shape:
                raise InvalidArgumentError(
                    f"{what}: expected rows of shape {shape_of(out)}, found {place.shape}: the "
                    "table was replaced during the call; call again"
                )
            self._segment.read(place, out)
            return out
        return (
            self._segment.copied(place)
            if self._lend is None
            else self._segment.lent(place, self._lend())
        )
