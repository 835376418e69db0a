"""The HTTP port, on the event loop. The port is bound when the context is entered, so that a port
in use is reported at once.

The application is imported and made in a thread, at the first request that is not a plain probe. To
import FastAPI takes as much processor time as all the rest of a start, and a server whose trainers
use gRPC may never need it. Until the application exists, this module answers plain probes: GET or
HEAD of /healthz and /readyz, by a loopback name or an IP address, without headers that the guard
handles. Any other probe, such as one of a browser, must pass the guard of the application.
"""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any
from uuid import uuid4

import uvicorn

from embstore_proto.addresses import is_loopback, split_address
from embstore_server.path.service import Service
from embstore_server.telemetry.logs import event
from embstore_server.transports.grpc.port import in_use
from embstore_server.transports.rest.connections import Listener, protocol
from embstore_server.transports.rest.hosts import is_address, name_of

_LAST_REPLIES_S = 1
"""Seconds that clients have to receive their answers when the server ends; after that they are
disconnected."""
_UNPLAIN = (b"content-length", b"origin", b"transfer-encoding", b"x-request-id")
"""Headers that only the guard handles."""


class DeferredApp:
    """The ASGI application of a service, made when it is first needed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._made: asyncio.Future[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if self._made is None and (answer := self._probe(scope)) is not None:
            await _send(send, *answer, is_head=scope["method"] == "HEAD")
            return
        if self._made is None:
            self._made = asyncio.ensure_future(asyncio.to_thread(self._make))
        app = await asyncio.shield(self._made)
        await app(scope, receive, send)

    def _make(self) -> Any:
        return import_module("embstore_server.transports.rest.app").make_rest(self._service)

    def _probe(self, scope: Any) -> tuple[int, dict[str, Any]] | None:
        """Return status and body of the answer to a plain probe, equal to those of `probes`."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return None
        headers = dict(scope["headers"])
        if any(name in headers for name in _UNPLAIN) or not _is_here(
            headers.get(b"host", b"").decode("latin-1")
        ):
            return None
        if scope["path"] == "/healthz":
            return 200, {"status": "ok"}
        if scope["path"] == "/readyz":
            reason = self._service.unready
            return 503 if reason else 200, {"ready": not reason, "reason": reason}
        return None


def _is_here(host: str) -> bool:
    """Return whether a `Host` header contains an IP address or a loopback name, or is empty."""
    name = name_of(host)
    return not host or (name is not None and (is_loopback(name) or is_address(name)))


async def _send(send: Any, status: int, body: dict[str, Any], *, is_head: bool) -> None:
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    headers = {"content-length": len(text), "content-type": "application/json"}
    headers |= {"x-request-id": uuid4().hex[:16]}
    pairs = [(name.encode(), str(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": b"" if is_head else text})


class _Uvicorn(uvicorn.Server):
    """Uvicorn without signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def rest_server(service: Service) -> AsyncIterator[str]:
    """Serve REST; yield its address, or "off"."""
    settings = service.settings
    if settings.admin == "off":
        yield "off"
        return
    host, port = split_address(settings.admin)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = Listener((host, port), family, settings.connections_max)
    except OSError as exc:
        raise in_use("admin", settings.admin) from exc
    config = uvicorn.Config(
        DeferredApp(service),
        log_config=None,
        access_log=False,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        lifespan="off",
        timeout_graceful_shutdown=_LAST_REPLIES_S,
        http=protocol(settings.handshake_timeout_s),
    )
    if service.certificates is not None:
        config.load()
        config.ssl = service.certificates.context()
    server = _Uvicorn(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))

    def ended(_: object) -> None:
        if not server.should_exit:  # unexpected: gRPC continues, probes will fail
            error = None if serving.cancelled() else serving.exception()
            event(logging.ERROR, "REST has ended", exc_info=error)

    serving.add_done_callback(ended)
    try:
        yield f"{settings.admin.rpartition(':')[0]}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
