"""What the service adds to the wire: calls of one key, bulk payloads, many clients at once.

One client process, a server of the service and a bare one (``bare.py``) beside it; what is compared
takes turns (``turns.py``). Times are the client's, of the whole Python call.

**One key.** A lookup, or an update, beside a unary echo with as many bytes both ways. Nothing is
taken off: the difference holds queue, engine, framing, checks.

**Bulk.** Lookups of unique keys (payload: their rows) and updates of them (payload: their
gradients), with the engine's own time taken off: the growth of the sum of all stages in the store's
stats, its mean over the calls of a turn. Stages run within a call and beside nothing else of it,
for the server takes a request whole, computes, then answers. What the engine thread spends outside
its stages (checks, the memory of the reply), and what the client spends on keys and gradients, is
not taken off. The yardstick is the faster of two ways to move the payload's bytes alone:

    stream  chunks as the service cuts them; down into a sink, up into one
    whole   one unary message, which the receiver drops

Down, the bare server's replies are prepared beforehand; up, the bare client's chunks are. Noted
beside, and no part of the goal: the ratio to the way that the service itself chose (`form`), and
what a bare client reaches that joins the chunks as the real one does ("joined").

**Crowd.** See ``crowd.py``.
"""

import contextlib
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench import crowd
from tests.bench.bare import BareServer, chunks_of, random_bytes
from tests.bench.engine import HEADROOM, stage_seconds
from tests.bench.scale import Scale
from tests.bench.serving import Server, Verbs, per_call
from tests.bench.stores import create_table, small_grads, update_all
from tests.bench.turns import Kind, Spent, take_turns

ACKNOWLEDGEMENT_BYTES = 100
"""About what the service answers an update with: its bytes are nothing beside a payload's."""


