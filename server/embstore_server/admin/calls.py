"""A call from request to answer: every route that is a verb is one of these.

The caller is made before the body is read, so that the deadline covers reading, and a body that is
refused counts among the verb's calls too. An `X-Request-Timeout` header, in seconds, shortens the
deadline, and so does the one that Prometheus sends. A request that nobody waits for any more still
ends by its deadline.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from grpc import StatusCode
from starlette.requests import Request
from starlette.responses import Response

from embstore.errors import InvalidArgumentError, StoreClosedError
from embstore.store import Store
from embstore_server.admin.errors import refusal_of, request_id
from embstore_server.answers import Answered, answering
from embstore_server.service import Caller, Service

LANE = "rest"
"""One lane for all of REST: however many dashboards there are, trainers wait for one call."""

_HEADER_CHARACTERS_MAX = 200
_TIMEOUT_HEADERS = ("X-Request-Timeout", "X-Prometheus-Scrape-Timeout-Seconds")

Answer = Callable[[Request], Awaitable[Response]]


class CallRoute(APIRoute):
    """A route that is a verb: its `name` is the verb's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, in the frame of a call."""
        answer, verb = super().get_route_handler(), self.name

        async def handler(request: Request) -> Response:
            return await _answered(verb, request, answer)

        return handler


@dataclass(frozen=True)
class Call:
    """What a route works with."""

    service: Service
    caller: Caller

    async def run(self, work: Callable[[Store], Any]) -> Answered:
        """Return what `work` returns on the engine thread, and the state that it is of.

        Raises
        ------
        StoreClosedError : calls are not served yet, or not any more.
        """
        self.check_ready()
        work = answering(work, self.service.instance)
        answered: Answered = await self.service.run(self.caller, work)
        return answered

    async def run_beside(self, work: Callable[[Store], Any]) -> Answered:
        """Do the same on a thread of its own: for what any thread may do, at length."""
        self.check_ready()
        return await self.service.run_beside(answering(work, self.service.instance))

    def check_ready(self) -> None:
        """Refuse what nobody can do now.

        Raises
        ------
        StoreClosedError : calls are not served yet, or not any more.
        """
        if reason := self.service.not_ready:
            raise StoreClosedError(reason)


async def _call_of(request: Request) -> Call:
    return Call(service_of(request.app), request.state.caller)


Calling = Annotated[Call, Depends(_call_of)]
"""The parameter of a route that is a verb."""


def service_of(app: FastAPI) -> Service:
    """Return what an application serves."""
    service: Service = app.state.service
    return service


async def _answered(verb: str, request: Request, answer: Answer) -> Response:
    service = service_of(request.app)
    caller = request.state.caller = _caller(verb, request, service.settings.call_timeout_s)
    code = StatusCode.OK.name
    try:
        async with asyncio.timeout(_shortened(caller, request) - monotonic()):
            response = await answer(request)
    except asyncio.CancelledError:
        code = StatusCode.CANCELLED.name
        raise
    except Exception as exc:
        refusal = refusal_of(exc, verb)
        code, response = refusal.code, refusal.response(request.scope)
    else:
        caller.sent_bytes = len(response.body)
    finally:
        caller.received_bytes = request.state.received_bytes
        service.finished(caller, code)
    return response


def _caller(verb: str, request: Request, timeout_s: float) -> Caller:
    headers = request.headers
    return Caller(
        verb,
        LANE,
        monotonic() + timeout_s,
        headers.get("user-agent", "")[:_HEADER_CHARACTERS_MAX],
        request_id(request.scope),
        headers.get("traceparent", "")[:_HEADER_CHARACTERS_MAX],
    )


def _shortened(caller: Caller, request: Request) -> float:
    """Return the caller's deadline, made earlier if the request asks for that."""
    for name in _TIMEOUT_HEADERS:
        if name in request.headers:
            seconds = _seconds(request.headers[name], name)
            caller.deadline = min(caller.deadline, caller.started + seconds)
    return caller.deadline


def _seconds(text: str, name: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"{name}: expected seconds above 0, found {text[:40]!r}")
    return seconds
