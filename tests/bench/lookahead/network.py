"""A trainer's waits between its steps, over a network with delays.

One table is on a server. A trainer computes for a fixed number of milliseconds per step, and its
calls are delayed in each direction. Three ways to train take turns, on the same batches:

    plain   `lookup`, compute, `update`
    late    a session with waits="late"
    none    a session with waits="none"

The **wait** of a step is its time without the computation. The digests of the three ways must be
equal.

The network is a TCP proxy in a process of its own, which passes on the bytes that it receives after
a delay, in each direction, at the pace at which they arrived: `python -m
tests.bench.lookahead.network ADDRESS MS` prints the address at which it listens, and serves until
its input ends.
"""

import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from embstore.handles.store import Store
from embstore_client import connect
from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.stores import Written, wait_until
from tests.bench.lookahead.trace import Keys, Trace
from tests.bench.serving import Server
from tests.bench.stores import create_table

_PIECE_BYTES = 1 << 18


@contextmanager
def delayed(upstream: str, delay_ms: float) -> Iterator[str]:
    """Yield an address whose traffic to another one is delayed."""
    command = [sys.executable, "-m", __name__, upstream, str(delay_ms)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def _pass_on(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def receive() -> None:
        while piece := source.recv(_PIECE_BYTES):
            pieces.put((time.perf_counter() + delay_s, piece))
        pieces.put((0.0, b""))

    def send() -> None:
        while True:
            due, piece = pieces.get()
            if not piece:
                sink.shutdown(socket.SHUT_WR)
                return
            if (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            sink.sendall(piece)

    for work in (receive, send):
        threading.Thread(target=work, daemon=True).start()


def _serve(upstream: str, delay_ms: float) -> None:
    host, _, port = upstream.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            ours, _ = listener.accept()
            theirs = socket.create_connection((host, int(port)))
            for end in (ours, theirs):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _pass_on(ours, theirs, 1e-3 * delay_ms)
            _pass_on(theirs, ours, 1e-3 * delay_ms)

    threading.Thread(target=accept, daemon=True).start()
    sys.stdout.write(f"127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


WAYS = ("plain", "late", "none")
_CACHE_BYTES = 1 << 28


def _plain(
    store: Store, name: str, batches: list[Keys], computed: Callable[[Any], Any]
) -> Iterator[None]:
    table = store.table(name)
    for keys in batches:
        table.update(keys, computed(table.lookup(keys)))
        yield


def _session(
    store: Store, name: str, batches: list[Keys], computed: Callable[[Any], Any], waits: Any
) -> Iterator[None]:
    with store.session([name], waits=waits) as run:
        for step in run.steps(batches, lambda keys: {name: keys}):
            step.update({name: computed(step.lookup()[name])})
            yield


def _trained(
    store: Store, way: str, batches: list[Keys], computation_ms: float, scale: Scale
) -> dict[str, Any]:
    """Train a new table one way; return the digest, and how long the measured steps waited."""
    name = "network"
    create_table(store, name, scale.rows, scale.dim)

    def computed(rows: Any) -> Any:
        begun = time.perf_counter()
        gradients = np.float32(0.01) * rows
        wait_until(begun + 1e-3 * computation_ms)
        computed_ms.append(1e3 * (time.perf_counter() - begun))
        return gradients

    computed_ms: list[float] = []
    steps_ms: list[float] = []
    steps = (
        _plain(store, name, batches, computed)
        if way == "plain"
        else _session(store, name, batches, computed, way)
    )
    begun = time.perf_counter()
    for _ in steps:
        now = time.perf_counter()
        steps_ms.append(1e3 * (now - begun))
        begun = now
    warm = scale.network_warm_steps
    waited = [s - c for s, c in zip(steps_ms, computed_ms, strict=True)][warm:]
    digest = store.table(name).digest()
    store.drop_table(name)
    return {
        "digest": digest,
        "wait_ms": statistics.median(waited),
        "wait_ms_mean": statistics.fmean(waited),
        "step_ms": statistics.median(steps_ms[warm:]),
        "computed_ms": statistics.median(computed_ms[warm:]),
        "wait_share": statistics.median(waited) / statistics.median(computed_ms[warm:]),
    }


def measure(
    written: Written, scale: Scale, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a cell for each batch size, delay and computation."""
    cells = []
    with closing(Server(written.folder / "network", _CACHE_BYTES)) as server:
        for draws in scale.network_draws:
            trace = Trace(scale, scale.network_exponent, draws)
            batches = [trace.batch(index) for index in range(scale.network_steps)]
            for delay_ms in scale.network_delays_ms:
                progress(f"network of {delay_ms:g} ms each way, {draws} draws a step")
                with (
                    delayed(server.address, delay_ms) as address,
                    connect(address, transport="grpc") as store,
                ):
                    place = {"delay_ms": delay_ms, "unique_rows": trace.working_set()}
                    for computation_ms in scale.computations_ms:
                        cell = _cell(store, batches, computation_ms, scale)
                        cells.append(place | {"computation_ms": computation_ms, "ways": cell})
    return cells


def _cell(
    store: Store, batches: list[Keys], computation_ms: float, scale: Scale
) -> dict[str, dict[str, Any]]:
    ways = {way: _trained(store, way, batches, computation_ms, scale) for way in WAYS}
    digests = {found.pop("digest") for found in ways.values()}
    assert len(digests) == 1, "all ways train to the same bits"
    return ways


if __name__ == "__main__":
    _serve(sys.argv[1], float(sys.argv[2]))
