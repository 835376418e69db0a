"""The arrival of requests that consist of one message.

gRPC passes on a message, and its length, only after the whole message has arrived. Until then no
limit counts the message, which can grow to the largest message of the port. Therefore only few
requests per client (a token, or a connection without one) are received at a time. The other
requests wait in HTTP/2's flow control, where each takes no more than `port.UNREAD_BYTES`. Event
loop only.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from embstore.errors import InvalidArgumentError
from embstore_proto.frame import HEADER_BYTES_MAX
from embstore_server.path.caller import Caller
from embstore_server.path.turns import Turns

T = TypeVar("T")

CONTROL_MAX = 4
"""The largest number of requests without arrays that are received at a time per client.

These requests have a queue of their own, so that bulk requests do not delay the renewal of a lease.
All but the largest of them arrive together with their call.
"""
_BULK_MIN = 4


class Receiving:
    """The requests that are being received, by client."""

    def __init__(self, message_bytes_max: int, inflight_bytes_max: int) -> None:
        """Make the queues; the arguments bound one message, and all bytes in flight."""
        self._message_bytes_max = message_bytes_max
        self._inflight_bytes_max = inflight_bytes_max
        # only for clients that are sending requests
        self._queues: dict[tuple[str, bool], Turns] = {}

    async def control(self, caller: Caller, context: Any) -> bytes:
        """Return the one message of a request without arrays."""
        request = _found(await self.in_turn(caller.client, CONTROL_MAX, context.read))
        if len(request) > HEADER_BYTES_MAX:
            raise InvalidArgumentError(
                f"expected a request of at most {HEADER_BYTES_MAX} bytes, found {len(request)}"
            )
        return request

    async def bulk(self, caller: Caller, context: Any) -> bytes:
        """Return the one message of a request with arrays."""
        most = caller.principal.limits.get("inflight_bytes", self._inflight_bytes_max)
        count = max(most // self._message_bytes_max, _BULK_MIN)
        return _found(await self.in_turn(caller.client, count, context.read, is_bulk=True))

    async def in_turn(
        self, client: str, most: int, read: Callable[[], Awaitable[T]], *, is_bulk: bool = False
    ) -> T:
        """Wait until fewer than `most` requests of the client are being received; then call `read`,
        and return its result."""
        key = client, is_bulk
        turns = self._queues.get(key)
        if turns is None:
            turns = self._queues[key] = Turns(most.__gt__)
        try:
            await turns.enter()
            try:
                return await read()
            finally:
                turns.leave()
        finally:
            if not turns.inside and not turns.waiting:
                self._queues.pop(key, None)


def _found(request: bytes) -> bytes:
    if request is grpc.aio.EOF:
        raise InvalidArgumentError("expected a message, found the end of the request")
    return request
