"""The cost of many tables under many checkpoint labels: to create, keep, list and open them.

    python -m tests.bench.tables [TABLES] [LABELS]

TABLES tables are created. Then one table is updated and a checkpoint is made, LABELS times. The
last case shares nothing between checkpoints: every table is updated before each checkpoint, in this
process only. The other cases are measured in this process and over gRPC at a server, each at its
default durability. The results are medians of the elapsed time, and of the processor time of the
calling thread, which does not depend on what else the machine does.
"""

import os
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import embstore
from embstore_client import connect
from embstore_server.setup.launch import ServerProcess
from tests.bench.serving import verbs_of

DIM, ROWS, CACHE_BYTES, FEW = 8, 1000, 64 << 20, 100
OPTIONS = ("--device", "cpu", "--cache-bytes", str(CACHE_BYTES), "--call-timeout-max-s", "3600")


def main(tables: int, labels: int) -> None:
    """Print the figures of each way."""
    with TemporaryDirectory() as folder:
        _embedded(Path(folder) / "one", tables, labels, all_change=False)
        _served(Path(folder) / "served", tables, labels)
        _embedded(Path(folder) / "all", tables, labels, all_change=True)


def _embedded(data: Path, tables: int, labels: int, *, all_change: bool) -> None:
    def opened() -> Any:
        return embstore.open(data, device="cpu", cache_bytes=CACHE_BYTES, checkpoints_keep=labels)

    print(f"embedded, {'every table' if all_change else 'one table'} changed a checkpoint")
    with closing(opened()) as store:
        _fill(store, data, tables, labels, all_change=all_change)
        _say("list of checkpoints", [_timed(store.checkpoints)])
    _say("open and close", [_timed(lambda: opened().close())])


def _served(data: Path, tables: int, labels: int) -> None:
    print("served over gRPC, one table changed a checkpoint")
    process = ServerProcess(data, *OPTIONS, "--checkpoints-keep", str(labels))
    process.start()
    try:
        with closing(connect(process.address, transport="grpc")) as store:
            _fill(store, data, tables, labels, all_change=False)
            _say("list of checkpoints", [_timed(store.checkpoints)])
            sent = verbs_of(process.admin)["ListCheckpoints"]["down_bytes"]
            print(f"  answer of gRPC: {sent:,} bytes")
            url = f"http://{process.admin}/api/v1/checkpoints"
            with urllib.request.urlopen(url, timeout=600) as reply:
                print(f"  answer of REST: {len(reply.read()):,} bytes")
    finally:
        process.kill()


def _fill(store: Any, data: Path, tables: int, labels: int, *, all_change: bool) -> None:
    made: list[Any] = []
    times = [_timed(lambda: made.append(_table(store, len(made)))) for _ in range(tables)]
    _say(f"a table, the first {FEW}", times[:FEW])
    _say(f"a table, the last {FEW}", times[-FEW:])
    gradients, spent, sizes = np.ones((1, DIM), np.float32), [], []
    for number in range(labels):
        for table in made if all_change else made[:1]:
            table.update(np.array([number]), gradients)
        spent.append(_timed(partial(store.checkpoint, f"label-{number}")))
        sizes.append(os.path.getsize(data / "CATALOGUE"))
    few = min(10, labels)
    _say(f"a checkpoint, the first {few}", spent[:few])
    _say(f"a checkpoint, the last {few}", spent[-few:])
    print(f"  CATALOGUE: {sizes[0]:,} bytes, at last {sizes[-1]:,}")


def _table(store: Any, number: int) -> Any:
    return store.create_table(
        f"table_{number}",
        dim=DIM,
        rows=ROWS,
        optimizer=embstore.RowWiseAdagrad(learning_rate=0.01),
        initializer=embstore.Uniform(-0.01, 0.01),
    )


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call, and those of a processor in this thread."""
    begin, used = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - begin, time.thread_time() - used


def _say(what: str, times: list[tuple[float, float]]) -> None:
    clock, used = (median(column) * 1e3 for column in zip(*times, strict=True))
    print(f"  {what}: {clock:.2f} ms, {used:.2f} ms of a processor", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:])) if sys.argv[1:] else main(2000, 100)
