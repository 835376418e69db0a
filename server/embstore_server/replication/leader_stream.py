"""The stream to another server: from a standby to its leader, or from a leader to the server that
it replaced.

Event loop only.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from embstore.errors import InvalidArgumentError, StoreClosedError
from embstore_proto.received import parse
from embstore_proto.status import error_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.path.answers import answered_error
from embstore_server.path.served import Served
from embstore_server.replication.standbys import METHOD

PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
"""The first and the longest pause between attempts; each pause is twice the previous one."""
_SILENCE_S = 30.0
"""Seconds without a message, after which a server counts as disconnected."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


async def connect(served: Served, address: str, talk: Callable[[Any], Awaitable[None]]) -> None:
    """Open a stream to a server with the settings of `served`, and call `talk` with it."""
    settings = served.settings
    ca = settings.follow_ca
    if ca is None:
        channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
    else:
        own = served.certificates
        pair = (None, None) if own is None else (own.served.key, own.served.chain)
        trusted = grpc.ssl_channel_credentials(await asyncio.to_thread(ca.read_bytes), *pair)
        channel = grpc.aio.secure_channel(address, trusted, options=_OPTIONS)
    metadata = () if settings.follow_token is None else await asyncio.to_thread(_metadata, served)
    async with channel:
        call = channel.stream_stream(METHOD)(metadata=metadata)
        try:
            await talk(call)
        finally:
            call.cancel()


def _metadata(served: Served) -> tuple[tuple[str, str], ...]:
    """Return the metadata with the token, which is read from its file each time, because it may
    have changed."""
    assert served.settings.follow_token is not None
    return (("authorization", f"Bearer {served.settings.follow_token.read_text().strip()}"),)


async def send(call: Any, **what: Any) -> None:
    """Send a request."""
    try:
        await call.write(pb.FollowRequest(**what).SerializeToString())
    except asyncio.InvalidStateError:  # the next read raises the stream's status
        raise StoreClosedError("the stream ended") from None


async def read(call: Any, *kinds: str) -> Any:
    """Return the next reply, which must be of one of these kinds."""
    async with asyncio.timeout(_SILENCE_S):
        message = await call.read()
    if message is grpc.aio.EOF:
        code = await call.code()
        error = error_of(code, await call.details(), await call.trailing_metadata())
        raise error or StoreClosedError(f"the stream ended: {code.name} {await call.details()}")
    reply = parse(pb.FollowReply, message)
    if reply.WhichOneof("what") not in kinds:
        raise InvalidArgumentError(f"expected {kinds}, found {reply.WhichOneof('what')}")
    return reply


def reason_of(error: Exception, address: str) -> str:
    """Return the reason why there is no stream to a server."""
    if isinstance(error, grpc.aio.AioRpcError):
        found = error_of(error.code(), error.details(), error.trailing_metadata())
        return str(found) if found else f"no connection to {address}: {error.details()}"
    if isinstance(error, TimeoutError):
        return f"{address} says nothing"
    return message_of(answered_error(error, "Follow"))
