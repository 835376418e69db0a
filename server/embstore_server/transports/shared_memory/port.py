"""The Unix socket at which clients on this host request shared memory.

The socket belongs to the server's user alone (mode 0600), and the kernel reports each client's
user: other users are refused, even if the mode of the socket has been changed. Clients need a
token, as over gRPC.

**Reading.** The port waits for all connections by an epoll of its own; the event loop sees only the
epoll's descriptor. In this way the port finds lookups that arrive together, and answers them as
one.

A socket that a killed server has left is replaced. If another server serves the socket, or the file
is no socket, the file is left alone, and this server does not start. A path that is too long for
the kernel is opened through the descriptor of its directory.
"""

import asyncio
import os
import select
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from time import monotonic

from embstore.errors import InvalidArgumentError, UnauthenticatedError
from embstore_proto.addresses import unix_socket_address
from embstore_proto.frame import HEADER_BYTES_MAX
from embstore_proto.shared_memory import INLINE_BYTES
from embstore_server.path.calls import Calls
from embstore_server.path.service import Service
from embstore_server.transports.shared_memory.connection import TRANSPORT, Connection
from embstore_server.transports.shared_memory.processes import Processes

_IDLE_S = 120.0
"""Seconds after which a connection without a call is closed, and its segment released."""
_LOOK_S = 10.0
_AGAIN_S = 0.5
_FRAME_BYTES_MAX = HEADER_BYTES_MAX + INLINE_BYTES + 1024
_UNKNOWN_BYTES_MAX = 128 << 10
"""Most bytes of a frame, until its sender has shown a valid token."""
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128


class SharedMemoryPort:
    """The transport of a service, which listens at `path`; an empty path turns the transport
    off."""

    def __init__(self, service: Service) -> None:
        """Listen at the path. Raises InvalidArgumentError if another server uses the path, or no
        socket can be made there."""
        self.service = service
        self.calls = Calls(service)
        self.traffic = service.traffic[TRANSPORT]
        self.traffic.connections = 0
        self.processes = Processes(self._process_ended)
        self._connections: set[Connection] = set()
        self._by_descriptor: dict[int, Connection] = {}
        self._epoll = select.epoll()
        self._socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._readable)
        path = service.settings.socket_path
        self.path = "" if path is None else os.path.abspath(path)
        if path is not None:
            self._listen(Path(self.path))

    def _listen(self, path: Path) -> None:
        _remove_left(path)
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own.setblocking(False)
        try:
            with unix_socket_address(path) as address:
                own.bind(address)
            os.chmod(path, 0o600)
            own.listen(_BACKLOG)
        except OSError as exc:
            own.close()
            raise InvalidArgumentError(
                f"cannot listen on the socket {path}: {exc.strerror or exc}; give another "
                "--socket, or --socket off"
            ) from exc
        found = os.stat(path)
        self._identity = found.st_dev, found.st_ino
        self._socket = own
        self._loop.add_reader(own, self._accept)
        self._watching = self._loop.create_task(self._end_idle())
        self.service.socket = self.path

    @property
    def segment_bytes_max(self) -> int:
        """The size of the largest segment in bytes: room for a request and a reply."""
        return 2 * self.service.engine.tables.limits.call_bytes_max + (1 << 20)

    def frame_bytes_max(self, authorization: str) -> int:
        """Return the largest size in bytes of a frame from a client with this authorization (empty:
        the client has sent none yet)."""
        try:
            self.service.callers.principal(authorization, ())
        except UnauthenticatedError:
            return _UNKNOWN_BYTES_MAX
        return _FRAME_BYTES_MAX

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            own, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # the client has disconnected
            return
        except OSError:  # no descriptor is left: the client waits
            self._loop.remove_reader(self._socket)
            self._loop.call_later(_AGAIN_S, self._accept_again)
            return
        pid, uid, _ = _CREDENTIALS.unpack(
            own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        is_full = len(self._connections) >= self.service.settings.connections_max
        if uid not in (os.geteuid(), 0) or is_full or self.service.stopping:
            own.close()
            return
        own.setblocking(False)
        self._connections.add(Connection(self, own, f"unix:{pid}", self.processes.watched(pid)))
        self.traffic.connections = len(self._connections)

    def _process_ended(self, process: int) -> None:
        if self.service.is_open:  # otherwise there are no sessions
            self.service.engine.sessions.process_ended(process)

    def _readable(self) -> None:
        """Read from the readable connections; answer the lookups that need not wait."""
        found = []
        for descriptor, _ in self._epoll.poll(0):
            connection = self._by_descriptor.get(descriptor)
            one = connection and connection.read()
            if one:
                found.append(one)
        if found:
            for (call, _), reply in zip(
                found, self.calls.merged_lookups.answers(found), strict=True
            ):
                call.answer_at_once(reply)

    def listen_to(self, connection: Connection, own: socket.socket) -> None:
        """Read from a connection whenever its socket has data."""
        self._by_descriptor[own.fileno()] = connection
        self._epoll.register(own, select.EPOLLIN)

    def forget(self, own: socket.socket) -> None:
        """Stop reading from a socket that is about to be closed."""
        del self._by_descriptor[own.fileno()]
        self._epoll.unregister(own)

    def _accept_again(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._accept)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self.traffic.connections = len(self._connections)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for connection in tuple(self._connections):
                since = connection.idle_since
                if since is not None and monotonic() - since > _IDLE_S:
                    connection.close()

    def close(self) -> None:
        """End every connection, and stop listening."""
        for connection in tuple(self._connections):
            connection.close()
        self.processes.close()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        if self._socket is None:
            return
        assert self._watching is not None
        self._watching.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        with suppress(OSError):
            found = os.stat(self.path)
            if (found.st_dev, found.st_ino) == self._identity:  # else it is another server's socket
                os.unlink(self.path)


def _remove_left(path: Path) -> None:
    """Remove a socket that a killed server left. Raises InvalidArgumentError if the file is
    anything else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as exc:
        raise InvalidArgumentError(
            f"cannot listen on the socket {path}: {exc.strerror or exc}"
        ) from exc
    if not stat.S_ISSOCK(mode):
        raise InvalidArgumentError(
            f"expected {path} to be free for a socket, found another kind of file: remove it, or "
            "give another --socket"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, unix_socket_address(path) as a:
        try:
            probe.connect(a)
        except OSError:
            os.unlink(path)
            return
    raise InvalidArgumentError(
        f"cannot listen on the socket {path}: is another server running there? Give another "
        "--socket, or --socket off"
    )
