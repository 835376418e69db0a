"""What each transport costs on one host: calls of one key, sizes, and readers beside one another.

One client process, and one server that it reaches by shared memory and by gRPC; the same table in
process beside it. What is compared takes turns (``turns.py``); times are the client's, of the
whole Python call.

**One key.** A lookup in process, by shared memory, by gRPC; beside them an echo of as many bytes
over a Unix socket, between a client that blocks and an event loop: what two processes in Python
cost that do nothing else.

**Sizes.** Lookups of as many unique keys as make so many bytes of rows, beside bare gRPC bytes in
the better of two forms (``bare.py``), and a copy in memory. Nothing is taken off: who gathers rows
at random addresses takes longer than who copies.

**Readers.** Processes that only look up, each with a connection of its own, one beside many.
"""

import asyncio
import contextlib
import multiprocessing
import pathlib
import socket
import statistics
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from embstore_client import connect, grpc_wire
from tests.bench import crowd
from tests.bench.bare import BareServer, chunks_of
from tests.bench.engine import HEADROOM
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table, open_store, small_grads, update_all
from tests.bench.turns import Kind, take_turns

TRANSPORTS = ("grpc", "shared_memory")
MANY_READERS = 16
ECHO_BYTES = 400
"""About what the reply to a lookup of one key has."""
_UNARY_MAX_BYTES = 8 << 20
_NARROW_DIM, _NARROW_ROWS = 16, 64
_STOP_TIMEOUT_S = 10.0


def _echo(connection: Connection) -> None:
    """Send what comes back, from an event loop, until the parent has gone."""
    asyncio.run(_echo_on(connection))


async def _echo_on(connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    own, other = socket.socketpair()
    connection.send(other)
    other.close()
    own.setblocking(False)
    ended = asyncio.Event()

    def readable() -> None:
        data = own.recv(1 << 16)
        if data:
            own.send(data)
        else:
            ended.set()

    loop.add_reader(own, readable)
    await ended.wait()


class Echo:
    """A process that sends back what it gets; `call` sends some bytes, and waits for them."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        own, other = context.Pipe()
        self._process = context.Process(target=_echo, args=(other,), name="echo")
        self._process.start()
        self._socket: socket.socket = own.recv()
        self._bytes = bytes(ECHO_BYTES)

    def call(self) -> None:
        """Send and receive."""
        self._socket.sendall(self._bytes)
        received = 0
        while received < ECHO_BYTES:
            received += len(self._socket.recv(1 << 16))

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.join(_STOP_TIMEOUT_S)


class TransportsContender:
    """Owns the store in process, the server, the bare one and the echo."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._rows = 2 * max(scale.transport_bytes) // (4 * scale.dim)
        data = pathlib.Path(scale.data_dir)
        cache_bytes = scale.cache_bytes(2 * HEADROOM * self._rows, scale.dim)
        with contextlib.ExitStack() as opened:
            server = self._server = Server(data / "transports", cache_bytes)
            opened.callback(server.close)
            self._bare = BareServer()
            opened.callback(self._bare.close)
            self._echo = Echo()
            opened.callback(self._echo.close)
            stores: dict[str, Any] = {"in process": open_store(data / "in-process", cache_bytes)}
            opened.callback(stores["in process"].close)
            for name in TRANSPORTS:
                stores[name] = connect(server.address, transport=name)
                opened.callback(stores[name].close)
            for name in ("in process", "grpc"):
                table = create_table(stores[name], "ads", self._rows, scale.dim)
                keys = np.arange(self._rows, dtype=np.int64)
                update_all(table, keys, small_grads(scale.dim))
                table = create_table(stores[name], "narrow", _NARROW_ROWS, _NARROW_DIM)
                update_all(table, np.arange(_NARROW_ROWS), small_grads(_NARROW_DIM))
            self._tables = {name: store.table("ads") for name, store in stores.items()}
            self._narrow = {name: store.table("narrow") for name, store in stores.items()}
            self._opened = opened.pop_all()

    def one_key(self) -> dict[str, Any]:
        """Time lookups of one key by each way."""
        key = np.array([self._rows // 2], np.int64)
        kinds = {name: Kind(_lookup(table, key)) for name, table in self._tables.items()}
        kinds["echo"] = Kind(self._echo.call)
        spent = take_turns(kinds, self._scale.wire_rounds, self._scale.one_key_calls)
        found: dict[str, Any] = {}
        for name, times in spent.items():
            seconds = [one for one, _ in times]
            found[name] = {
                "median_ms": 1e3 * statistics.median(seconds),
                "p99_ms": 1e3 * statistics.quantiles(seconds, n=100)[98],
            }
        for name in (*TRANSPORTS, "echo"):
            beyond = found[name]["median_ms"] - found["in process"]["median_ms"]
            found[name]["beyond_ms"] = beyond
        return found

    def sizes(self) -> dict[str, Any]:
        """Time lookups of each size by each way, beside bare bytes; return bytes a second."""
        found = {}
        for size in self._scale.transport_bytes:
            spent = take_turns(self._ways(size), self._scale.wire_rounds, self._scale.bulk_calls)
            found[str(size)] = {
                name: size / statistics.median(one for one, _ in times)
                for name, times in spent.items()
            }
        return found

    def _ways(self, size: int) -> dict[str, Kind]:
        """Return what is timed of a size."""
        rng = np.random.default_rng(self._scale.seed)
        is_narrow = size < 4 * self._scale.dim
        tables = self._narrow if is_narrow else self._tables
        count = max(size // (4 * (_NARROW_DIM if is_narrow else self._scale.dim)), 1)
        rows = _NARROW_ROWS if is_narrow else self._rows
        keys = rng.choice(rows, count, replace=False)
        source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
        request = chunks_of(b"\0")
        shared = _lookup(tables["shared_memory"], keys)
        grpc = _lookup(tables["grpc"], keys)
        ways = {
            "memory copy": Kind(lambda: np.copyto(target, source)),
            "in process": Kind(_lookup(tables["in process"], keys)),
            "shared memory": Kind(shared),
            "gRPC stream": Kind(grpc, lambda: _stream_from(0)),
            "bare gRPC stream": Kind(
                lambda: self._bare.stream(request), lambda: self._bare.prepare(size)
            ),
        }
        if size < _UNARY_MAX_BYTES:
            ways["gRPC unary"] = Kind(grpc, lambda: _stream_from(_UNARY_MAX_BYTES))
            ways["bare gRPC unary"] = Kind(
                lambda: self._bare.whole(b"\0"), lambda: self._bare.prepare(size)
            )
        return ways

    def readers(self) -> dict[str, Any]:
        """Count the lookups a second of one reader and of many."""
        return {
            transport: {
                str(clients): crowd.measure(
                    self._server.address,
                    self._rows,
                    self._scale,
                    clients=clients,
                    transport=transport,
                    writes=False,
                )["calls_per_s"]
                for clients in (1, MANY_READERS)
            }
            for transport in TRANSPORTS
        }

    def close(self) -> None:
        """End all of it."""
        self._opened.close()


def _lookup(table: Any, keys: Any) -> Callable[[], Any]:
    return lambda: table.lookup(keys)


def _stream_from(size: int) -> None:
    """Have this process's gRPC clients send what is larger as streams."""
    grpc_wire.UNARY_BYTES = size


start = TransportsContender
"""Both stores written, every row in their caches."""
