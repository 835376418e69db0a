"""Frames of the shared-memory transport for arrays in the memory of a GPU.

    DEVICE_SEGMENT   client   I need so many bytes of the GPU's memory; what I had is given up
    DEVICE_SEGMENT   server   here they are: the GPU, a handle of the memory and one of an event
    ON_DEVICE        client   of the CALL that follows: its arrays take so many bytes of the segment
                              from its beginning, and behind them is where I want the rows

Both sides name arrays by their place in the segment, in the headers of CALL and RESULT
(device_places.py). The rows come behind the arrays of the call.

**Order.** Before CALL the client records the event behind its copies into the segment. The server
begins with the call when that is reached. What RESULT says is there, is there.

**Life.** With the server's DEVICE_SEGMENT comes a descriptor: the *tether*. The client keeps it as
long as it has the memory or the event open, and ends it (`shutdown`, then `close`) after it has
closed both; the end of its process does the same. Only then does the server free the memory. The
end of the connection would be too early: a client's arrays may outlive it, and to free memory that
another process still has open is undefined (cudaIpcOpenMemHandle). A child that was forked inherits
the tether, and does not end it; if it outlives its parent it keeps the memory.

A server that ends takes the memory with it. What a client still has of it then is void.
"""

import struct
from typing import NamedTuple

from embstore_proto.shared_memory import Kind, check, frame_of

HANDLE_BYTES = 64
_SIZE = struct.Struct("<Q")
_SEGMENT = struct.Struct(f"<Q{HANDLE_BYTES}s{HANDLE_BYTES}s")


class Handles(NamedTuple):
    """What a client opens a GPU's memory by."""

    byte_count: int
    memory: bytes
    event: bytes
    gpu: str
    """Its address on the bus."""


def request(byte_count: int) -> bytes:
    """Return a client's request for memory."""
    return frame_of(Kind.DEVICE_SEGMENT, _SIZE.pack(byte_count))


def on_device(byte_count: int) -> bytes:
    """Return what goes before a CALL with arrays of so many bytes in the segment."""
    return frame_of(Kind.ON_DEVICE, _SIZE.pack(byte_count))


def size_of(body: bytes) -> int:
    """Return the bytes of a request, or of a call's arrays."""
    check(len(body) == _SIZE.size)
    (size,) = _SIZE.unpack(body)
    return int(size)


def segment(handles: Handles) -> bytes:
    """Return what goes with the tether of a server's memory."""
    fixed = _SEGMENT.pack(handles.byte_count, handles.memory, handles.event)
    return frame_of(Kind.DEVICE_SEGMENT, fixed, handles.gpu.encode())


def handles_of(body: bytes) -> Handles:
    """Return what the memory of a frame is opened by."""
    check(len(body) > _SEGMENT.size)
    gpu = body[_SEGMENT.size :].decode("ascii", "replace")
    byte_count, memory, event = _SEGMENT.unpack_from(body)
    return Handles(byte_count, memory, event, gpu)
