"""The GPU memory that one client shares with the server; for host memory see host_segment.py.

A client on the same host that has its arrays in a GPU's memory requests a *device segment*. This is
an allocation on the engine's device, to which the client receives handles.
embstore_proto.device_segment defines the protocol; embstore.device.shared defines the client's
rights and their consequences. When a call needs more memory, the client requests another segment.
The bytes are lent within the same bounds as the bytes of a host segment (`Inflight.lend`).

**Freeing.** The end of the connection or of its call does not free the segment: arrays of results
may outlive connection and call, and memory that another process has open must not be freed. The
segment is freed when no call here refers to it any more and its keepalive descriptor (tether) has
ended. The tether ends when the client closes it or the client's process ends. Until then the
segment's bytes stay lent. Freeing waits for the device, so a thread does it.

**A call** begins when the client's copies into the segment are complete. Waiting for them takes no
turn of the engine and no work of the device: the event that the client recorded after the copies is
polled, with a growing pause, until the call's deadline. A trainer that still computes its gradients
delays only its own call.

Event loop only, except `DeviceCall.blank`.
"""

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.engine.engine import Engine
from embstore.errors import CapacityError, EmbstoreError, InvalidArgumentError, OverloadedError
from embstore_proto import device_segment as wire
from embstore_proto.device_places import Place, Places, aligned
from embstore_proto.frame import Blank, Framed
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.path.caller import Caller
from embstore_server.path.inflight import Reservation
from embstore_server.path.traffic import Traffic
from embstore_server.transports.shared_memory.host_segment import segment_bytes

if TYPE_CHECKING:
    from embstore.device.shared import SharedMemory
    from embstore_server.transports.shared_memory.connection import Connection

VERBS = (
    *("Lookup", "LookupPooled", "Update", "UpdatePooled"),
    *("LookupStep", "LookupStepPooled", "UpdateStep"),
)
"""Verbs whose keys, gradients and rows can be in a device segment."""

_ROWS = np.dtype("<f4")
_PAUSE_FIRST_S, _PAUSE_MAX_S, _PAUSE_SHARE = 2e-5, 1e-3, 8
"""The shortest and the longest pause between two polls of an event, in seconds, and a divisor:
within these bounds, a pause is the time waited so far, divided by the divisor."""


class DeviceSegment:
    """Memory that a client has opened, or may open. The memory is lent until its tether has
    ended."""

    def __init__(self, memory: "SharedMemory", reservation: Reservation, traffic: Traffic) -> None:
        self.memory = memory
        self.size = reservation.reserved_bytes
        self._reservation = reservation
        self._traffic = traffic
        try:
            self._own, self.tether = socket.socketpair()
        except OSError as exc:
            raise CapacityError(f"no descriptors to share memory with a client: {exc}") from exc
        self._own.setblocking(False)
        traffic.device_segment_bytes += self.size

    @property
    def handles(self) -> wire.Handles:
        """The handles by which the client opens the segment."""
        exported = self.memory.exported
        return wire.Handles(self.size, exported.memory, exported.event_handle, exported.gpu)

    def close(self) -> None:
        """Release the segment: it is freed once the client has closed it."""
        asyncio.get_running_loop().add_reader(self._own, self._tether_ended)

    def _tether_ended(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._own)
        self._own.close()
        freed = [self.memory]
        del self.memory
        freeing = loop.run_in_executor(None, freed.clear)
        freeing.add_done_callback(self._freed)

    def _freed(self, _: "asyncio.Future[None]") -> None:
        self._traffic.device_segment_bytes -= self.size
        self._reservation.release()


