"""The FastAPI application, its routes and the guard around them."""

from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response

import embstore
from embstore_proto.addresses import is_loopback, split_address
from embstore_server.path.service import Service
from embstore_server.setup.parsing import OFF
from embstore_server.transports.rest import (
    call_times,
    commands,
    hit_rates,
    profiles,
    sessions,
    state,
    tables,
    upkeep,
)
from embstore_server.transports.rest.errors import refusal_of
from embstore_server.transports.rest.guard import Guard
from embstore_server.transports.rest.head import Head
from embstore_server.transports.rest.models import REFUSED
from embstore_server.transports.rest.page import add_page
from embstore_server.transports.rest.probes import add_probes

_DESCRIPTION = (
    "State, stats and administration of an embedding store. Rows are served by gRPC. Every refusal "
    "is an ErrorReply; X-Request-Timeout (seconds) shortens a call's deadline."
)
_TOKEN = HTTPBearer(
    scheme_name="token",
    description="NAME.SECRET; with mutual TLS, a certificate of a known name does as well",
    auto_error=False,  # only for the OpenAPI document; the call itself authenticates the caller
)


def make_rest(service: Service) -> FastAPI:
    """Return the application that serves `service`, to be run on the service's event loop."""
    app = FastAPI(
        title="embstore",
        description=_DESCRIPTION,
        version=embstore.__version__,
        docs_url=None,  # these pages load foreign scripts into the origin of an API that can write
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
    """Return an operation's name, made from the name of the route's function: GetTableStats for
    get_table_stats."""
    return "".join(word.capitalize() for word in route.endpoint.__name__.split("_"))


async def _refuse(request: Request, error: Exception) -> Response:
    return refusal_of(error, request.method).response(request.scope)
