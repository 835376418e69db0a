"""What the service adds to the time on the wire: calls of one key, bulk payloads, many clients at
once.

One client process uses a server of the service and a bare server (``bare.py``). What is compared
takes turns (``turns.py``). Times are the client's, of the whole Python call.

**One key.** A lookup or an update, beside a unary echo with as many bytes both ways. Nothing is
subtracted: the difference includes queue, engine, framing and checks.

**Bulk.** Lookups of unique keys (the payload is their rows) and updates of them (the payload is
their gradients). The engine's own time is subtracted. It is the growth of the sum of all stages in
the store's stats, as a mean over the calls of a turn. Within a call, nothing else runs in parallel
to the stages, because the server receives the whole request, then computes, and then answers. Not
subtracted are the engine thread's time outside of its stages (checks, the memory of the reply), and
the client's time for keys and gradients. The yardstick is the faster of two ways to send only the
payload's bytes:

    stream  chunks as the service cuts them; down into a sink, up into one
    whole   one unary message, which the receiver discards

Before a download the bare server has prepared its replies; before an upload the bare client has
prepared its chunks.

**Crowd.** See ``crowd.py``.
"""

import contextlib
import pathlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.bench.bare import BareServer, chunks_of, random_bytes
from tests.bench.crowd import measure
from tests.bench.scale import HEADROOM, Scale
from tests.bench.serving import Server, grown
from tests.bench.stores import filled
from tests.bench.turns import Kind, Spent, latencies, take_turns

ACKNOWLEDGEMENT_BYTES = 100
"""About what the service answers an update with: its bytes are nothing beside a payload's."""


@contextlib.contextmanager
def served(
    scale: Scale, folder: pathlib.Path, bytes_max: int
) -> Iterator[tuple[Server, BareServer, int]]:
    """Yield both servers, and the rows of a table "ads" of twice so many bytes: all are cached."""
    rows = 2 * bytes_max // (4 * scale.dim)
    cache_bytes = scale.cache_bytes(2 * HEADROOM * rows, scale.dim)
    with (
        contextlib.closing(Server(folder / "served", cache_bytes)) as server,
        contextlib.closing(BareServer()) as bare,
    ):
        filled(server.store, rows, scale.dim)
        yield server, bare, rows


def one_key(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time calls of one key beside echoes of as many bytes."""
    with served(scale, folder, max(scale.bulk_bytes)) as (server, bare, rows):
        table, key = server.store.table("ads"), np.array([rows // 2], np.int64)
        gradient = np.full((1, scale.dim), 0.01, np.float32)
        calls: dict[str, Callable[[], Any]] = {
            "lookup": lambda: table.lookup(key),
            "update": lambda: table.update(key, gradient),
        }
        kinds, sizes = {}, {}
        for name, call in calls.items():
            before = server.verbs()
            for _ in range(scale.one_key_calls):
                call()
            told = grown(before, server.verbs())[name.capitalize()]
            up, down = (round(told[f"{way}_bytes"] / told["calls"]) for way in ("up", "down"))
            sizes[name] = {"request_bytes": up, "reply_bytes": down}
            kinds[name] = Kind(call)
            kinds[f"{name} echo"] = _echo(bare, up, down)
        found = latencies(take_turns(kinds, scale.wire_rounds, scale.one_key_calls))
    for name in calls:
        beyond_ms = found[name]["median_ms"] - found[f"{name} echo"]["median_ms"]
        found[name] |= {"beyond_ms": beyond_ms} | sizes[name]
    return found


def _echo(bare: BareServer, request_bytes: int, reply_bytes: int) -> Kind:
    request = random_bytes(request_bytes)
    return Kind(lambda: bare.whole(request), lambda: bare.prepare(reply_bytes))


def bulk(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time bulk payloads of each size down and up beside bare bytes."""
    found: dict[str, Any] = {"down": {}, "up": {}}
    with served(scale, folder, max(scale.bulk_bytes)) as (server, bare, rows):
        for size in scale.bulk_bytes:
            rng = np.random.default_rng(scale.seed)
            keys = rng.choice(rows, size // (4 * scale.dim), replace=False)
            grads = rng.standard_normal((len(keys), scale.dim), dtype=np.float32)
            table = server.store.table("ads")
            for way, call, request, reply_bytes in (
                ("down", lambda t=table, k=keys: t.lookup(k), b"\0", size),
                (
                    "up",
                    lambda t=table, k=keys, g=grads: t.update(k, g),
                    random_bytes(size),
                    ACKNOWLEDGEMENT_BYTES,
                ),
            ):
                kinds = _bare_kinds(bare, request, reply_bytes)
                kinds["service"] = Kind(call, engine_s=lambda: _stages_s(server.store))
                spent = take_turns(kinds, scale.wire_rounds, scale.bulk_calls)
                found[way][f"{size >> 20} MiB"] = _throughput(size, spent)
    return found


def _stages_s(store: Any) -> float:
    stages = store.stats()["stages"].values()
    return sum(one["seconds"] for one in stages)


def _bare_kinds(bare: BareServer, request: bytes, reply_bytes: int) -> dict[str, Kind]:
    chunks = chunks_of(request)
    return {
        "stream": Kind(lambda: bare.stream(chunks), lambda: bare.prepare(reply_bytes)),
        "whole": Kind(lambda: bare.whole(request), lambda: bare.prepare(reply_bytes)),
    }


def _throughput(size: int, spent: dict[str, Spent]) -> dict[str, Any]:
    wire_s = {name: statistics.median(s - engine for s, engine in t) for name, t in spent.items()}
    best = min(("stream", "whole"), key=wire_s.__getitem__)
    return {
        "calls": len(spent["service"]),
        "call_ms": 1e3 * statistics.median(seconds for seconds, _ in spent["service"]),
        "engine_ms": 1e3 * statistics.median(engine for _, engine in spent["service"]),
        "bytes_per_s": {name: size / seconds for name, seconds in wire_s.items()},
        "yardstick": best,
        "ratio": wire_s[best] / wire_s["service"],
    }


def crowd(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Let many clients call the same server at once, and count each one's calls."""
    with served(scale, folder, max(scale.bulk_bytes)) as (server, _, rows):
        return measure(server.address, rows, scale)
