"""The gRPC port: its server, with health and reflection.

The port is bound when the server is made, so that a port in use is reported at once. gRPC's default
of sharing the port silently with another server (SO_REUSEPORT) is turned off.

All connections are counted together, and not by address as in REST: gRPC's Python API shows no
connections, and reveals an address only in a call.
"""

import asyncio
from contextlib import suppress
from typing import Any, Protocol

import grpc

from embstore.errors import InvalidArgumentError
from embstore_proto.frame import CHUNK_BYTES_MAX
from embstore_server.access.certificates import Certificates
from embstore_server.path.service import Service
from embstore_server.transports.grpc import health, reflecting
from embstore_server.transports.grpc.health import Health
from embstore_server.transports.grpc.receiving import Receiving
from embstore_server.transports.grpc.reflecting import Reflection
from embstore_server.transports.grpc.rpc import SERVICE_NAME, GrpcCalls

_RECEIVED_MARGIN = 2
"""Unary messages of up to this multiple of their limit are received, so that a message above the
limit is refused with a reason."""

_FRAME_BYTES = 1 << 10

PINGS_APART_MS = 10_000
"""A client whose call waits can ask at these intervals whether the server is alive.

gRPC's own default of 5 minutes would disconnect clients that legitimately wait for minutes.
"""

_MOST = 2**31 - 1
"""The largest value of gRPC's options, which are C ints."""

_IDLE_MS = 120_000
"""The idle time after which a connection is closed; its client connects again for the next call."""

_UNCOMPRESSED = 1
"""The bit of the encoding "identity".

Compression is refused, because a compressed message may grow a thousandfold before any limit counts
it. gRPC refuses a call with such a message (UNIMPLEMENTED) without reading the message.
"""

UNREAD_BYTES = 1 << 17
"""Bytes that a client can send of a message that no handler awaits yet.

In a data centre a client need not pause because of this bound. By default, gRPC would let the
number grow to 128 MB for a client that sends fast.
"""

_LAST_REPLIES_S = 1.0
"""Seconds at the end for the answers of calls that were cut off, and for messages that are being
sent."""


class Streams(Protocol):
    """Streams that are no calls of the store, such as the streams of standbys."""

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the methods, for `add_generic_rpc_handlers`."""

    def end(self) -> None:
        """End all streams."""


class GrpcServer:
    """The gRPC server of a service, at `address`."""

    def __init__(self, service: Service, streams: Streams) -> None:
        """Serve calls and `streams`."""
        settings = service.settings
        handshake_ms = min(int(1000 * settings.handshake_timeout_s), _MOST)
        received_max = max(_RECEIVED_MARGIN * settings.unary_bytes_max, CHUNK_BYTES_MAX)
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", received_max + _FRAME_BYTES),
                ("grpc.max_send_message_length", -1),  # the server's own limits apply, by name
                ("grpc.http2.min_ping_interval_without_data_ms", PINGS_APART_MS),
                ("grpc.max_allowed_incoming_connections", min(settings.connections_max, _MOST)),
                ("grpc.server_handshake_timeout_ms", handshake_ms),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.compression_enabled_algorithms_bitset", _UNCOMPRESSED),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
            ]
        )
        self._service = service
        self._streams = streams
        receiving = Receiving(received_max, settings.inflight_bytes_max)
        self._calls = GrpcCalls(service, receiving)
        self._health = Health(
            SERVICE_NAME, settings.handshake_timeout_s, service.memory_trim.release
        )
        names = (SERVICE_NAME, health.SERVICE_NAME, reflecting.SERVICE_NAME)
        reflection = Reflection(service, receiving, names)
        for one in (self._calls, streams, self._health, reflection):
            self._server.add_generic_rpc_handlers((one.handlers(),))
        self._failing: asyncio.Task[None] | None = None
        self.address = _bind(self._server, service)

    async def start(self) -> None:
        """Accept connections; health checks get NOT_SERVING until `ready`."""
        await self._server.start()

    async def ready(self) -> None:
        """Answer health checks with SERVING from now on, until the store fails or the server stops,
        and with NOT_SERVING while there is no disk space."""
        await self._say()

        async def say_failed() -> None:
            await self._service.failed.wait()
            await self._say()

        self._service.disk_space.changed = self._say
        self._failing = asyncio.create_task(say_failed())

    async def _say(self) -> None:
        self._health.say(is_serving=not self._service.unready)

    async def stop(self, drain_s: float) -> None:
        """Refuse new calls, and give running calls `drain_s` seconds; then cut them off.

        Calls of health and reflection are not awaited: a watcher of health never ends.
        """
        if self._failing is not None:
            self._failing.cancel()
        self._health.say(is_serving=False)
        stopped = asyncio.create_task(self._server.stop(drain_s + _LAST_REPLIES_S))
        await self._idle_within(drain_s)
        self._service.cut_off()
        await self._idle_within(_LAST_REPLIES_S)
        self._streams.end()
        await self._server.stop(_LAST_REPLIES_S)
        await stopped

    async def _idle_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._service.idle.wait()


def _bind(server: Any, service: Service) -> str:
    settings = service.settings
    try:
        if service.certificates is None:
            port = server.add_insecure_port(settings.listen)
        else:
            port = server.add_secure_port(settings.listen, _credentials(service.certificates))
    except RuntimeError as exc:
        raise in_use("listen", settings.listen) from exc
    return f"{settings.listen.rpartition(':')[0]}:{port}"


def _credentials(certificates: Certificates) -> Any:
    """Return credentials that read the current certificates for each connection."""

    def current() -> Any:
        key, chain, authorities, _ = certificates.served
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)

    first = current()
    is_mutual = certificates.served.authorities is not None
    return grpc.dynamic_ssl_server_credentials(
        first, current, require_client_authentication=is_mutual
    )


def in_use(option: str, address: str) -> InvalidArgumentError:
    """Return the error about an address on which another server listens."""
    return InvalidArgumentError(
        f"cannot listen on {address}: is another server running there? Give another --{option}"
    )
