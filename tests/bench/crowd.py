"""Many clients at once: does the server divide its time fairly among them?

Each client is a process with one connection. It calls in a closed loop: lookup, update, lookup
again. All clients begin at one instant and stop at another, and each client counts the calls that
it finished in between. All clients request the same number of keys per call, so the number of calls
measures the share that a client got. The server is **fair** if the slowest client has at least half
of the mean number of calls. If there are more clients than cores, the processes also compete for
the cores, and the figure includes this competition.
"""

import contextlib
import statistics
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from embstore_client import connect
from tests.bench.scale import Scale
from tests.bench.worker import Worker

WARM_CALLS = 3
BATCHES = 8
START_MARGIN_S = 0.5
"""From when all are ready to when they begin: each has been told by then."""


class Client:
    """One client, in its own process."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._connection = contextlib.ExitStack()

    def connect(self, address: str, rows: int, index: int, transport: str, writes: bool) -> None:
        """Connect, draw some batches of keys, and warm up."""
        rng = np.random.default_rng([self._scale.seed, index])
        connected = connect(address, label=f"client-{index}", transport=transport)
        store = self._connection.enter_context(connected)
        self._writes = writes
        self._table = store.table("ads")
        self._batches = rng.integers(0, rows, (BATCHES, self._scale.crowd_keys))
        shape = (self._scale.crowd_keys, self._scale.dim)
        self._grads = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.01)
        for turn in range(WARM_CALLS):
            self._step(turn)

    def _step(self, turn: int) -> None:
        keys = self._batches[turn % BATCHES]
        self._table.lookup(keys)
        if self._writes:
            self._table.update(keys, self._grads)

    def run(self, begin: float) -> list[float]:
        """Run from `begin` (time.monotonic()) on; return the seconds of each finished step."""
        time.sleep(max(begin - time.monotonic(), 0.0))
        end = begin + self._scale.crowd_s
        times: list[float] = []
        last = time.monotonic()
        while True:
            self._step(len(times))
            now = time.monotonic()
            if now > end:
                return times
            times.append(now - last)
            last = now

    def close(self) -> None:
        self._connection.close()


def measure(
    address: str,
    rows: int,
    scale: Scale,
    *,
    clients: int = 0,
    transport: str = "grpc",
    writes: bool = True,
) -> dict[str, Any]:
    """Return the calls of each client, and the slowest beside the mean; as many clients as the
    scale says, unless their number is given. They only look up where `writes` is False."""
    workers: list[Worker] = []
    clients = clients or scale.crowd_clients

    def hire(index: int) -> None:
        worker = Worker("crowd", scale)
        workers.append(worker)
        worker.ask("connect", address, rows, index, transport, writes)

    with ThreadPoolExecutor(clients) as threads:
        try:
            hired = [threads.submit(hire, index) for index in range(clients)]
            wait(hired)  # all of them, also if one fails: who was hired is let go below
            for one in hired:
                one.result()
            begin = time.monotonic() + START_MARGIN_S
            times = list(threads.map(lambda worker: worker.ask("run", begin), workers))
        finally:
            list(threads.map(Worker.close, workers))
    return _shares(times, scale, 2 if writes else 1)


def _shares(times: list[list[float]], scale: Scale, calls_a_step: int) -> dict[str, Any]:
    calls = [calls_a_step * len(steps) for steps in times]
    steps_all = sorted(seconds for steps in times for seconds in steps)
    mean = statistics.fmean(calls)
    return {
        "clients": len(calls),
        "keys": scale.crowd_keys,
        "seconds": scale.crowd_s,
        "calls": calls,
        "calls_per_s": sum(calls) / scale.crowd_s,
        "step_ms": 1e3 * statistics.median(steps_all) if steps_all else None,
        "slowest_to_mean": min(calls) / mean if mean else 0.0,
    }


start = Client