class DeviceSide:
    """The device memory that a connection uses: one segment, or none."""

    def __init__(self, connection: "Connection") -> None:
        self.segment: DeviceSegment | None = None
        self.announced: int | None = None
        """Bytes of the segment that the next call uses; None: it does not use the segment."""
        self._connection = connection

    def close(self) -> None:
        """Release the segment."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def call(self) -> "DeviceCall | None":
        """Return the device memory of the next call; None: the call uses none."""
        announced, self.announced = self.announced, None
        return None if announced is None else DeviceCall(self, announced)

    async def grow_for(self, size: int) -> None:
        """Make a segment for a client that requested one, and has closed the previous one; send its
        handles, or the error."""
        connection = self._connection
        try:
            most = connection.port.segment_bytes_max
            if size > most:
                raise InvalidArgumentError(
                    f"expected a call of at most {most} bytes, found {size}; split the call"
                )
            service = connection.port.service
            deadline = monotonic() + service.settings.call_timeout_max_s
            principal = service.callers.principal(connection.authorization, ())
            self.close()
            await self.grow(
                size, Caller("DeviceSegment", connection.peer, deadline, principal=principal)
            )
        except EmbstoreError as exc:
            await connection.refuse(exc)

    async def grow(self, size: int, caller: Caller) -> DeviceSegment:
        """Make a segment of at least `size` bytes in place of the previous one, and send its
        handles.

        If this raises an EmbstoreError, the previous segment stays.
        """
        from embstore.device.runtime import EXPORTED_MULTIPLE_BYTES  # only for a GPU

        port = self._connection.port
        size = max(segment_bytes(size), EXPORTED_MULTIPLE_BYTES)
        reservation = port.service.lend(caller, size)
        try:
            memory = await port.service.run(caller, partial(_shared, byte_count=size))
            made = DeviceSegment(memory, reservation, port.traffic)
        except BaseException:
            reservation.release()
            raise
        self.close()
        self.segment = made
        try:
            await self._connection.send([wire.segment(made.handles)], made.tether.fileno())
        finally:
            made.tether.close()  # the client has the descriptor now
        return made


class DeviceCall:
    """The device memory of one call: first the call's arrays, then the rows of its reply."""

    def __init__(self, side: DeviceSide, announced: int) -> None:
        self.announced = announced
        self._side = side
        self._caller: Caller | None = None
        self._size, self._end = 0, announced
        """The size in bytes of the segment in which the rows are written, and the number of used
        bytes."""
        # The call has a reference of its own, because the segment may be released while the engine
        # executes the call.
        self._memory = self._rows_memory = None if side.segment is None else side.segment.memory
        if side.segment is not None:
            self._size = side.segment.size

    async def begin(self, verb: str, caller: Caller) -> None:
        """Wait until the client's copies are complete, at most until the call's deadline."""
        self._caller, memory = caller, self._memory
        if verb not in VERBS:
            raise InvalidArgumentError(
                f"expected host arrays in {verb}; only {', '.join(VERBS)} take arrays in a GPU's "
                "memory"
            )
        if memory is None or self.announced > self._size:
            raise InvalidArgumentError(
                f"expected arrays in the shared memory of a GPU of {self._size} bytes, found "
                f"{self.announced} announced"
            )
        began, pause = monotonic(), _PAUSE_FIRST_S
        while not memory.are_inputs_ready:
            await asyncio.sleep(pause)
            waited = monotonic() - began
            pause = min(max(waited / _PAUSE_SHARE, _PAUSE_FIRST_S), _PAUSE_MAX_S)

    def array(self, place: Place, what: str) -> Any:
        """Return the array at `place` in the device memory of the call; see `OnDevice`."""
        if place.end > self.announced:
            raise InvalidArgumentError(
                f"{what}: expected {place.byte_count} bytes at offset {place.offset}, found "
                f"{self.announced} bytes in the GPU's memory"
            )
        if not place.byte_count:
            return np.empty(place.shape, place.dtype)
        assert self._memory is not None
        return self._memory.array(place.offset, place.shape, place.dtype)

    async def expect(self, count: int) -> None:
        """Reserve space for `count` bytes of rows, after the arrays or in another segment."""
        assert self._caller is not None
        if aligned(self._end) + count > self._size:
            made = await self._side.grow(count, self._caller)
            self._rows_memory, self._size, self._end = made.memory, made.size, 0

    def blank(
        self, shapes: Sequence[tuple[int, ...]], others: Sequence[Any], dtype: str
    ) -> "DeviceBlank":
        """Return a message whose rows are in the segment, and which has no `others`.

        Runs on the engine thread.
        """
        if others:
            raise InvalidArgumentError(
                "expected early=false with rows in a GPU's memory, found early rows, which a "
                "client would have to join on the host"
            )
        if dtype != "float32":
            raise InvalidArgumentError(f"expected float32 rows in a GPU's memory, found {dtype}")
        places = Places()
        places.byte_count = self._end
        found = [places.add(tuple(map(int, shape)), _ROWS) for shape in shapes]
        if places.byte_count > self._size:
            raise OverloadedError(
                "a table was replaced while the call waited, and its rows do not fit; send the "
                "call again"
            )
        assert self._rows_memory is not None
        return DeviceBlank(self._rows_memory, found)


class DeviceBlank(Blank):
    """A message made before its rows are known; the rows are then written where the client reads
    them."""

    def __init__(self, memory: "SharedMemory", places: Sequence[Place]) -> None:
        self._row_places = places
        self.arrays: list[Any] = [memory.array(p.offset, p.shape, p.dtype) for p in places]
        self._stored = []  # nothing is rounded

    def add(self, array: Any) -> pb.Array:
        """Return the position of one of the message's arrays, for the header."""
        number = next(n for n, own in enumerate(self.arrays) if own is array)
        return self._row_places[number].stored()

    def framed(self, header: bytes) -> Framed:
        """Return the message with its serialised header; its payload stays where it was written."""
        size = len(header) + sum(place.byte_count for place in self._row_places)
        return Framed([b""], size, header)


def _shared(engine: Engine, byte_count: int) -> "SharedMemory":
    from embstore.device.shared import share

    with engine.tables.reading():
        return share(engine.device, byte_count)
