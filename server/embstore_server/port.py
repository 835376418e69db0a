"""The gRPC port: its server, with health and reflection.

The port is bound when the server is made, so that one in use is reported at once. gRPC would share
a port with another server silently (SO_REUSEPORT); here it does not.
"""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from embstore.errors import InvalidArgumentError
from embstore_proto.frame import CHUNK_BYTES_MAX
from embstore_server.rpc import SERVICE_NAME, GrpcCalls
from embstore_server.service import Service
from embstore_server.settings import Settings

_RECEIVED_MARGIN = 2
"""A unary message of up to so many times the limit is received, to be refused with a reason."""

_FRAME_BYTES = 1 << 10

PINGS_APART_MS = 10_000
"""A client may ask so often whether the server is there, while its call waits. gRPC's own 5 minutes
would cut off clients of ours, and of other frameworks, that wait for minutes with a reason."""

_MOST = 2**31 - 1
"""gRPC's options are C's int."""

_IDLE_MS = 120_000
"""A connection without a call is ended then; its client connects again with its next call."""

_LAST_REPLIES_S = 1.0
"""For what is on its way when no call is under way any more."""


class GrpcServer:
    """The gRPC server of a service, at `address`."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        handshake_ms = min(int(1000 * settings.handshake_timeout_s), _MOST)
        received_max = max(_RECEIVED_MARGIN * settings.unary_bytes_max, CHUNK_BYTES_MAX)
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", received_max + _FRAME_BYTES),
                ("grpc.max_send_message_length", -1),  # our own limits are by name
                ("grpc.http2.min_ping_interval_without_data_ms", PINGS_APART_MS),
                ("grpc.max_allowed_incoming_connections", min(settings.connections_max, _MOST)),
                ("grpc.server_handshake_timeout_ms", handshake_ms),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ]
        )
        self._service = service
        self._calls = GrpcCalls(service)
        handlers = (self._calls.handlers(), service.standbys.handlers())
        self._server.add_generic_rpc_handlers(handlers)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self._failing: asyncio.Task[None] | None = None
        self.address = _bind(self._server, settings)

    async def start(self) -> None:
        """Accept connections; health says NOT_SERVING until `ready`."""
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def ready(self) -> None:
        """Say SERVING to health checks, until the store fails or the server stops."""
        await self._report(health_pb2.HealthCheckResponse.SERVING)

        async def say_failed() -> None:
            await self._service.failed.wait()
            await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)

        self._failing = asyncio.create_task(say_failed())

    async def _report(self, status: Any) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)

    async def stop(self, drain_s: float) -> None:
        """Refuse new calls, and give those that run `drain_s` seconds.

        Calls of health and reflection are not waited for: a watcher of health never ends.
        """
        if self._failing is not None:
            self._failing.cancel()
        await self._health.enter_graceful_shutdown()
        stopped = asyncio.create_task(self._server.stop(drain_s))
        idle = asyncio.create_task(self._calls.idle.wait())
        await asyncio.wait((stopped, idle), return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        self._service.standbys.end()
        await self._server.stop(_LAST_REPLIES_S)
        await stopped


def _bind(server: Any, settings: Settings) -> str:
    try:
        if settings.tls_cert is None:
            port = server.add_insecure_port(settings.listen)
        else:
            port = server.add_secure_port(settings.listen, _credentials(settings))
    except RuntimeError as exc:
        raise in_use("listen", settings.listen) from exc
    return f"{settings.listen.rpartition(':')[0]}:{port}"


def _credentials(settings: Settings) -> Any:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            str(settings.tls_cert), str(settings.tls_key)
        )
        pair = [Path(str(path)).read_bytes() for path in (settings.tls_key, settings.tls_cert)]
    except OSError as exc:  # an SSLError is one
        raise InvalidArgumentError(
            f"tls_cert {settings.tls_cert} and tls_key {settings.tls_key}: expected PEM files of a "
            f"certificate and its key: {exc}"
        ) from exc
    return grpc.ssl_server_credentials([(pair[0], pair[1])])


def in_use(option: str, address: str) -> InvalidArgumentError:
    """Return the error of an address that another server listens on."""
    return InvalidArgumentError(
        f"cannot listen on {address}: is another server running there? Give another --{option}"
    )
