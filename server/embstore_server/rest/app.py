"""The application, its routes and the guard around them; and its port, on the event loop.

The port is bound when it is entered, so that one in use is reported at once.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response

import embstore
from embstore_proto.addresses import is_loopback, split_address
from embstore_server.logs import event
from embstore_server.parsing import OFF
from embstore_server.port import in_use
from embstore_server.rest import (
    call_times,
    commands,
    hit_rates,
    profiles,
    sessions,
    state,
    tables,
    upkeep,
)
from embstore_server.rest.connections import Listener, protocol
from embstore_server.rest.errors import refusal_of
from embstore_server.rest.guard import Guard
from embstore_server.rest.head import Head
from embstore_server.rest.models import REFUSED
from embstore_server.rest.page import add_page
from embstore_server.rest.probes import add_probes
from embstore_server.service import Service

_DESCRIPTION = (
    "State, stats and administration of an embedding store. Rows are served by gRPC. Every refusal "
    "is an ErrorReply; X-Request-Timeout (seconds) shortens a call's deadline."
)
_LAST_REPLIES_S = 1
"""For clients that take their answers when the server ends; others are cut off."""
_TOKEN = HTTPBearer(
    scheme_name="token",
    description="NAME.SECRET; with mutual TLS, a certificate of a known name does as well",
    auto_error=False,  # for the document alone: the call finds out who calls
)


def make_rest(service: Service) -> FastAPI:
    """Return the application that serves `service`, to be run on the service's event loop."""
    app = FastAPI(
        title="embstore",
        description=_DESCRIPTION,
        version=embstore.__version__,
        docs_url=None,  # these pages load scripts of others into an origin that may checkpoint
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        exception_handlers={HTTPException: _refuse},
    )
    app.state.service = service
    app.state.predictions = hit_rates.Predictions(service)
    address = service.settings.admin
    app.add_middleware(Head)
    app.add_middleware(
        Guard,
        loopback=address != OFF and is_loopback(split_address(address)[0]),
        allowed_hosts=service.settings.allowed_hosts or (),
    )
    needed = [] if service.settings.tokens is None else [Security(_TOKEN)]
    add_page(app)
    add_probes(app, service, needed)
    api = APIRouter(prefix="/api/v1", responses=REFUSED, dependencies=needed)
    for router in (
        *(state.router, call_times.router, sessions.router, tables.router),
        *(upkeep.durability, upkeep.cache, hit_rates.router, profiles.router, commands.router),
    ):
        api.include_router(router)
    app.include_router(api)
    return app


def _operation_id(route: APIRoute) -> str:
    """Return the route's function as the name of an operation: get_table_stats, GetTableStats."""
    return "".join(word.capitalize() for word in route.endpoint.__name__.split("_"))


async def _refuse(request: Request, error: Exception) -> Response:
    return refusal_of(error, request.method).response(request.scope)


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
        make_rest(service),
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
        if not server.should_exit:  # nobody asked it to: gRPC goes on, probes will fail
            error = None if serving.cancelled() else serving.exception()
            event(logging.ERROR, "REST has ended", exc_info=error)

    serving.add_done_callback(ended)
    try:
        yield f"{settings.admin.rpartition(':')[0]}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
