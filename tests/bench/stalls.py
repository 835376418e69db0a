"""The longest wait of a call of one key while a long operation runs on the same server.

One client looks up one key and updates it, again and again, over gRPC. Meanwhile another client
makes the server run a long operation: a digest, a check of integrity, a checkpoint, an export, a
warm-up. A fold begins by itself, after the checkpoint. The longest call of the first client is the
**stall**. For comparison, one row of the results has no long operation: it shows the stalls that
the machine itself causes.

Half of the rows fit into the cache, and all rows were written before.

The **drain** is the time from SIGTERM to the end of a server. It is measured while such operations
run, and while the server is idle; in both cases the dirty rows are committed.
"""

import contextlib
import pathlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from embstore.errors import EmbstoreError
from embstore.profiles.profile import Profile, TableProfile
from embstore_client import connect
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table, small_grads, update_all
from tests.bench.turns import seconds_of

_SHARE = 0.9
"""Of the slots, of a warm-up."""
_LEAST_CALLS = 20
_DRAIN_S = 5.0


@contextlib.contextmanager
def _written(scale: Scale, folder: pathlib.Path, *options: str) -> Iterator[tuple[Server, Any]]:
    """Yield a server of a table all of whose rows were written, and what writes them again."""
    cache_bytes = scale.cache_bytes(scale.stall_rows / 2, scale.dim)
    with contextlib.closing(Server(folder, cache_bytes, *options)) as server:
        table = create_table(server.store, "ads", scale.stall_rows, scale.dim)
        order = np.random.default_rng(scale.seed).permutation(scale.stall_rows)
        write = partial(update_all, table, order, small_grads(scale.dim))
        write()
        yield server, write


def served(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    options = ("--backup-within", str(folder / "backups"), "--policy", "lfu", "--count-rate", "1")
    with _written(scale, folder / "store", *options) as (server, write):
        store = server.store
        profile, table = _profile(scale.stall_rows), store.table("ads")
        works: dict[str, Callable[[], Any]] = {
            "nothing": lambda: time.sleep(scale.stall_idle_s),
            "digest": table.digest,
            "integrity": store.check_integrity,
            "flush": store.flush,
            "checkpoint": lambda: store.checkpoint("long"),
            "fold": lambda: _merged(store, scale.fold_wait_s),
            "backup": lambda: store.backup("long", "long"),
            "profile import": lambda: store.import_profile(profile),
            "profile export": lambda: store.export_profile(source="imported"),
            "warm-up": lambda: store.warm_cache(_SHARE),
        }
        found = {}
        for name, work in works.items():
            if name in ("checkpoint", "flush"):
                write()
            with connect(server.address, transport="grpc") as other:
                found[name] = _stalls(other.table("ads"), work, scale.dim)
        return found


def drained(scale: Scale, folder: pathlib.Path) -> dict[str, float]:
    """Measure how long a server takes to end: idle, and while much that is long runs."""
    options = ("--drain-s", str(_DRAIN_S), "--slow-call-ms", "1000000")
    found = {"drain_s": _DRAIN_S}
    for name, begin in (("idle_s", _begin_nothing), ("busy_s", _begin_much)):
        with _written(scale, folder / name, *options) as (server, _):
            begin(server)
            found[name] = seconds_of(server.stop)
    return found


def _begin_nothing(server: Server) -> None:
    """Leave the server idle."""


def _begin_much(server: Server) -> None:
    """Have what takes long done again and again, until it is cut off."""
    table = server.store.table("ads")

    def again(work: Callable[[], Any]) -> None:
        with contextlib.suppress(EmbstoreError):
            while True:
                work()

    works = (table.digest, server.store.check_integrity, server.store.flush)
    for work in works:
        threading.Thread(target=again, args=(work,)).start()
    for _ in range(_LEAST_CALLS):
        table.lookup(np.array([7]))  # they have begun by then


def _merged(store: Any, seconds: float) -> None:
    """Wait until no merge is due any more: one follows the other, with no call in between."""
    deadline = time.monotonic() + seconds
    while store.stats()["storage"]["merge_running"] and time.monotonic() < deadline:
        time.sleep(0.05)


def _profile(rows: int) -> Any:
    keys = np.arange(rows)
    counts = TableProfile("ads", 0, keys, keys + 1, int(rows * (rows + 1) // 2))
    return Profile({"ads": counts}, rate=1.0)


def _stalls(table: Any, work: Callable[[], Any], dim: int) -> dict[str, Any]:
    """Return the longest calls of one key while `work` is done, and how long that took."""
    key, gradient = np.array([7]), np.full((1, dim), 0.01, np.float32)
    table.update(key, gradient)
    spent: dict[str, float] = {}
    thread = threading.Thread(target=lambda: spent.update(work=seconds_of(work)))
    lookups: list[float] = []
    updates: list[float] = []
    thread.start()
    while thread.is_alive() or len(lookups) < _LEAST_CALLS:
        lookups.append(seconds_of(table.lookup, key))
        updates.append(seconds_of(table.update, key, gradient))
    thread.join()
    return {
        "work_s": spent["work"],
        "calls": len(lookups) + len(updates),
        "median_ms": 1e3 * statistics.median(lookups + updates),
        "lookup_ms": 1e3 * max(lookups),
        "update_ms": 1e3 * max(updates),
        "stall_ms": 1e3 * max(lookups + updates),
    }
