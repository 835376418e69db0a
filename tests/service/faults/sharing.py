"""A client of the shared-memory transport whose every byte is the test's own: frames and segment.

It imports little, so that a process that is forked to be killed has it at once.
"""

import array
import gc
import mmap
import os
import select
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore import commands as c
from embstore.config import Constant, Sgd
from embstore.errors import StoreClosedError
from embstore_proto import device_segment as device_frames
from embstore_proto import shared_memory as frames
from embstore_proto.addresses import unix_socket_address
from embstore_proto.shared_memory import INLINE_BYTES, Kind
from embstore_proto.verbs import VERBS
from tests.service.faults.served import PATIENCE_S, Served, on_loop_call, until
from tests.serving import patient

TRANSPORT = "shared_memory"
DIM, ROWS = 64, 20_000
_DESCRIPTORS_MAX = 16


class EndedError(Exception):
    """The server has ended the connection."""


class Said(NamedTuple):
    """A frame of the server."""

    kind: int
    body: bytes

    @property
    def refusal(self) -> frames.Refusal:
        """The error that it is."""
        assert self.kind == Kind.ERROR, self
        return frames.refusal_of(self.body)


class RawSharer:
    """A connection of frames. A context manager that closes it."""

    def __init__(self, path: str | Path, authorization: str = "") -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self._received = bytearray()
        self._descriptors: list[int] = []
        self.segment: NDArray[np.uint8] = np.empty(0, np.uint8)
        try:
            with unix_socket_address(Path(path)) as address:
                self.socket.connect(address)
            self.process = frames.process_of(self.next().body)
            self.say(frames.hello(authorization, "raw"))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RawSharer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and give up its segment, of which the map has a descriptor, too."""
        self.socket.close()
        self.segment = np.empty(0, np.uint8)
        while self._descriptors:
            os.close(self._descriptors.pop())

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    @property
    def has_answer(self) -> bool:
        """Whether something of the server waits to be read."""
        return bool(self._received or select.select([self.socket], [], [], 0)[0])

    def next(self) -> Said:
        """Return the next frame. Raises EndedError."""
        while True:
            if len(self._received) >= frames.HEAD_BYTES:
                size, kind, _ = frames.head_of(self._received)
                end = frames.HEAD_BYTES + size
                if len(self._received) >= end:
                    body = bytes(self._received[frames.HEAD_BYTES : end])
                    del self._received[:end]
                    return Said(kind, body)
            room = socket.CMSG_SPACE(_DESCRIPTORS_MAX * array.array("i").itemsize)
            try:
                data, passed, _, _ = self.socket.recvmsg(1 << 16, room)
            except ConnectionError:
                data, passed = b"", []
            for _, _, content in passed:
                self._descriptors += array.array("i", content)
            if not data:
                raise EndedError
            self._received += data

    def map(self, said: Said) -> None:
        """Map the segment that has come."""
        size, descriptor = frames.segment_of(said.body), self._descriptors.pop()
        try:
            self.segment = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        finally:
            os.close(descriptor)

    def ask_for(self, size: int) -> Said:
        """Ask for a segment; map it where it comes."""
        self.say(frames.segment(size))
        said = self.next()
        if said.kind == Kind.SEGMENT:
            self.map(said)
        return said

    def begin(self, command: c.Command[Any], seconds: float = PATIENCE_S) -> None:
        """Send a command, its payload in the segment where it is too large for the socket."""
        verb = VERBS[type(command).__name__]
        outgoing = verb.outgoing(command)
        header, message = outgoing.serialised(None), outgoing.message
        size = 0 if message is None else message.payload_bytes
        view, offset = memoryview(bytearray(size)), None
        if size > INLINE_BYTES:
            offset, view = 0, self.segment[:size].data
        if message is not None:
            message.write(view)
        self.say(b"".join(frames.call(verb.name, seconds, header, view, offset)))

    def answer(self) -> Said:
        """Return the last frame of an answer."""
        while True:
            said = self.next()
            if said.kind == Kind.SEGMENT:
                self.map(said)
            elif said.kind != Kind.PART:
                return said

    def execute(self, command: c.Command[Any]) -> Said:
        """Send a command, and return the last frame of its answer."""
        self.begin(command)
        return self.answer()

    def result(self, command: c.Command[Any]) -> Any:
        """Return what a command of a small answer without arrays returns."""
        said = self.execute(command)
        assert said.kind == Kind.RESULT, said.refusal
        answer = frames.answer_of(said.kind, said.body)
        return VERBS[type(command).__name__].answer(answer.header).value


class Sharer(RawSharer):
    """A connection with a segment of the device, which it does not open."""

    def ask_for_device(self, size: int) -> Said:
        """Ask for a segment, and return what is said."""
        self.say(device_frames.request(size))
        return self.next()

    def end_tether(self) -> None:
        """Say that nothing is open."""
        os.close(self._descriptors.pop())

    def begin_call(self, verb: str, header: bytes, announced: int | None) -> None:
        """Send a call, with so many bytes of arrays in the segment; None: it has nothing to do with
        that."""
        front = b"" if announced is None else device_frames.on_device(announced)
        self.say(front + b"".join(frames.call(verb, PATIENCE_S, header, b"", None)))

    def call(self, verb: str, header: bytes, announced: int | None) -> Said:
        """Send a call, and return what it is answered by."""
        self.begin_call(verb, header, announced)
        return self.answer()


# Commands


def make_wide(store: Any, name: str = "wide", value: float = 0.0) -> None:
    """Make a table of which a thousand rows are too many for the socket."""
    store.create_table(name, dim=DIM, rows=ROWS, optimizer=Sgd(1.0), initializer=Constant(value))


def keys(count: int, first: int = 0) -> NDArray[np.int64]:
    """Return keys in a row."""
    return np.arange(first, first + count, dtype=np.int64)


def lookup(count: int, table: str = "wide") -> c.Lookup:
    """Return a lookup of so many rows."""
    return c.Lookup((c.TableKeys(table, None, keys(count)),))


def update(count: int, table: str = "wide", value: float = 1.0) -> c.Update:
    """Return an update of so many rows."""
    gradients = np.full((count, DIM), value, np.float32)
    return c.Update((c.TableGradients(table, None, keys(count), gradients),))


def call_forever(reports: Connection, path: str, count: int) -> None:
    """Be a client that looks up and updates until it is killed; report each call when it is out."""
    with RawSharer(path) as sharer:
        sharer.ask_for(1 << 20)
        while True:
            for command in (lookup(count), update(count, value=0.0)):
                sharer.begin(command)
                reports.send(True)
                sharer.answer()


# What a server has


def descriptors() -> int:
    """Return how many descriptors this process has that are sockets or memory without a name."""
    return sum(map(_is_shared, os.listdir("/proc/self/fd")))


def _is_shared(descriptor: str) -> bool:
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:  # closed since
        return False
    return target.startswith(("socket:", "/memfd:embstore"))


class Owned(NamedTuple):
    """What a server keeps for the clients that share its memory."""

    connections: int
    segment_bytes: int
    lent_bytes: int
    reserved_bytes: int
    descriptors: int

    @staticmethod
    def of(served: Served) -> "Owned":
        """Look."""

        def look() -> Owned:
            traffic, inflight = served.service.traffic[TRANSPORT], served.service.inflight
            return Owned(
                traffic.connections or 0,
                traffic.segment_bytes,
                inflight.lent_bytes,
                inflight.reserved_bytes,
                descriptors(),
            )

        found: Owned = on_loop_call(look)
        return found


def await_owned(served: Served, expected: Owned) -> None:
    """Wait until a server keeps no more than that, and errors no longer keep a client's maps."""

    found = expected

    def is_free() -> bool:
        nonlocal found
        gc.collect()
        found = Owned.of(served)
        return all(n <= most for n, most in zip(found, expected, strict=True))

    try:
        until(is_free)
    except AssertionError as exc:
        raise AssertionError(f"expected at most {expected}, found {found}") from exc


def connect_as_nobody(reports: Connection, path: str) -> None:
    """Connect as a user who is not the server's; report how that ends."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sharer:
        sharer.settimeout(PATIENCE_S)
        sharer.connect(path)
        reports.send("connected")
        try:
            reports.send(str(sharer.recv(100)) if sharer.recv(1) else "ended")
        except ConnectionError:
            reports.send("ended")


def use_what_was_inherited(reports: Connection, path: str, count: int) -> None:
    """Fork, have the child use and close what it inherits of a client, and go on as the parent."""
    with patient(f"unix:{path}") as store:
        rows = store.lookup({"wide": keys(count)})["wide"]
        child = os.fork()
        if not child:
            try:
                store.tables()
            except StoreClosedError as exc:
                reports.send(type(exc).__name__)
            del rows
            store.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        reports.send(not rows.any())
        del rows
        reports.send(not store.lookup({"wide": keys(count)})["wide"].any())
