"""A call as its transport represents it, and the buffer for the rows of its reply."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from embstore.layout import VALUE_BYTES
from embstore_proto.frame import NARROW, Blank, Framed
from embstore_proto.narrow import NARROW_BYTES
from embstore_proto.received import Received, split
from embstore_proto.verbs import Verb
from embstore_server.path.answers import Answered
from embstore_server.path.caller import Caller
from embstore_server.path.inflight import Reservation

_ROUNDED_AT_ONCE_BYTES = 64 << 10
"""The most bytes of rows that are rounded on the event loop; rounding them takes a few dozen
microseconds."""
_CONTEXT_ROOM, _TABLE_ROOM, _STAGES_ROOM = 160, 80, 600
"""Bytes of a reply's header: for the part that all replies have, for each table (without its name),
and for the times of stages."""

Request = bytes | memoryview | Received


class Incoming(Protocol):
    """A call as its transport represents it."""

    transport: str
    """The name of the transport in whose stats the call counts."""
    authorization: str
    certificate_names: Sequence[str]

    def caller(self, verb: str) -> Caller:
        """Return the caller, with the call's deadline."""

    def has_room(self, count: int) -> bool:
        """Return whether `count` bytes of rows fit in the reply without a call of `expect`."""

    async def expect(self, count: int, reservation: Reservation | None) -> None:
        """Reserve space for `count` bytes of rows in the reply; raises OverloadedError.

        A transport whose replies have no space of their own adds the bytes to `reservation`.
        """

    def blank(
        self,
        room: int,
        shapes: Sequence[tuple[int, ...]],
        others: Sequence[NDArray[Any]],
        dtype: str,
    ) -> Blank:
        """Return a message that is in the send buffer; rows are then written into its arrays. See
        `Blank`. Any thread."""

    async def send(self, reply: Framed, *, is_last: bool) -> None:
        """Send a message of the answer, once the client has received the previous one."""

    async def refuse(self, error: Exception, *, is_final: bool) -> None:
        """End the call with an error; `is_final`: it is of no use to send the call again."""


class ReplyRows:
    """A callable that gets the shapes of a reply's rows, makes the reply, and returns the arrays
    into which the rows are written.

    A client on a slow link can request rows of two bytes per value (`narrow`). Such rows are read
    as float32 into separate arrays. When the engine has finished with these arrays, the rows are
    rounded into the message; many rows are rounded on another thread.
    """

    def __init__(self, call: Incoming, stages: bool = False, dtype: str = "float32") -> None:
        self._call = call
        self._dtype = dtype
        self._room = _CONTEXT_ROOM + (_STAGES_ROOM if stages else 0)
        self.blank: Blank | None = None

    def __call__(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, int]],
        others: Sequence[NDArray[Any]] = (),
    ) -> Sequence[Any]:
        room = self._room + sum(map(len, names)) + len(names) * _TABLE_ROOM
        self.blank = self._call.blank(room, shapes, others, self._dtype)
        return self.blank.arrays


async def framed(verb: Verb, answered: Answered, rows: ReplyRows | None) -> Framed:
    """Return an answer as a message, in the form of its verb."""
    value, context, seconds, _ = answered
    places = rows.blank if rows else None
    if places is not None and places.rounded_bytes:
        if places.rounded_bytes > _ROUNDED_AT_ONCE_BYTES:  # not on the event loop
            await asyncio.to_thread(places.round)
        else:
            places.round()
    return verb.framed(value, context, stage_seconds=seconds, places=places)


def value_bytes(dtype: str) -> int:
    """Return the size in bytes of one value of a row that is sent as `dtype`."""
    return NARROW_BYTES if dtype in NARROW else VALUE_BYTES


def payload_of(request: Request) -> memoryview:
    """Return a view of the bytes of a request's arrays; the arrays are not read yet."""
    return (request if isinstance(request, Received) else split(request)).payload
