"""The cost of each transport on one host: calls of one key, calls of several sizes, and several
readers at once.

One client process uses one server, which it reaches by shared memory and by gRPC. The same table in
the client's process is measured for comparison. What is compared takes turns (``turns.py``). Times
are the client's, of the whole Python call.

**Sizes.** Lookups of as many unique keys as their rows need to have a given number of bytes. Bare
gRPC in the faster of two forms (``bare.py``), and a copy in memory, are measured for comparison.
Nothing is subtracted from the store's time, although gathering rows at random addresses takes
longer than copying.

**Readers.** Processes that only look up, each with its own connection: one reader is compared with
many.
"""

import contextlib
import pathlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from embstore_client import connect, grpc_wire
from tests.bench import crowd
from tests.bench.bare import BareServer, chunks_of
from tests.bench.scale import HEADROOM, Scale
from tests.bench.stores import filled, open_store
from tests.bench.turns import Kind, latencies, take_turns
from tests.bench.wire import served

TRANSPORTS = ("grpc", "shared_memory")
MANY_READERS = 16
_UNARY_MAX_BYTES = 8 << 20
_NARROW_DIM, _NARROW_ROWS = 16, 64


@contextlib.contextmanager
def _stores(scale: Scale, folder: pathlib.Path) -> Iterator[tuple[dict[str, Any], BareServer, int]]:
    """Yield the stores by the way to them, the bare server, and the rows of their table."""
    with (
        served(scale, folder, max(scale.transport_bytes)) as (server, bare, rows),
        contextlib.ExitStack() as opened,
    ):
        cache_bytes = scale.cache_bytes(2 * HEADROOM * rows, scale.dim)
        stores = {"in process": opened.enter_context(open_store(folder / "here", cache_bytes))}
        filled(stores["in process"], rows, scale.dim)
        for name in TRANSPORTS:
            stores[name] = opened.enter_context(connect(server.address, transport=name))
        for name in ("in process", "grpc"):
            filled(stores[name], _NARROW_ROWS, _NARROW_DIM, "narrow")
        yield stores, bare, rows


def one_key(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    with _stores(scale, folder) as (stores, _, rows):
        key = np.array([rows // 2], np.int64)
        kinds = {name: Kind(_lookup(store.table("ads"), key)) for name, store in stores.items()}
        found = latencies(take_turns(kinds, scale.wire_rounds, scale.one_key_calls))
    for name in TRANSPORTS:
        found[name]["beyond_ms"] = found[name]["median_ms"] - found["in process"]["median_ms"]
    return found


def sizes(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time lookups of each size by each way, beside bare bytes; return bytes a second."""
    found = {}
    with _stores(scale, folder) as (stores, bare, rows):
        for size in scale.transport_bytes:
            is_narrow = size < 4 * scale.dim
            row_bytes = 4 * (_NARROW_DIM if is_narrow else scale.dim)
            rng = np.random.default_rng(scale.seed)
            keys = rng.choice(
                _NARROW_ROWS if is_narrow else rows, max(size // row_bytes, 1), replace=False
            )
            table = "narrow" if is_narrow else "ads"
            lookups = {name: _lookup(s.table(table), keys) for name, s in stores.items()}
            kinds = _ways(size, lookups, bare)
            spent = take_turns(kinds, scale.wire_rounds, scale.bulk_calls)
            found[str(size)] = {
                name: size / statistics.median(one for one, _ in times)
                for name, times in spent.items()
            }
    return found


def _ways(size: int, lookups: dict[str, Callable[[], Any]], bare: BareServer) -> dict[str, Kind]:
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    request = chunks_of(b"\0")
    ways = {
        "memory copy": Kind(lambda: np.copyto(target, source)),
        "in process": Kind(lookups["in process"]),
        "shared memory": Kind(lookups["shared_memory"]),
        "gRPC stream": Kind(lookups["grpc"], lambda: _stream_from(0)),
        "bare gRPC stream": Kind(lambda: bare.stream(request), lambda: bare.prepare(size)),
    }
    if size < _UNARY_MAX_BYTES:
        ways["gRPC unary"] = Kind(lookups["grpc"], lambda: _stream_from(_UNARY_MAX_BYTES))
        ways["bare gRPC unary"] = Kind(lambda: bare.whole(b"\0"), lambda: bare.prepare(size))
    return ways


def readers(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Count the lookups a second of one reader and of many."""
    with served(scale, folder, max(scale.transport_bytes)) as (server, _, rows):
        return {
            transport: {
                str(clients): crowd.measure(
                    server.address, rows, scale, clients=clients, transport=transport, writes=False
                )["calls_per_s"]
                for clients in (1, MANY_READERS)
            }
            for transport in TRANSPORTS
        }


def _lookup(table: Any, keys: Any) -> Callable[[], Any]:
    return lambda: table.lookup(keys)


def _stream_from(size: int) -> None:
    grpc_wire.UNARY_BYTES = size
