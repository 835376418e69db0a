"""The GPU's memory that a server shares with this process: opened, written, read, closed.

`embstore_proto.device_segment` describes the frames. A connection has at most one segment, open
from the server's handles until the next one takes its place, or the connection ends and no array of
it is left. Its tether, a socket that keeps it alive, is ended after that, so that the server frees
nothing that is open here.

**Streams.** Copies run in a stream of our own, on the server's GPU, also where the trainer computes
on another one. It follows the streams in which the arrays of a call are made, copies them, and
records the server's event. Rows are there when the answer is; those for `out` are copied in the
same stream, which the stream of `out` follows. Where an array names no stream, as PyTorch's, its
library is asked for its order by DLPack, and a copy into it is waited for.

**Rows that are lent** lie in the segment, and it is free when the last array of them is gone. GPUs
work behind Python: queued work on these rows may still run then. The next call over the connection
waits for the streams of its own arrays, so lent rows are for a trainer that uses them in the stream
in which it makes its next keys or gradients. A trainer that uses several, which do not follow each
other, gives `out`. A lookup of a step has no arrays of its own there, and waits for CuPy's current
stream instead.

Only `cupy_gpu` knows CuPy, and is imported when the first call needs it.
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
    """Memory of another process's GPU, opened. One thread at a time, but for `close`."""

    byte_count: int
    device: str
    """The GPU that has it, as this process names it: "cuda:1"."""

    def follow(self, arrays: Sequence[Any]) -> None:
        """Have copies wait for the work that the streams of arrays have been given so far.

        Raises InvalidArgumentError: an array that its library does not give away, or of a stream
        that is being captured.
        """

    def follow_current(self) -> None:
        """Have copies wait for the work that CuPy's current stream has been given so far.

        Raises InvalidArgumentError: it is being captured.
        """

    def write(self, array: Any, offset: int, byte_count: int) -> None:
        """Copy a caller's array into the segment."""

    def record(self) -> None:
        """Record the server's event behind all copies so far."""

    def read(self, place: Place, out: Any) -> None:
        """Copy an array of the segment into a caller's, before its own stream goes on."""

    def lent(self, place: Place, owner: object) -> Any:
        """Return an array of the segment itself, which keeps `owner`."""

    def copied(self, place: Place) -> Any:
        """Return a copy of an array of the segment, in memory of our own."""

    def close(self) -> None:
        """Wait for the copies, and close memory and event. Any thread."""


class Gpu(Protocol):
    """Opens the memory of GPUs."""

    def open(self, handles: Handles, name: str | None = None) -> OpenSegment:
        """Open a server's memory.

        Raises InvalidArgumentError: this process does not see its GPU, or gives it another name
        than `name`; or CUDA refuses.
        """


def opened_gpu() -> Gpu:
    """Return the `Gpu` of CuPy; raise InvalidArgumentError where that is not installed."""
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
    """Refuse a server's GPU if it is to be another one, before anything is opened there: that takes
    a context of CUDA, some hundred MB."""
    if name not in (None, device):
        raise InvalidArgumentError(
            f"expected arrays on {device}, which has the server's rows, found them on {name}; "
            "give host arrays"
        )


class DeviceSide:
    """A connection's side of the server's GPU: a segment, or none."""

    def __init__(self) -> None:
        self.segment: OpenSegment | None = None
        self._tether = -1  # no object, which might be finalized before this is
        self._process = os.getpid()

    def __del__(self) -> None:
        self.close()

    def take(self, body: bytes, descriptor: int, name: str | None = None) -> OpenSegment:
        """Open the memory of a frame, in place of the open one; `descriptor` is its tether, `name`
        as in `Gpu.open`."""
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
        """Close the segment, then end its tether. Any thread; a fork leaves both to its parent."""
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
                    ended.shutdown(socket.SHUT_RDWR)  # a child that was forked has it as well
