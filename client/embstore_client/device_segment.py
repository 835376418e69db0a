"""GPU memory that a server shares with this process: opening, writing, reading and closing it.

`embstore_proto.device_segment` describes the frames. A connection has at most one segment. A
segment is open from the moment when the server's handles arrive. It is closed when the next segment
replaces it, or when the connection has ended and no array in the segment is left. After that, the
segment's tether (a socket that keeps the segment alive on the server) is closed. So the server
never frees memory that is open here.

**Streams.** Copies run in a stream of this module, on the server's GPU, even if the trainer
computes on another GPU. This stream waits for the streams in which the arrays of a call are made,
copies the arrays, and records the server's event. Rows are complete when the answer arrives. Rows
for `out` are copied in the same stream, and the stream of `out` waits for the copy. If an array
names no stream, as with PyTorch, this module asks the array's library, by DLPack, to run the copy
after the library's work. This process then waits for a copy into such an array.

**Rows that are lent** are arrays in the segment itself, and the segment can be used again when the
last such array is deleted. GPUs run asynchronously to Python: queued work on these rows may still
run at that moment. The next call over the connection waits for the streams of its own arrays.
Therefore a trainer must use lent rows in the stream in which it makes its next keys or gradients. A
trainer with several streams that do not wait for each other must pass `out`. A lookup of a step has
no arrays of its own on the device, and waits for CuPy's current stream instead.

Only the module `cupy_gpu` uses CuPy; it is imported when the first call needs CuPy.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.version import pip_install
from embstore_proto import device_segment as frames
from embstore_proto.device_places import Place
from embstore_proto.device_segment import Handles


class OpenSegment(Protocol):
    """Opened memory of another process's GPU. Only one thread may use it at a time, except for
    `close`."""

    byte_count: int
    device: str
    """The GPU of the memory, as this process names it: "cuda:1"."""

    def follow(self, arrays: Sequence[Any]) -> None:
        """Make copies wait for the work that is queued by now in the streams of arrays.

        Raises InvalidArgumentError if the library of an array does not export the array by DLPack,
        or if the stream of an array is being captured into a CUDA graph.
        """

    def follow_current(self) -> None:
        """Make copies wait for the work that is queued by now in CuPy's current stream.

        Raises InvalidArgumentError if that stream is being captured into a CUDA graph.
        """

    def write(self, array: Any, offset: int, byte_count: int) -> None:
        """Copy a caller's array into the segment."""

    def record(self) -> None:
        """Record the server's event after all copies so far."""

    def read(self, place: Place, out: Any) -> None:
        """Copy an array of the segment into a caller's array. Work that is queued later on the
        caller's array runs after the copy."""

    def lent(self, place: Place, owner: object) -> Any:
        """Return an array in the segment itself, which keeps `owner` alive."""

    def copied(self, place: Place) -> Any:
        """Return a copy of an array of the segment, in memory of this process."""

    def close(self) -> None:
        """Wait for the copies, and close the memory and the event. Any thread may call this."""


class Gpu(Protocol):
    """Opens the memory of GPUs."""

    def open(self, handles: Handles, name: str | None = None) -> OpenSegment:
        """Open a server's memory.

        Raises InvalidArgumentError if this process does not see the memory's GPU, or has another
        name than `name` for it, or if CUDA refuses.
        """


def opened_gpu() -> Gpu:
    """Return the `Gpu` of CuPy; raise InvalidArgumentError if CuPy is not installed."""
    try:
        from embstore_client.cupy_gpu import CupyGpu
    except ImportError as exc:
        raise InvalidArgumentError(
            f"expected CuPy, which arrays in a GPU's memory need, found none ({exc}): "
            f"{pip_install('cuda12')} or cuda13, whichever the driver supports; or give host "
            "arrays"
        ) from exc
    return CupyGpu()


def check_is(device: str, name: str | None) -> None:
    """Refuse a server's GPU that is not the GPU `name`; None accepts any GPU. The caller checks
    this before anything is opened on the GPU, because opening makes a CUDA context of some hundred
    MB."""
    if name not in (None, device):
        raise InvalidArgumentError(
            f"expected arrays on {device}, which has the server's rows, found them on {name}; "
            "give host arrays"
        )


class DeviceSide:
    """The client's access to the server's GPU over one connection: a segment, or none."""

    def __init__(self) -> None:
        self.segment: OpenSegment | None = None
        self._tether = -1  # a number: a socket object could be finalized before this object
        self._process = os.getpid()

    def __del__(self) -> None:
        self.close()

    def take(self, body: bytes, descriptor: int, name: str | None = None) -> OpenSegment:
        """Open the memory that a frame describes, and close the memory that was open.

        `descriptor` is the tether of the new memory; `name` is as in `Gpu.open`.
        """
        self.close()
        if descriptor < 0:
            raise EmbstoreError(
                "expected the keepalive descriptor of the GPU's shared memory, found none"
            )
        self._tether = descriptor
        try:
            self.segment = segment = opened_gpu().open(frames.handles_of(body), name)
        except BaseException:
            self.close()
            raise
        return segment

    def close(self) -> None:
        """Close the segment, then its tether. Any thread may call this. In a forked child the call
        does nothing, because segment and tether belong to the parent."""
        if os.getpid() != self._process:
            return
        segment, self.segment = self.segment, None
        tether, self._tether = self._tether, -1
        try:
            if segment is not None:
                segment.close()
        finally:
            if tether >= 0:
                with socket.socket(fileno=tether) as ended, suppress(OSError):
                    ended.shutdown(socket.SHUT_RDWR)  # a forked child has it open as well
