"""A client made of generated code and NumPy alone, as one in any language is: no codec of ours.

A bulk message is built as an ordinary protobuf message: the arrays' bytes are joined into the
payload, with gaps of any size between them, and there is no padding. A stream is the serialised
message, cut wherever it may be.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.wire import refusal

_DTYPES = {
    np.dtype("<i8"): pb.DTYPE_INT64,
    np.dtype("<f4"): pb.DTYPE_FLOAT32,
    np.dtype("<u4"): pb.DTYPE_UINT32,
    np.dtype("u1"): pb.DTYPE_UINT8,
}
BULK = {
    "Lookup": (pb.LookupRequest, pb.RowsReply),
    "LookupPooled": (pb.LookupPooledRequest, pb.RowsReply),
    "ReadRows": (pb.ReadRowsRequest, pb.RowsReply),
    "Update": (pb.UpdateRequest, pb.BulkAcknowledgedReply),
    "UpdatePooled": (pb.UpdatePooledRequest, pb.BulkAcknowledgedReply),
    "UpdateRanks": (pb.UpdateRanksRequest, pb.BulkAcknowledgedReply),
    "Assign": (pb.AssignRequest, pb.BulkAcknowledgedReply),
    "PutRows": (pb.PutRowsRequest, pb.BulkAcknowledgedReply),
    "DeleteRows": (pb.DeleteRowsRequest, pb.DeletedReply),
}
"""Request and reply of each bulk verb."""


class Payload:
    """Arrays joined into a payload, each after a gap of so many bytes."""

    def __init__(self, gap_bytes: int) -> None:
        self._gap = b"\xaa" * gap_bytes
        self.content = b""

    def add(self, array: Any, dtype: str) -> pb.Array:
        """Append an array; return where it lies."""
        made = np.asarray(array, dtype)
        self.content += self._gap
        offset = len(self.content)
        self.content += made.tobytes()
        return pb.Array(dtype=_DTYPES[made.dtype], shape=made.shape, offset=offset)


def array_of(reply: Any, place: pb.Array) -> NDArray[Any]:
    """Return an array of a reply."""
    dtype = {number: dtype for dtype, number in _DTYPES.items()}[place.dtype]
    count = int(np.prod(place.shape, dtype=np.int64))
    return np.frombuffer(reply.payload, dtype, count, place.offset).reshape(tuple(place.shape))


def chunks(message: Any, piece_bytes: int) -> Iterator[pb.Chunk]:
    """Yield a message as Chunks of so many bytes."""
    serialised = message.SerializeToString()
    total = len(serialised)
    for start in range(0, total, piece_bytes):
        piece = serialised[start : start + piece_bytes]
        yield pb.Chunk(total_bytes=0 if start else total, piece=piece)


class Unary:
    """Bulk verbs in one message each way."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def call(self, verb: str, header: Any, payload: bytes) -> Any:
        """Do a bulk call and return its reply."""
        request, _ = BULK[verb]
        return getattr(self._stub, verb)(request(header=header, payload=payload))


class Streamed(Unary):
    """Their stream twins, in pieces of so many bytes."""

    def __init__(self, stub: Any, piece_bytes: int) -> None:
        super().__init__(stub)
        self._piece_bytes = piece_bytes

    def call(self, verb: str, header: Any, payload: bytes) -> Any:
        request, reply = BULK[verb]
        message = request(header=header, payload=payload)
        sent = chunks(message, self._piece_bytes)
        came = list(getattr(self._stub, f"{verb}Stream")(sent))
        whole = b"".join(chunk.piece for chunk in came)
        assert [chunk.total_bytes for chunk in came] == [len(whole)] + [0] * (len(came) - 1)
        return reply.FromString(whole)


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the status and the class of a call that must be refused."""
    found = refusal(call)
    return found.code, found.error


INVALID = ("INVALID_ARGUMENT", "InvalidArgumentError")
