"""The application: routes, the guard around them, and what is answered where no route is."""

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

import embstore
from embstore_server.admin import cache, durability, frequency, server, sessions, statistics, tables
from embstore_server.admin.errors import refusal_of
from embstore_server.admin.guard import Guard
from embstore_server.admin.models import ErrorReply
from embstore_server.admin.probes import add_probes
from embstore_server.parsing import OFF, is_loopback, split_address
from embstore_server.service import Service

_DESCRIPTION = (
    "State, figures and care of an embedding store. Rows are served by gRPC. Every refusal is an "
    "ErrorReply; X-Request-Timeout (seconds) shortens a call's deadline."
)


def make_admin(service: Service) -> FastAPI:
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
    app.add_middleware(Guard, loopback=_is_on_loopback(service.settings.admin))
    add_probes(app, service)
    api = APIRouter(
        prefix="/api/v1", responses={"default": {"model": ErrorReply, "description": "Refused"}}
    )
    for part in (server, statistics, tables, sessions, durability, cache, frequency):
        api.include_router(part.router)
    app.include_router(api)
    return app


def _is_on_loopback(address: str) -> bool:
    return address != OFF and is_loopback(split_address(address)[0])


def _operation_id(route: APIRoute) -> str:
    """Return the route's function as the name of an operation: get_table_stats, GetTableStats."""
    return "".join(word.capitalize() for word in route.endpoint.__name__.split("_"))


async def _refuse(request: Request, error: Exception) -> Response:
    return refusal_of(error, request.method).response(request.scope)
