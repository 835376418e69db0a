"""Calls to a server of this host, through memory that it shares.

`embstore_proto.shared_memory` describes the frames. A connection carries one call at a time. So
there is one connection per running call, and one per result whose arrays are in use: NumPy reads
the rows in the shared-memory segment, where the server wrote them. The connection is free again
when the last array of the result is deleted. If a caller keeps more than RESULTS_MAX results, or
RESULTS_BYTES_MAX bytes, further results are copied.

Aborting a call closes its connection, and thereby notifies the server. A forked process cannot use
the connections of its parent.
"""

import mmap
import os
import socket
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import numpy as np
from grpc import StatusCode
from numpy.typing import NDArray

from embstore.commands import PartOf
from embstore.errors import EmbstoreError, OverloadedError
from embstore.results import ServerInfo
from embstore_client import device_segment
from embstore_client.copying import copy
from embstore_client.device_message import DeviceMessage
from embstore_client.device_segment import DeviceSide, OpenSegment
from embstore_client.free_connections import FreeConnections
from embstore_client.wire import WireError
from embstore_proto import device_segment as device_frames
from embstore_proto import shared_memory as frames
from embstore_proto.addresses import unix_socket_address
from embstore_proto.device_places import OnDevice
from embstore_proto.frame import Message, aligned
from embstore_proto.received import Copies, Received
from embstore_proto.shared_memory import INLINE_BYTES, Kind
from embstore_proto.status import ERROR_METADATA, error_of
from embstore_proto.verbs import Verb

RESULTS_MAX = 16
RESULTS_BYTES_MAX = 256 << 20

_READ_BYTES = 32 << 10
_PASSED_BYTES = socket.CMSG_SPACE(array("i").itemsize)
_FRESH_S = 0.05
_LOOK_S = 1.0
T = TypeVar("T")
_CODES = {code.value[0]: code for code in StatusCode}


class SharedMemoryWire:
    """The connections to one socket."""

    shares_memory = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        label: str,
        token: str = "",
        traceparent: Callable[[], str] | None = None,
    ) -> None:
        """`traceparent` returns the id of the current trace span, or "" without a span."""
        self._path = Path(os.path.abspath(path))
        self._hello = frames.hello(f"Bearer {token}" if token else "", label)
        self.traceparent = traceparent
        self._free: FreeConnections[_Connection] = FreeConnections()
        self._open: set[_Connection] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self.process = ""
        """The process id of the server at the other end of the newest connection."""
        self.copies = Copies()
        """The counts of results that were copied out of shared memory."""
        self.results: set[int] = set()
        """The `id` of the `_Loan` of each result whose arrays are in use."""

    def connected(self, info: ServerInfo) -> None:
        """Do nothing: this transport does not depend on the server's facts."""

    def close(self) -> None:
        """Close the connections and interrupt running calls. Arrays of results stay valid."""
        with self._lock:
            self._is_closed = True
            connections = tuple(self._open)
        for connection in connections:
            connection.cut_off()
        self.retire()

    def retire(self) -> None:
        """Begin no further call. Running calls continue."""
        self._is_closed = True
        while (connection := self._free.take(on_device=True)) is not None:  # of any kind
            self.forget(connection)

    # Calls

    def send(
        self,
        verb: Verb,
        header: bytes,
        message: Message | None,
        reply_bytes: int,
        deadline: float,
        part_of: PartOf | None = None,
    ) -> bytes | Received:
        """Send a call with one answer; see `Wire.send`."""
        with self._call(deadline, on_device=isinstance(message, DeviceMessage)) as call:
            call.send(verb, header, message, reply_bytes, part_of)
            _, received = call.receive()
        return received if verb.has_bulk_reply else received.header

    def share_device(self, deadline: float, name: str | None) -> None:
        """Map the memory of the server's GPU; see `Wire.share_device`."""
        device_segment.opened_gpu()  # so that a missing CuPy fails before memory is requested
        with self._call(deadline, on_device=True) as call:
            call.share_device(name)

    @contextmanager
    def receive(
        self, verb: Verb, header: bytes, deadline: float, part_of: PartOf | None = None
    ) -> Iterator[Iterator[bytes | Received]]:
        """Send a call, and yield the messages of its answer; see `Wire.receive`."""
        call = self._call(deadline)
        try:
            call.send(verb, header, None, 0, part_of)
            yield self._messages(verb, call)
        finally:
            call.give_up()  # has no effect on a call that has ended

    @staticmethod
    def _messages(verb: Verb, call: "_Call") -> Iterator[bytes | Received]:
        is_last = False
        while not is_last:
            is_last, received = call.receive()
            if is_last:
                call.end()
            yield received if verb.has_bulk_reply else received.header

    # Connections

    def _call(self, deadline: float, *, on_device: bool = False) -> "_Call":
        while (connection := self._free.take(on_device=on_device)) is not None:
            if connection.is_fresh():
                return _Call(self, connection, deadline)
            self.forget(connection)
        return _Call(self, self.connect(deadline), deadline)

    def connect(self, deadline: float) -> "_Connection":
        """Return a new connection. Raises WireError."""
        connection = _Connection(self._path, deadline)
        try:
            self.process = connection.greeted(self._hello)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._is_closed:
                self._open.add(connection)
                return connection
        connection.close()
        raise WireError(StatusCode.CANCELLED, "the connection was closed")

    def release(self, connection: "_Connection", *, is_whole: bool) -> None:
        """Take back a connection whose result is unused. Any thread may call this at any moment."""
        if not is_whole or self._is_closed or not self._free.add(connection):
            self.forget(connection)

    def forget(self, connection: "_Connection") -> None:
        """Close a connection."""
        self._open.discard(connection)
        connection.close()


