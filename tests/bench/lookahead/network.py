"""What a trainer waits for between its steps, over a network that takes its time.

One table on a server; a trainer computes for so many milliseconds in a step, and its calls go
through a delay each way. Three ways to train, in turn, on the same batches:

    plain   `lookup`, compute, `update`
    late    a session with waits="late"
    none    a session with waits="none"

A step's **wait** is its length without the computation. Their digests have to be equal.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embstore.config import RowWiseAdagrad, Uniform
from embstore.handles.store import Store
from embstore_client import connect
from tests.bench.lookahead.delays import Delayed
from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.stores import Written
from tests.bench.lookahead.trace import Keys, Trace
from tests.bench.lookahead.waits import wait_until
from tests.bench.serving import Server

WAYS = ("plain", "late", "none")
_CACHE_BYTES = 1 << 28


def _batches(trace: Trace, scale: Scale) -> list[Keys]:
    return [trace.batch(index) for index in range(scale.network_steps)]


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
    store.create_table(
        name,
        dim=scale.dim,
        rows=scale.rows,
        optimizer=RowWiseAdagrad(learning_rate=0.01),
        initializer=Uniform(-0.01, 0.01),
    )

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
    folder: Path = written.folder / "network"
    server = Server(folder, _CACHE_BYTES)
    try:
        for draws in scale.network_draws:
            trace = Trace(scale, scale.network_exponent, draws)
            batches = _batches(trace, scale)
            for delay_ms in scale.network_delays_ms:
                progress(f"network of {delay_ms:g} ms each way, {draws} draws a step")
                with Delayed(server.address, delay_ms) as delayed:
                    store = connect(delayed.address, transport="grpc")
                    for computation_ms in scale.computations_ms:
                        ways = {
                            way: _trained(store, way, batches, computation_ms, scale)
                            for way in WAYS
                        }
                        digests = {found.pop("digest") for found in ways.values()}
                        assert len(digests) == 1, "all ways train to the same bits"
                        cells.append(
                            {
                                "delay_ms": delay_ms,
                                "computation_ms": computation_ms,
                                "unique_rows": trace.working_set(),
                                "ways": ways,
                            }
                        )
                    store.close()
    finally:
        server.close()
    return cells
