"""Bare gRPC: the time to send bytes that no store has to compute, as a yardstick for the service.

The server does only what every gRPC server in Python has to do. It has one event loop in a process
of its own, and handlers without serialisers; it has no store, and parses no messages. It counts the
bytes that it receives, and answers with bytes that were prepared before. The prepared bytes are
random, because pages of zeros would all be one page of memory, and would take less time to send.
The client has the same channel options as embstore's client. It is a **sink**: it discards the
answer as it arrives.

Each request or reply is sent either whole, in a unary call, or as a stream of chunks, cut as the
service cuts them.
"""

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncIterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np

from embstore_client.grpc_wire import _OPTIONS as CHANNEL_OPTIONS  # the same, whatever they become
from embstore_proto.frame import Framed

SERVICE = "bare"
SERVER_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
_NUMBER_BYTES = 8


def random_bytes(count: int) -> bytes:
    """Return `count` bytes, the same ones each time."""
    return np.random.default_rng(count).bytes(count)


def chunks_of(whole: bytes) -> list[bytes]:
    """Return the bytes as the chunks of a stream, cut and framed as those of the service."""
    return list(Framed([whole], len(whole)).chunks())


class _Handlers:
    """Prepare: makes the answer of the calls that follow. Whole, Stream: take bytes, answer."""

    def __init__(self) -> None:
        self._whole = b""
        self._chunks: list[bytes] = []
        self._received_bytes = 0

    async def prepare(self, request: bytes, context: Any) -> bytes:
        count = int.from_bytes(request, "little")
        if len(self._whole) != count:
            self._whole = random_bytes(count)
            self._chunks = chunks_of(self._whole)
        return b""

    async def whole(self, request: bytes, context: Any) -> bytes:
        self._received_bytes += len(request)
        return self._whole

    async def stream(self, chunks: AsyncIterator[bytes], context: Any) -> None:
        async for chunk in chunks:
            self._received_bytes += len(chunk)
        for chunk in self._chunks:
            await context.write(chunk)


def _server(handlers: _Handlers) -> Any:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    methods = {
        "Prepare": grpc.unary_unary_rpc_method_handler(handlers.prepare),
        "Whole": grpc.unary_unary_rpc_method_handler(handlers.whole),
        "Stream": grpc.stream_stream_rpc_method_handler(handlers.stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    return server


async def _serve(connection: Connection) -> None:
    server = _server(_Handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection.send(f"127.0.0.1:{port}")
    with contextlib.suppress(EOFError):
        await asyncio.to_thread(connection.recv)  # the parent closes, or dies
    await server.stop(None)


def _run(connection: Connection) -> None:
    asyncio.run(_serve(connection))


class BareServer:
    """The server as a child process, and a client of it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # fork would share thread pools
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_run, args=(other,), name="bare")
        self._process.start()
        other.close()  # or the death of the server would not end recv()
        address = self._connection.recv()
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._prepare = self._channel.unary_unary(f"/{SERVICE}/Prepare")
        self._whole = self._channel.unary_unary(f"/{SERVICE}/Whole")
        self._stream = self._channel.stream_stream(f"/{SERVICE}/Stream")

    def prepare(self, reply_bytes: int) -> None:
        """Let the calls that follow be answered with so many bytes."""
        self._prepare(reply_bytes.to_bytes(_NUMBER_BYTES, "little"), wait_for_ready=True)

    def whole(self, request: bytes) -> int:
        """Send and receive in a unary call; return how many bytes came."""
        return len(self._whole(request))

    def stream(self, chunks: Sequence[bytes]) -> int:
        """Send and receive streams; return how many bytes came, and keep none."""
        return sum(len(chunk) for chunk in self._stream(iter(chunks)))

    def close(self) -> None:
        self._channel.close()
        self._connection.close()
        self._process.join()