class _Loan:
    """A connection in use by a call, or by an array of its result. The last user releases it, in
    any thread."""

    def __init__(self, wire: SharedMemoryWire, connection: "_Connection") -> None:
        self.wire, self.connection = wire, connection
        self.is_whole = False
        """Whether the call has ended properly, so that the connection can carry another call."""

    def __del__(self) -> None:
        self.wire.results.discard(id(self))
        self.wire.release(self.connection, is_whole=self.is_whole)


class _Result:
    """A part of a segment, for NumPy to read in place. It keeps its loan alive."""

    def __init__(self, loan: _Loan, segment: NDArray[np.uint8], begin: int, size: int) -> None:
        self.own = loan, segment
        self.__array_interface__ = {
            "data": (segment.__array_interface__["data"][0] + begin, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


class _Call:
    """One call, over one connection."""

    def __init__(self, wire: SharedMemoryWire, connection: "_Connection", deadline: float) -> None:
        self._wire = wire
        self._deadline = deadline
        self._loan: _Loan | None = _Loan(wire, connection)
        self._connection = connection
        self._on_device: DeviceMessage | None = None
        """The message of a call whose arrays and rows are in a GPU's memory; None: another call."""

    def send(
        self, verb: Verb, header: bytes, message: Message | None, reply_bytes: int,
        part_of: PartOf | None,
    ) -> None:  # fmt: skip
        """Write the payload where the server reads it, and send the request."""
        connection, offset = self._connection, None
        size, front = 0 if message is None else message.payload_bytes, []
        if isinstance(message, DeviceMessage):
            self._on_device = message
            front = [message.place(connection, reply_bytes, self._deadline)]
            reply_bytes = 0
        inline = size if size <= INLINE_BYTES else 0
        wanted = size - inline
        if reply_bytes > INLINE_BYTES:
            wanted = aligned(wanted) + reply_bytes
        if wanted > len(connection.segment):
            connection.ask_for(wanted, self._deadline)
        view: Any = memoryview(bytearray(inline))
        if size > inline:
            offset, view = 0, connection.segment[:size].data
        if message is not None and size:
            message.write(view, copy)
        if self._wire.traceparent is not None and (span := self._wire.traceparent()):
            front.append(frames.trace(span))
        front += [frames.part(part_of)] if part_of is not None else []
        seconds = max(self._deadline - monotonic(), 0.001)
        asked = frames.call(verb.name, seconds, header, view, offset)
        connection.send([*front, *asked], self._deadline)

    def share_device(self, name: str | None) -> None:
        """Map a segment of the GPU's memory, of the minimum size if no segment is mapped yet."""
        self._connection.device_segment_of(1, self._deadline, name)

    def receive(self) -> tuple[bool, Received]:
        """Return a pair: whether the answer's next message is the last one, and that message."""
        connection = self._connection
        kind, body = connection.receive(self._deadline)
        while kind in (Kind.SEGMENT, Kind.DEVICE_SEGMENT):
            if kind == Kind.SEGMENT:
                connection.take_segment(frames.segment_of(body))
            else:
                connection.take_device_segment(body)
            kind, body = connection.receive(self._deadline)
        if kind == Kind.ERROR:
            if connection.segment_bytes:  # it is unknown whether the server still has the segment
                self.give_up()
            self.end()
            raise _error_of(frames.refusal_of(body))
        answer = frames.answer_of(kind, body)
        if answer.offset is None:
            received = Received(answer.header, memoryview(bytearray(answer.inline)))
            if self._on_device is not None:
                received = received._replace(on_device=self._rows(self._on_device))
            return answer.is_last, received
        segment = connection.segment
        if answer.offset + answer.size > len(segment):
            raise EmbstoreError("expected rows in the shared memory, found them outside")
        wire = self._wire
        kept = len(wire.results)
        if kept >= RESULTS_MAX or kept * len(segment) > RESULTS_BYTES_MAX:
            wire.copies.bytes += answer.size
            own = segment[answer.offset : answer.offset + answer.size].copy()
            return answer.is_last, Received(answer.header, own.data)
        loan = self._loan
        assert loan is not None
        wire.results.add(id(loan))
        view = np.asarray(_Result(loan, segment, answer.offset, answer.size))
        return answer.is_last, Received(answer.header, view.data)

    def _rows(self, message: DeviceMessage) -> OnDevice:
        """Return the rows of an answer. Unless they are copied, they keep the connection in use."""
        wire, loan, segment = self._wire, self._loan, self._connection.device.segment
        assert segment is not None
        kept = len(wire.results)
        if kept >= RESULTS_MAX or kept * segment.byte_count > RESULTS_BYTES_MAX:
            return message.rows(segment, None)

        def lend() -> object:
            wire.results.add(id(loan))
            return loan

        return message.rows(segment, lend)

    def __enter__(self) -> "_Call":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end() if kind is None else self.give_up()

    def end(self) -> None:
        """Release the connection, which becomes free when no array of the result is left."""
        if self._loan is not None:
            self._loan.is_whole = True
            self._loan = None

    def give_up(self) -> None:
        """Close the connection, unless the call has ended."""
        if self._loan is not None:
            self._connection.cut_off()
            self._loan = None


class _Connection:
    """A socket and its segment. Only one thread may use it at a time, except for `cut_off`."""

    def __init__(self, path: Path, deadline: float) -> None:
        self.segment: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.device = DeviceSide()
        self._received = bytearray()
        self._descriptor = -1
        self._process = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._deadline = deadline
        self._wait_s = -1.0
        self._used_at = monotonic()
        try:
            self._socket.settimeout(max(deadline - monotonic(), 0.001))
            with unix_socket_address(path) as address:
                self._socket.connect(address)
        except OSError as exc:
            self._socket.close()
            raise WireError(StatusCode.UNAVAILABLE, f"{path}: {exc.strerror or exc}") from exc

    @property
    def segment_bytes(self) -> int:
        """Size of the server's present segment in bytes."""
        return len(self.segment)

    def greeted(self, hello: bytes) -> str:
        """Receive the server's greeting, and answer it; return the id of the server's process."""
        kind, body = self.receive(self._deadline)
        if kind != Kind.GREETING:
            raise WireError(StatusCode.INTERNAL, "no greeting came: is it an embstore server?")
        process = frames.process_of(body)
        self.send([hello], self._deadline)
        return process

    def is_fresh(self) -> bool:
        """Whether the server has kept this connection open since the last call over it. If that
        call was just now, nothing is checked: a check costs as much as sending a call."""
        if monotonic() - self._used_at < _FRESH_S:
            return True
        try:
            self._wait_at_most(0.0)  # with a time-out Python would wait for something to read
            self._socket.recv(1, socket.MSG_PEEK)
            return False  # the connection was closed, or has bytes that were not asked for
        except BlockingIOError:
            return True
        except OSError:
            return False

    def ask_for(self, size: int, deadline: float) -> None:
        """Replace the segment by one of at least `size` bytes."""
        self.segment = np.empty(0, np.uint8)  # the server frees it, even if it refuses
        self.take_segment(frames.segment_of(self._asked_for(frames.segment(size), deadline)))

    def device_segment_of(self, size: int, deadline: float, name: str | None = None) -> OpenSegment:
        """Return the GPU's segment if it has `size` bytes; otherwise replace it first."""
        segment = self.device.segment
        if segment is None or segment.byte_count < size:
            self.device.close()
            body = self._asked_for(device_frames.request(size), deadline)
            segment = self.take_device_segment(body, name)
        device_segment.check_is(segment.device, name)
        return segment

    def _asked_for(self, request: bytes, deadline: float) -> bytes:
        self.send([request], deadline)
        kind, body = self.receive(deadline)
        if kind == Kind.ERROR:
            error = _error_of(frames.refusal_of(body))
            raise NoSharedMemoryError(error) if isinstance(error.error, OverloadedError) else error
        return body

    def take_device_segment(self, body: bytes, name: str | None = None) -> OpenSegment:
        """Open the GPU's memory whose handles and tether have arrived."""
        tether, self._descriptor = self._descriptor, -1
        return self.device.take(body, tether, name)

    def take_segment(self, size: int) -> None:
        """Map the segment whose descriptor has arrived."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            raise EmbstoreError("expected a descriptor of shared memory, found none")
        try:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self.segment = np.frombuffer(mmap.mmap(descriptor, size, flags), np.uint8)
        finally:
            os.close(descriptor)

    def send(self, pieces: list[bytes | memoryview], deadline: float) -> None:
        """Send a frame. Raises WireError."""
        count = self._until(deadline, "not sent in time", self._socket.sendmsg, pieces)
        if count < sum(map(len, pieces)):
            rest = memoryview(b"".join(pieces))[count:]
            while len(rest):
                count = self._until(deadline, "not sent in time", self._socket.send, rest)
                rest = rest[count:]

    def _until(self, deadline: float, late: str, call: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a socket's call; `late` is the error's text if the deadline passes.

        Setting a time-out is itself a system call. So the time-out stays at `_LOOK_S`, and the
        clock is read whenever it passes; only in the last second a shorter time-out is set.
        """
        while True:
            left = deadline - monotonic()
            if left <= 0:
                raise WireError(StatusCode.DEADLINE_EXCEEDED, late)
            if (most := min(left, _LOOK_S)) != self._wait_s:
                self._wait_at_most(most)
            try:
                return call(*arguments)
            except TimeoutError:
                continue
            except OSError as exc:
                raise WireError(StatusCode.UNAVAILABLE, exc.strerror or str(exc)) from exc

    def _wait_at_most(self, seconds: float) -> None:
        self._socket.settimeout(seconds)
        self._wait_s = seconds

    def receive(self, deadline: float) -> tuple[int, bytes]:
        """Return the kind and the body of the next frame. Raises WireError."""
        received = self._received
        while True:
            if len(received) >= frames.HEAD_BYTES:
                size, kind, _ = frames.head_of(received)
                end = frames.HEAD_BYTES + size
                if len(received) >= end:
                    body = bytes(memoryview(received)[frames.HEAD_BYTES : end])
                    del received[:end]
                    self._used_at = monotonic()
                    return kind, body
            received += self._some(deadline)

    def _some(self, deadline: float) -> bytes:
        data, passed, _, _ = self._until(
            deadline, "no answer in time", self._socket.recvmsg, _READ_BYTES, _PASSED_BYTES
        )
        for level, kind, content in passed:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._drop_descriptor()
                self._descriptor = array("i", content[: array("i").itemsize])[0]
        if not data:
            raise WireError(StatusCode.UNAVAILABLE, "the server ended the connection")
        return data

    def _drop_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def cut_off(self) -> None:
        """Make a thread that waits for an answer raise an error. Any thread may call this."""
        if os.getpid() == self._process:  # in a forked child the socket is the parent's, too
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, and the open memory of the GPU."""
        self._socket.close()
        self.device.close()
        self._drop_descriptor()


class NoSharedMemoryError(WireError):
    """The server shares no more memory now. The call has not been sent yet."""

    def __init__(self, refused: WireError) -> None:
        super().__init__(refused.code, refused.text, refused.error)


def _error_of(refusal: frames.Refusal) -> WireError:
    code = _CODES.get(refusal.code, StatusCode.UNKNOWN)
    named = [(ERROR_METADATA, refusal.name)] if refusal.name else []
    error = error_of(code, refusal.text, named)
    return WireError(code, refusal.text, error, is_final=refusal.is_final)
