"""A call of REST, from request to answer; every route that is a verb makes such a call.

The `Caller` of a call is made before the body is read. Therefore the deadline includes the reading,
and a request whose body is refused also counts as a call of the verb. An `X-Request-Timeout`
header, in seconds, shortens the deadline; so does the header that Prometheus sends. A long job ends
when its client disconnects; other calls continue until they are done, or until their deadline.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from fastapi.routing import APIRoute
from grpc import StatusCode
from starlette.requests import Request
from starlette.responses import Response

from embstore.commands import Command, GetStats, Progress
from embstore.engine.engine import Engine
from embstore.errors import InvalidArgumentError, StoreClosedError, TableNotFoundError
from embstore_proto.envelope import Origin
from embstore_server.path.alone import check_alone
from embstore_server.path.answers import Answered, answering
from embstore_server.path.caller import Caller, observe
from embstore_server.path.service import Service
from embstore_server.transports.rest.connections import CERTIFICATE_NAMES
from embstore_server.transports.rest.errors import refusal_of, request_id

LANE = "rest"
"""The client name that all callers of REST without a token share. However many dashboards there
are, a trainer's call waits for at most one of their calls."""

_HEADER_CHARACTERS_MAX = 200
_TIMEOUT_HEADERS = ("X-Request-Timeout", "X-Prometheus-Scrape-Timeout-Seconds")

T = TypeVar("T", bound=Command[Any])
Answer = Callable[[Request], Awaitable[Response]]


class CallRoute(APIRoute):
    """A route whose calls are counted and logged as calls of a verb; its `name` is the verb."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, wrapped in a call."""
        answer, verb = super().get_route_handler(), self.name

        async def handler(request: Request) -> Response:
            return await _answered(verb, request, answer)

        return handler


@dataclass(frozen=True)
class Call:
    """The service and caller of a route's call."""

    service: Service
    caller: Caller

    async def execute(self, command: Command[Any], origin: Origin | None = None) -> Answered:
        """Return the result of a command, with the state of the store at that time."""
        self.check_ready()
        return await self.service.execute(self.caller, self.permitted(command), origin)

    async def execute_long(
        self, make: Callable[[], Command[Any]], then: Callable[[Any, Any], Any]
    ) -> Answered:
        """Execute a command whose preparation takes long, and return the answer of `then`.

        `make` makes the command; `then(command, result)` makes the answer, which takes long as
        well. `make`, the command and `then` run on one of the verb's own threads.
        """
        self.check_ready()

        def work(engine: Engine, progress: Progress) -> Any:
            command = self.permitted(make())
            return then(command, engine.execute(command, progress=progress))

        def answered(engine: Engine, progress: Progress) -> Answered:
            return answering(partial(work, progress=progress), self.service.instance)(engine)

        return await self.service.run_in_thread(self.caller.verb, answered, self.caller)

    def permitted(self, command: T) -> T:
        """Return a command with full names; raise an error if the caller lacks the right to it, or
        if a single shard must not execute it.

        A route without a command of its own passes another command that reveals as much as the
        route does. Any thread.
        """
        command = self.service.permitted(self.caller, command)
        check_alone(type(command), lambda: self.service.engine.shard)
        return command

    async def stats(self, table: str = "") -> Answered:
        """Return the stats of a table, or of the store."""
        return await self.execute(GetStats(table))

    def check_may_read_stats(self) -> None:
        """Raise PermissionDeniedError if the caller has no right to read the store's stats.

        This check is for routes that have no command, and reveal as much as the stats do.
        """
        self.permitted(GetStats())

    def check_ready(self) -> None:
        """Raise StoreClosedError if the server is starting, is stopping or has failed."""
        if reason := self.service.not_ready:
            raise StoreClosedError(reason)


def one_table(name: str) -> str:
    """Return the name of a table; raise TableNotFoundError for "", which the verb would read as all
    tables."""
    if not name:
        raise TableNotFoundError("no table ''")
    return name


async def _call_of(request: Request) -> Call:
    return Call(request.app.state.service, request.state.caller)


Calling = Annotated[Call, Depends(_call_of)]
"""The type of the parameter by which a `CallRoute` gets its call."""


async def _answered(verb: str, request: Request, answer: Answer) -> Response:
    service: Service = request.app.state.service
    headers = {n: v[:_HEADER_CHARACTERS_MAX] for n, v in request.headers.items()}
    caller = request.state.caller = service.caller_of(
        verb,
        f"rest:{request.client.host if request.client else ''}",
        monotonic() + service.settings.call_timeout_s,
        headers.get("user-agent", ""),
        request_id(request.scope),
        headers.get("traceparent", ""),
        shared_client=LANE,
        gone=partial(_gone, request),
    )
    service.count_calls(1)
    code = StatusCode.OK.name
    try:
        for name in _TIMEOUT_HEADERS:
            if name in request.headers:
                seconds = _seconds(request.headers[name], name)
                caller.deadline = min(caller.deadline, caller.started + seconds)
        async with asyncio.timeout(caller.deadline - monotonic()):
            caller.principal = service.callers.principal(
                request.headers.get("authorization", ""),
                request.scope["state"].get(CERTIFICATE_NAMES, ()),
            )
            response = await answer(request)
    except asyncio.CancelledError:
        code = StatusCode.CANCELLED.name
        raise
    except Exception as exc:
        service.memory_trim.after(exc)
        refusal = refusal_of(exc, verb, caller)
        code, response = refusal.code, refusal.response(request.scope)
    else:
        caller.sent_bytes = len(response.body)
    finally:
        service.count_calls(-1)
        caller.received_bytes = request.state.received_bytes
        observe(caller, code, service.metrics, service.settings.slow_call_ms)
    return response


async def _gone(request: Request) -> None:
    """Wait until the client has closed its connection. The request's body has already been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _seconds(text: str, name: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"{name}: expected seconds above 0, found {text[:40]!r}")
    return seconds