class WireContender:
    """Owns both servers; one method for each part."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._rows = 2 * max(scale.bulk_bytes) // (4 * scale.dim)
        cache_bytes = scale.cache_bytes(HEADROOM * self._rows, scale.dim)
        with contextlib.ExitStack() as servers:
            self._server = Server(pathlib.Path(scale.data_dir) / "wire", cache_bytes)
            servers.callback(self._server.close)
            self._bare = BareServer()
            servers.callback(self._bare.close)
            self._table = create_table(self._server.store, "ads", self._rows, scale.dim)
            keys = np.arange(self._rows, dtype=np.int64)
            update_all(self._table, keys, small_grads(scale.dim))
            self._servers = servers.pop_all()

    def one_key(self) -> dict[str, Any]:
        """Time calls of one key beside echoes of as many bytes."""
        key = np.array([self._rows // 2], np.int64)
        gradient = np.full((1, self._scale.dim), 0.01, np.float32)
        calls: dict[str, Callable[[], Any]] = {
            "lookup": lambda: self._table.lookup(key),
            "update": lambda: self._table.update(key, gradient),
        }
        kinds = {}
        sizes = {name: self._message_bytes(name, call) for name, call in calls.items()}
        for name, call in calls.items():
            kinds[name] = Kind(call)
            kinds[f"{name}-echo"] = self._echo(*sizes[name])
        spent = take_turns(kinds, self._scale.wire_rounds, self._scale.one_key_calls)
        times = {name: _latency([seconds for seconds, _ in s]) for name, s in spent.items()}
        return {name: _beside_echo(name, times, sizes[name]) for name in calls}

    def _message_bytes(self, name: str, call: Callable[[], Any]) -> tuple[int, int]:
        """Return the bytes of request and reply of a call, as the server counts them."""
        before = self._server.verbs()
        for _ in range(self._scale.one_key_calls):
            call()
        mean = per_call(before, self._server.verbs())[name.capitalize()]
        return round(mean["received_bytes"]), round(mean["sent_bytes"])

    def _echo(self, request_bytes: int, reply_bytes: int) -> Kind:
        request = random_bytes(request_bytes)
        return Kind(lambda: self._bare.whole(request), lambda: self._bare.prepare(reply_bytes))

    def bulk(self) -> dict[str, Any]:
        """Time bulk payloads of each size down and up beside bare bytes."""
        found: dict[str, Any] = {"down": {}, "up": {}}
        for payload_bytes in self._scale.bulk_bytes:
            for way, kinds in (
                ("down", self._down(payload_bytes)),
                ("up", self._up(payload_bytes)),
            ):
                before = self._server.verbs()
                spent = take_turns(kinds, self._scale.wire_rounds, self._scale.bulk_calls)
                form = _form(per_call(before, self._server.verbs()))
                found[way][f"{payload_bytes >> 20} MiB"] = _throughput(payload_bytes, spent, form)
        return found

    def _service(self, call: Callable[[], Any]) -> Kind:
        return Kind(call, engine_s=lambda: sum(stage_seconds(self._server.store).values()))

    def _keys(self, payload_bytes: int) -> Any:
        rng = np.random.default_rng(self._scale.seed)
        return rng.choice(self._rows, payload_bytes // (4 * self._scale.dim), replace=False)

    def _down(self, payload_bytes: int) -> dict[str, Kind]:
        keys, request = self._keys(payload_bytes), b"\0"
        chunks = chunks_of(request)

        def prepare() -> None:
            self._bare.prepare(payload_bytes)

        return {
            "service": self._service(lambda: self._table.lookup(keys)),
            "stream": Kind(lambda: self._bare.stream(chunks), prepare),
            "whole": Kind(lambda: self._bare.whole(request), prepare),
            "joined": Kind(lambda: self._bare.joined(chunks), prepare),
        }

    def _up(self, payload_bytes: int) -> dict[str, Kind]:
        keys, whole = self._keys(payload_bytes), random_bytes(payload_bytes)
        rng = np.random.default_rng(self._scale.seed)
        grads = rng.standard_normal((len(keys), self._scale.dim), dtype=np.float32)
        chunks = chunks_of(whole)

        def prepare() -> None:
            self._bare.prepare(ACKNOWLEDGEMENT_BYTES)

        return {
            "service": self._service(lambda: self._table.update(keys, grads)),
            "stream": Kind(lambda: self._bare.stream(chunks), prepare),
            "whole": Kind(lambda: self._bare.whole(whole), prepare),
        }

    def crowd(self) -> dict[str, Any]:
        """Let many clients call the same server at once, and count each one's calls."""
        return crowd.measure(self._server.address, self._rows, self._scale)

    def close(self) -> None:
        """End both servers."""
        self._servers.close()


def _latency(times: list[float]) -> dict[str, Any]:
    return {
        "calls": len(times),
        "median_ms": 1e3 * statistics.median(times),
        "p99_ms": 1e3 * statistics.quantiles(times, n=100)[98],
    }


def _beside_echo(name: str, times: dict[str, Any], sizes: tuple[int, int]) -> dict[str, Any]:
    call, echo = times[name], times[f"{name}-echo"]
    return {
        "request_bytes": sizes[0],
        "reply_bytes": sizes[1],
        "service": call,
        "echo": echo,
        "difference_ms": call["median_ms"] - echo["median_ms"],
    }


def _form(verbs: Verbs) -> str:
    """Return the way that the bulk calls went, of whose verbs these are the figures."""
    return "stream" if verbs.keys() & {"LookupStream", "UpdateStream"} else "whole"


def _throughput(payload_bytes: int, spent: dict[str, Spent], form: str) -> dict[str, Any]:
    """Return medians, the engine's seconds taken off before."""
    wire_s = {name: statistics.median(s - engine for s, engine in t) for name, t in spent.items()}
    best = min(("stream", "whole"), key=wire_s.__getitem__)
    return {
        "calls": len(spent["service"]),
        "call_ms": 1e3 * statistics.median(seconds for seconds, _ in spent["service"]),
        "engine_ms": 1e3 * statistics.median(engine for _, engine in spent["service"]),
        "bytes_per_s": {name: payload_bytes / seconds for name, seconds in wire_s.items()},
        "yardstick": best,
        "ratio": wire_s[best] / wire_s["service"],
        "form": form,
        "ratio_to_form": wire_s[form] / wire_s["service"],
    }


start = WireContender
"""Both servers up, every row in the cache."""
