"""One client's connection: frames arrive, one call runs at a time, frames are sent.

The socket never blocks. A lookup that need not wait is answered where it was read, together with
lookups of other connections that arrived at the same time (`Calls.merged_lookups`). Every other
call has a task. Frames that arrive during a call wait, within a bound, for its end; the end of the
connection cancels the call. Rows are written into the segment after the request: `expect` reserves
their space before the engine's turn. If the rows do not fit after all, because a table was created
again meanwhile, they are copied once.

Event loop only, except `SharedIncoming.blank`.
"""

import asyncio
import socket
from array import array
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from embstore.commands import PartOf
from embstore.errors import DeadlineError, EmbstoreError, InvalidArgumentError
from embstore_proto import device_segment as device_wire
from embstore_proto import shared_memory as wire
from embstore_proto.frame import ALIGNMENT, HEADER_BYTES_MAX, Blank, Framed, aligned
from embstore_proto.received import Received
from embstore_proto.shared_memory import INLINE_BYTES, Kind
from embstore_proto.status import answer_of, message_of
from embstore_proto.verbs import VERBS, Verb
from embstore_server.path.caller import Caller
from embstore_server.path.calls import BRIEF_BYTES
from embstore_server.path.inflight import Reservation
from embstore_server.transports.shared_memory.device_segment import DeviceCall, DeviceSide
from embstore_server.transports.shared_memory.host_segment import HostSegment, segment_bytes

if TYPE_CHECKING:
    from embstore_server.transports.shared_memory.port import SharedMemoryPort

TRANSPORT = "shared_memory"

_READ_ONCE = {"Update"}
"""Verbs whose rows the engine reads once: an update checks, applies and logs sums of its rows."""
_LOOKUP = VERBS["Lookup"]
_AT_ONCE_BYTES = 512 << 10
"""Most bytes of keys in a lookup that is answered directly; the keys are copied first."""
_READ_BYTES = 64 << 10
_LABEL_CHARACTERS_MAX = 200
_MADE_AT_ONCE_BYTES = 1 << 20
"""Making a segment of this size takes a fifth of a millisecond; a larger one is made on a
thread."""


