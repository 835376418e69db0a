"""Frames of the shared-memory transport for arrays in the memory of a GPU.

    DEVICE_SEGMENT   client   requests this many bytes of the GPU's memory; the client no longer
                              uses its previous segment
    DEVICE_SEGMENT   server   the segment: the GPU, a handle of the memory and one of an event
    ON_DEVICE        client   announces the next CALL: the size of its arrays, which are at the
                              beginning of the segment; the client wants the rows after them

In the headers of CALL and RESULT, both sides name arrays by their offset in the segment
(device_places.py). The rows come after the arrays of the call.

**Order.** Before CALL the client records the event after its copies into the segment. The server
begins with the call when the event is reached. All arrays that RESULT names are complete when
RESULT arrives.

**Lifetime.** With its DEVICE_SEGMENT the server sends a descriptor, the *tether*. The client keeps
the tether as long as it has the memory or the event open. After closing memory and event, the
client ends the tether (`shutdown`, then `close`); the end of the client's process has the same
effect. Only then does the server free the memory. The end of the connection would be too early: a
client's arrays may outlive the connection, and freeing memory that another process still has open
is undefined (cudaIpcOpenMemHandle). A forked child of the client inherits the tether, and does not
end it; if the child outlives its parent, the memory stays allocated.

When a server ends, its memory is freed. From then on, a client must not use arrays in that memory.
"""

import struct
from typing import NamedTuple

from embstore_proto.shared_memory import Kind, check, frame_of

HANDLE_BYTES = 64
_SIZE = struct.Struct("<Q")
_SEGMENT = struct.Struct(f"<Q{HANDLE_BYTES}s{HANDLE_BYTES}s")


class Handles(NamedTuple):
    """The handles by which a client opens a GPU's memory."""

    byte_count: int
    memory: bytes
    event: bytes
    gpu: str
    """The GPU's address on the bus."""


def request(byte_count: int) -> bytes:
    """Return the frame by which a client requests `byte_count` bytes of a GPU's memory."""
    return frame_of(Kind.DEVICE_SEGMENT, _SIZE.pack(byte_count))


def on_device(byte_count: int) -> bytes:
    """Return the frame that precedes a CALL whose arrays have `byte_count` bytes in the segment."""
    return frame_of(Kind.ON_DEVICE, _SIZE.pack(byte_count))


def size_of(body: bytes) -> int:
    """Return the size in a client's frame: the bytes that it requests, or the bytes of a call's
    arrays."""
    check(len(body) == _SIZE.size)
    (size,) = _SIZE.unpack(body)
    return int(size)


def segment(handles: Handles) -> bytes:
    """Return the frame that a server sends with the tether of its memory."""
    fixed = _SEGMENT.pack(handles.byte_count, handles.memory, handles.event)
    return frame_of(Kind.DEVICE_SEGMENT, fixed, handles.gpu.encode())


def handles_of(body: bytes) -> Handles:
    """Return the handles in a frame."""
    check(len(body) > _SEGMENT.size)
    gpu = body[_SEGMENT.size :].decode("ascii", "replace")
    byte_count, memory, event = _SEGMENT.unpack_from(body)
    return Handles(byte_count, memory, event, gpu)
