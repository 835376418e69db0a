"""gRPC's health service. It needs no token, so its calls must take little of the server's memory.

gRPC passes on a message, and its length, only after the whole message has arrived. Therefore at
most READS_MAX requests are awaited at a time, and none for long. A further call is answered without
reading its request, as if it asked for the whole server: all services here have the same status.
Event loop only.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from embstore.errors import InvalidArgumentError
from embstore_proto.received import parse
from embstore_server.transports.grpc.endings import sent

SERVICE_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

READS_MAX = 2
"""The largest number of requests that are awaited at a time; each request can be as large as the
port's largest message."""
WATCHERS_MAX = 128
"""The largest number of Watch streams at a time; each has a task, and holds messages that its
client sends."""
_REQUEST_BYTES_MAX = 1 << 10
"""The largest size of a request in bytes; a request is the name of a service."""
_Status = health_pb2.HealthCheckResponse


class Health:
    """The status of the server and of its services by name: NOT_SERVING before `say` is called."""

    def __init__(self, name: str, read_s: float, after_refusal: Callable[[], None]) -> None:
        """Report on the service `name`, and wait at most `read_s` seconds for a request.

        `after_refusal` is called after a request was dropped, or was too large.
        """
        self._names = {"", name}
        self._read_s = read_s
        self._after_refusal = after_refusal
        self._status = _Status.NOT_SERVING
        self._changed = asyncio.Event()
        self._reads = self._watchers = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the methods, for `add_generic_rpc_handlers`."""
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    def say(self, *, is_serving: bool) -> None:
        """Answer checks with this status from now on, and send it to all watchers."""
        self._status = _Status.SERVING if is_serving else _Status.NOT_SERVING
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _check(self, _: Any, context: Any) -> bytes:
        if not await self._is_known(context):
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return _reply(self._status)

    async def _watch(self, _: Any, context: Any) -> None:
        if self._watchers == WATCHERS_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{WATCHERS_MAX} clients watch already; call Check",
            )
        self._watchers += 1
        try:
            is_known = await self._is_known(context)
            said = None
            while True:
                changed = self._changed
                status = self._status if is_known else _Status.SERVICE_UNKNOWN
                if status != said:
                    await sent(context.write(_reply(status)))
                said = status
                await changed.wait()
        finally:
            self._watchers -= 1

    async def _is_known(self, context: Any) -> bool:
        """Return whether a request's service is known; end the call if no request arrives.

        A request beyond READS_MAX is treated as a request for the whole server.
        """
        if self._reads == READS_MAX:
            return True
        self._reads += 1
        try:
            async with asyncio.timeout(self._read_s):
                is_known = _name_in(await context.read()) in self._names
            if not is_known:
                self._after_refusal()
            return is_known
        except TimeoutError:  # the end of the call frees the received part of the request
            self._after_refusal()
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not come")
            raise
        finally:
            self._reads -= 1


def _name_in(request: Any) -> str | None:
    """Return the name of the service in a health request; None if the message is no such
    request."""
    if request is grpc.aio.EOF or len(request) > _REQUEST_BYTES_MAX:
        return None
    try:
        return str(parse(health_pb2.HealthCheckRequest, request).service)
    except InvalidArgumentError:
        return None


def _reply(status: Any) -> bytes:
    serialised: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
    return serialised
