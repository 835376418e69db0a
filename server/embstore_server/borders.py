"""The two borders as ports: gRPC with health and reflection, REST by uvicorn; one event loop.

Both bind their port when they are entered, so that one in use is said at once. gRPC would share a
port with another server silently (SO_REUSEPORT); here it does not.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from embstore.errors import InvalidArgumentError
from embstore_proto.codec import CHUNK_BYTES_MAX
from embstore_server.admin import make_admin
from embstore_server.logs import event
from embstore_server.rpc import SERVICE_NAME, Rpc
from embstore_server.service import Service
from embstore_server.settings import Settings

_RECEIVED_MARGIN = 2
"""A unary message of up to so many times the limit is received, to be refused with a reason."""

_FRAME_BYTES = 1 << 10

_LAST_REPLIES_S = 1.0
"""For what is on its way when no call is under way any more."""


class GrpcBorder:
    """The gRPC server of a service, at `address`."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        received_max = max(_RECEIVED_MARGIN * settings.unary_bytes_max, CHUNK_BYTES_MAX)
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", received_max + _FRAME_BYTES),
                ("grpc.max_send_message_length", -1),  # our own limits are by name
            ]
        )
        self._service = service
        self._rpc = Rpc(service)
        self._server.add_generic_rpc_handlers((self._rpc.handlers(),))
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
        self._failing = asyncio.create_task(self._say_failed())

    async def _say_failed(self) -> None:
        await self._service.failed.wait()
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)

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
        idle = asyncio.create_task(self._rpc.idle())
        await asyncio.wait((stopped, idle), return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        await self._server.stop(_LAST_REPLIES_S)
        await stopped


def _bind(server: Any, settings: Settings) -> str:
    try:
        if settings.tls_cert is None:
            port = server.add_insecure_port(settings.listen)
        else:
            port = server.add_secure_port(settings.listen, _credentials(settings))
    except RuntimeError as exc:
        raise _in_use("listen", settings.listen) from exc
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


def _in_use(option: str, address: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cannot listen on {address}: is another server running there? Give another --{option}"
    )


class _Uvicorn(uvicorn.Server):
    """Uvicorn without signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def rest_border(service: Service) -> AsyncIterator[str]:
    """Serve REST; yield its address, or "off"."""
    settings = service.settings
    if settings.admin == "off":
        yield "off"
        return
    listener = _listener(settings.admin)
    config = uvicorn.Config(
        make_admin(service),
        log_config=None,
        access_log=False,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        lifespan="off",
    )
    server = _Uvicorn(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    serving.add_done_callback(lambda ended: _tell_early_end(ended, server))
    try:
        yield f"{settings.admin.rpartition(':')[0]}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


def _tell_early_end(serving: "asyncio.Task[None]", server: _Uvicorn) -> None:
    """Log that REST has ended although nobody asked it to: gRPC goes on, probes will fail."""
    if not server.should_exit:
        error = None if serving.cancelled() else serving.exception()
        event(logging.ERROR, "REST has ended", exc_info=error)


def _listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
    except OSError as exc:
        listener.close()
        raise _in_use("admin", address) from exc
    return listener