class Connection:
    """A client, as long as its socket is open."""

    def __init__(
        self, port: "SharedMemoryPort", own: socket.socket, peer: str, process: int
    ) -> None:
        self.port = port
        self.peer = peer
        self.process = process
        """The id of the client's process in `Processes`."""
        self.authorization = self.label = ""
        self._frame_bytes_max = port.frame_bytes_max("")
        self.traceparent = ""  # of the next call, as the next field
        self.part_of: PartOf | None = None
        self.segment: HostSegment | None = None
        self.device = DeviceSide(self)
        self.idle_since: float | None = None
        """The time at which the last call ended; None: a call is running."""
        self._socket = own
        self._received = bytearray()
        self._more: asyncio.Future[bytes | memoryview] | None = None  # set while no call runs
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._serve())
        port.listen_to(self, own)

    def close(self) -> None:
        """End the connection, and its running call."""
        self._task.cancel()
        if self._socket.fileno() < 0:
            return
        self.port.forget(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._give_up_segment()
        self.device.close()
        self.port.closed(self)

    # In

    def read(self) -> "tuple[SharedIncoming, Received] | None":
        """Read from the socket; return a lookup that may be answered directly, or None. All other
        frames wake the connection's task, unless a call is running."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._received += data
        if self._more is None or self._more.done():  # a call is running
            if not data or len(self._received) > self._frame_bytes_max:
                self.close()  # it has disconnected, or sends without waiting for answers
            return None
        if not data:
            self.close()
            return None
        found = self._lookup()
        if found is None:
            self._more.set_result(b"")
        return found

    def _lookup(self) -> "tuple[SharedIncoming, Received] | None":
        """Return the received lookup; None: it is incomplete, or other frames have arrived, too."""
        received = self._received
        if len(received) < wire.HEAD_BYTES:
            return None
        size, kind, small = wire.head_of(received)
        begin = wire.HEAD_BYTES
        if kind == Kind.MAP and len(received) >= begin + size + wire.HEAD_BYTES:
            part = bytes(received[begin : begin + size])
            begin += size
            size, kind, small = wire.head_of(received[begin : begin + wire.HEAD_BYTES])
            begin += wire.HEAD_BYTES
        else:
            part = b""
        if kind != Kind.CALL or len(received) != begin + size:
            return None
        if self.device.announced is not None or self.traceparent:  # by earlier frames
            return None
        try:
            asked = wire.call_of(bytes(received[begin:]), small)
            if asked.verb != _LOOKUP.name or asked.size > _AT_ONCE_BYTES:
                return None
            self.part_of = wire.part_of(part) if part else None
            call = SharedIncoming(self, asked)
            return call, call.request(_LOOKUP)
        except InvalidArgumentError:
            return None

    def answer(self, pieces: "list[bytes | memoryview] | None") -> None:
        """Send the answer of a lookup that `read` returned; None: the task answers the lookup."""
        assert self._more is not None
        if not pieces:
            self._more.set_result(b"")
            return
        self._received.clear()
        self.idle_since = monotonic()
        try:
            count = self._socket.sendmsg(pieces)
        except BlockingIOError:
            count = 0
        except OSError:
            self.close()
            return
        if count < sum(map(len, pieces)):
            self._more.set_result(memoryview(b"".join(pieces))[count:])

    async def _serve(self) -> None:
        """Answer frames, one after another, until the client disconnects."""
        try:
            await self.send([wire.greeting(self.port.service.process)])
            while True:
                kind, small, body = await self._frame()
                match kind:
                    case Kind.CALL:
                        await self._answer_call(SharedIncoming(self, wire.call_of(body, small)))
                    case Kind.SEGMENT:
                        await self._grow_for(wire.segment_of(body))
                    case Kind.DEVICE_SEGMENT:
                        await self.device.grow_for(device_wire.size_of(body))
                    case Kind.ON_DEVICE:
                        self.device.announced = device_wire.size_of(body)
                    case Kind.TRACE:
                        self.traceparent = wire.trace_of(body)[:_LABEL_CHARACTERS_MAX]
                    case Kind.MAP:
                        self.part_of = wire.part_of(body)
                    case Kind.HELLO:
                        self.authorization, label = wire.said(body)
                        self.label = label[:_LABEL_CHARACTERS_MAX]
                        self._frame_bytes_max = self.port.frame_bytes_max(self.authorization)
                    case _:
                        raise InvalidArgumentError(f"expected a call, found a frame of kind {kind}")
        except EmbstoreError as exc:  # no error of a call: a frame is invalid
            with suppress(OSError):
                self._socket.send(_refusal(exc))
        finally:
            self.close()

    async def _frame(self) -> tuple[int, int, bytes]:
        """Return the next frame's kind, the small integer in its head, and its body."""
        received = self._received
        self.idle_since = monotonic()
        while True:
            if len(received) >= wire.HEAD_BYTES:
                size, kind, small = wire.head_of(received)
                if size > self._frame_bytes_max:
                    raise InvalidArgumentError(
                        f"expected a frame of at most {self._frame_bytes_max} bytes, found {size}; "
                        'larger ones travel by gRPC: connect(transport="grpc")'
                    )
                end = wire.HEAD_BYTES + size
                if len(received) >= end:
                    body = bytes(memoryview(received)[wire.HEAD_BYTES : end])
                    del received[:end]
                    self.idle_since = None
                    return kind, small, body
            self._more = self._loop.create_future()
            try:
                unsent = await self._more
            finally:
                self._more = None
            await self._send_all(unsent)

    # The segment

    def _give_up_segment(self) -> None:
        if self.segment is not None:
            self.port.traffic.segment_bytes -= self.segment.size
            self.segment.close()
            self.segment = None

    async def _grow_for(self, size: int) -> None:
        """Make a segment for a client that requested one, and send it, or the error."""
        try:
            most = self.port.segment_bytes_max
            if size > most:
                raise InvalidArgumentError(
                    f"expected a call of at most {most} bytes, found {size}; split the call"
                )
            principal = self.port.service.callers.principal(self.authorization, ())
            caller = Caller("HostSegment", self.peer, monotonic(), principal=principal)
            await self.grow(size, caller)
        except EmbstoreError as exc:
            await self.refuse(exc)

    async def grow(self, size: int, caller: Caller) -> None:
        """Make a segment of at least `size` bytes in place of the previous one, and send it."""
        size = segment_bytes(size)
        self._give_up_segment()
        reservation = self.port.service.lend(caller, size)
        try:
            if size <= _MADE_AT_ONCE_BYTES:
                made = HostSegment(size, reservation)
            else:
                made = await self._made(size, reservation)
        except BaseException:
            reservation.release()
            raise
        try:
            self.segment = made
            self.port.traffic.segment_bytes += size
            await self.send([wire.segment(size)], made.descriptor)
        finally:
            made.passed()

    async def _made(self, size: int, reservation: Reservation) -> HostSegment:
        """Make a segment on a thread."""
        making = self._loop.run_in_executor(None, HostSegment, size, reservation)
        try:
            return await asyncio.shield(making)
        except BaseException:
            making.add_done_callback(_drop)  # the thread may still make it, in vain
            raise

    # Calls

    async def _answer_call(self, call: "SharedIncoming") -> None:
        calls, service = self.port.calls, self.port.service
        asked = call.asked
        verb = VERBS.get(asked.verb)
        if verb is None:
            await call.refuse(InvalidArgumentError(f"there is no verb {asked.verb!r}"))
            return
        async with calls.answered(verb.name, call) as caller:
            calls.let_in(call, caller, verb)
            request: list[Any] = [call.request(verb)]
            caller.received_bytes = len(asked.header) + asked.size
            if call.device is not None:
                caller.received_bytes += call.device.announced
                await call.device.begin(verb.name, caller)
            caller.brief = verb.is_bulk and caller.received_bytes <= BRIEF_BYTES
            if verb.is_bulk:
                most, limit = service.call_bytes_max(caller)
                sent_bytes = caller.received_bytes - len(asked.header)
                if sent_bytes > most + HEADER_BYTES_MAX:  # with the padding of arrays, as elsewhere
                    raise InvalidArgumentError(
                        f"expected a call of at most {most} bytes ({limit}), found "
                        f"{sent_bytes}; split the call"
                    )
            with service.reservation(caller) as reservation:
                if verb.is_bulk:
                    reservation.add(caller.received_bytes)
                await calls.answer(verb, call, caller, request, reservation)

    # Out

    async def refuse(self, error: Exception, *, is_final: bool = False) -> None:
        """Send an error."""
        await self.send([_refusal(error, is_final=is_final)])

    async def send(self, pieces: "list[bytes | memoryview]", descriptor: int | None = None) -> None:
        """Send a frame, and wait until the socket's buffer has taken all of it."""
        passed = []
        if descriptor is not None:
            passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
        while True:
            try:
                count = self._socket.sendmsg(pieces, passed)
                break
            except BlockingIOError:
                await self._writable()
            except OSError as exc:  # it has disconnected
                raise asyncio.CancelledError from exc
        if count < sum(map(len, pieces)):
            await self._send_all(memoryview(b"".join(pieces))[count:])

    async def _send_all(self, rest: bytes | memoryview) -> None:
        """Send bytes as the client receives them."""
        while len(rest):
            await self._writable()
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                continue
            except OSError as exc:
                raise asyncio.CancelledError from exc

    async def _writable(self) -> None:
        seconds = self.port.service.settings.read_timeout_s
        ready = asyncio.Event()
        self._loop.add_writer(self._socket, ready.set)
        try:
            async with asyncio.timeout(seconds):
                await ready.wait()
        except TimeoutError:
            self.close()
            raise DeadlineError(
                f"the client read nothing of the reply for {seconds:g} s (the setting "
                "read_timeout_s)"
            ) from None
        finally:
            if self._socket.fileno() >= 0:
                self._loop.remove_writer(self._socket)


class SharedIncoming:
    """One call, as its connection represents it."""

    transport = TRANSPORT
    certificate_names: Sequence[str] = ()

    def __init__(self, connection: Connection, asked: wire.Call) -> None:
        self.asked = asked
        self.authorization = connection.authorization
        self._connection = connection
        self._caller: Caller | None = None
        self._segment = connection.segment  # this call's segment, and no later one
        self._end = 0  # end of the used part of the segment
        self.device: DeviceCall | None = connection.device.call()
        self._traceparent, connection.traceparent = connection.traceparent, ""
        self._part_of, connection.part_of = connection.part_of, None

    def caller(self, verb: str) -> Caller:
        """Return the caller, with the call's deadline."""
        connection = self._connection
        service = connection.port.service
        deadline = monotonic() + min(self.asked.seconds, service.settings.call_timeout_max_s)
        self._caller = service.caller_of(
            verb,
            connection.peer,
            deadline,
            connection.label,
            traceparent=self._traceparent,
            part_of=self._part_of,
            process=connection.process,
        )
        return self._caller

    def request(self, verb: Verb) -> Received:
        """Return the request; if it is in the segment, the reply will be written after it."""
        asked, segment = self.asked, self._segment
        copies = self._connection.port.traffic.copies
        if asked.offset is None:
            return Received(asked.header, memoryview(asked.inline), on_device=self.device)
        size = 0 if segment is None else segment.size
        end = asked.offset + asked.size
        if not verb.is_bulk or segment is None or end > size or asked.offset % ALIGNMENT:
            raise InvalidArgumentError(
                f"expected a payload in the segment of {size} bytes, found {asked.size} at "
                f"{asked.offset}"
            )
        self._end = end
        payload = segment.memory[asked.offset : end]
        once = verb.name in _READ_ONCE
        return Received(asked.header, payload, copies, None, once, self.device)

    def has_room(self, count: int) -> bool:
        """Return whether `count` bytes fit in the reply without a call of `expect`."""
        segment = self._segment
        return count <= INLINE_BYTES or (
            segment is not None and aligned(self._end) + count <= segment.size
        )

    async def expect(self, count: int, reservation: Reservation | None) -> None:
        """Reserve `count` bytes in the segment, which already counts as in flight."""
        if self.device is not None:
            await self.device.expect(count)
            return
        if self.has_room(count):
            return
        assert self._caller is not None
        await self._connection.grow(count, self._caller)
        self._segment = self._connection.segment
        self._end = 0

    def blank(
        self,
        room: int,
        shapes: Sequence[tuple[int, ...]],
        others: Sequence[NDArray[Any]],
        dtype: str,
    ) -> Blank:
        """Return a message whose payload is in the segment, or small. Any thread."""
        if self.device is not None:
            return self.device.blank(shapes, others, dtype)
        return Blank(room, shapes, others, self._lend, dtype)

    def _lend(self, size: int) -> memoryview:
        segment, begin = self._segment, aligned(self._end)
        memory = memoryview(b"") if segment is None else segment.memory
        if size <= INLINE_BYTES or begin + size > len(memory):
            return memoryview(bytearray(size))
        self._end = begin + size
        return memory[begin : begin + size]

    def answer_at_once(self, reply: Framed | None) -> None:
        """Send the one message of the answer; None: the call has to wait."""
        self._connection.answer(reply and self._placed(reply, is_last=True))

    def _placed(self, reply: Framed, *, is_last: bool) -> "list[bytes | memoryview] | None":
        """Return an answer's pieces if its payload is small, or in the segment already; otherwise
        None."""
        if reply.lent is not None and self._is_in_segment(reply.lent):
            begin = self._end - len(reply.lent)
            return wire.answer(is_last, reply.header, reply.lent, begin)
        parts = _parts_of(reply)
        if sum(map(len, parts)) > INLINE_BYTES:
            return None
        return wire.answer(is_last, reply.header, b"".join(parts), None)

    async def send(self, reply: Framed, *, is_last: bool) -> None:
        """Send a message of the answer."""
        connection = self._connection
        pieces = self._placed(reply, is_last=is_last)
        if pieces is not None:
            await connection.send(pieces)
            return
        parts = _parts_of(reply)
        size = sum(map(len, parts))
        await self.expect(size, None)
        segment = self._segment
        assert segment is not None
        begin = end = aligned(self._end)
        for part in parts:
            segment.memory[end : end + len(part)] = part
            end += len(part)
        connection.port.traffic.copies.bytes += size
        self._end = end
        await connection.send(wire.answer(is_last, reply.header, segment.memory[begin:end], begin))

    def _is_in_segment(self, lent: memoryview) -> bool:
        segment = self._segment
        return segment is not None and lent.obj is segment.memory.obj

    async def refuse(self, error: Exception, *, is_final: bool = False) -> None:
        """End the call with an error."""
        await self._connection.refuse(error, is_final=is_final)


def _refusal(error: Exception, *, is_final: bool = False) -> bytes:
    name = type(error).__name__ if isinstance(error, EmbstoreError) else ""
    code: Any = answer_of(error).code.value
    return wire.refusal(code[0], name, message_of(error), is_final=is_final)


def _parts_of(reply: Framed) -> "list[bytes | memoryview]":
    """Return the parts of a payload."""
    return reply.parts[1:] if reply.lent is None else [reply.lent]


def _drop(making: "asyncio.Future[HostSegment]") -> None:
    """Drop a segment whose connection has ended."""
    if making.exception() is None:
        making.result().passed()
        making.result().close()
