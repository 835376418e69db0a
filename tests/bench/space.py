"""The cost of storage in the long run: bytes written, space, stalls, opening, memory, cold reads.

A table is loaded in random order. Then a hundredth of its rows, chosen at random, is updated and
committed. This is repeated until much was folded, and all merges have ended. Then keys by a Zipf
law are looked up and updated. All of this is done at several sizes of the table, with a cache that
is small compared with the table. The bytes written are those of every write of the process (wchar
of /proc/self/io).

To simulate a kill, the store's files are copied, as links, while the store is open.

The same is measured for tables of sparse keys. Their ids are the dense keys, spread over 64 bits.
"""

import contextlib
import gc
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench import disk, memory
from tests.bench.scale import Scale, row_bytes
from tests.bench.stores import copy_store, create_table, open_store
from tests.bench.turns import seconds_of
from tests.bench.workload import Keys, Rows

DIM = 16
"""Rows of 80 bytes."""
_RECORD_BYTES = 96
_CACHED_ROWS = 500_000
_CALL_KEYS = 50_000
_UPDATED_ROWS = 4_000_000
_ZIPF_KEYS = 20_000_000
_PRIME = 1_000_000_007


def sizes(scale: Scale, folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Measure each size; what a size has written is gone before the next."""
    found = {}
    for rows in scale.space_rows:
        for kind, ids in (("", _dense), (" of sparse keys", _spread)):
            with tempfile.TemporaryDirectory(dir=folder) as of_size:
                found[f"{rows:,} rows{kind}"] = _measured(pathlib.Path(of_size), rows, ids, scale)
    return found


def _dense(keys: Keys) -> Keys:
    return keys


def _spread(keys: Keys) -> Keys:
    """Return an id of 64 bits for each key, another for each."""
    mixed = keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed ^ mixed >> np.uint64(32)).view(np.int64)


def _measured(
    folder: pathlib.Path, rows: int, ids: Callable[[Keys], Keys], scale: Scale
) -> dict[str, Any]:
    path, rng = folder / "store", np.random.default_rng(scale.seed)
    gradients = rng.standard_normal((_CALL_KEYS, DIM), dtype=np.float32) * np.float32(0.01)
    cache_bytes = scale.cache_bytes(min(_CACHED_ROWS, rows / 4), DIM)
    found: dict[str, Any] = {"rows": rows, "row_bytes": row_bytes(DIM)}
    store = _opened(path, cache_bytes)
    table = create_table(store, "ads", rows if ids is _dense else None, DIM)

    begin = time.perf_counter()
    written, calls = _update(store, table, ids(rng.permutation(rows)), gradients)
    found["load"] = {
        "seconds": time.perf_counter() - begin,
        "written_per_byte": written / (rows * row_bytes(DIM)),
        "longest_call_s": max(calls),
        "median_call_s": statistics.median(calls),
    }
    share = max(rows // 100, _CALL_KEYS // 10)
    count = -(-min(_UPDATED_ROWS, 4 * rows) // share)
    rounds = [
        _update(store, table, ids(rng.choice(rows, share, replace=False)), gradients)
        for _ in range(count)
    ]
    total = sum(written for written, _ in rounds)
    found["updates"] = {
        "written_per_byte": total / (count * share * row_bytes(DIM)),
        "longest_call_s": max(max(calls) for _, calls in rounds),
    }
    found["space"] = disk.allocated_bytes(path) / (rows * _RECORD_BYTES)
    storage = store.stats()["storage"]
    found |= {name: storage[name] for name in ("base_files", "base_runs", "log_rows")}
    hot = ids(rng.choice(rows, min(_CALL_KEYS, rows // 10), replace=False))
    found["hot_lookup_s"] = min(seconds_of(table.lookup, hot) for _ in range(9))
    found["hot_update_s"] = min(
        seconds_of(table.update, hot, gradients[: len(hot)]) for _ in range(9)
    )
    found["zipf"] = _by_zipf(table, rows, ids, gradients, scale)
    killed = copy_store(path, folder / "killed")
    store.close()
    del store, table
    shutil.rmtree(path)
    return found | _opened_again(killed, cache_bytes, rows, ids, scale)


def _by_zipf(
    table: Any, rows: int, ids: Callable[[Keys], Keys], gradients: Rows, scale: Scale
) -> dict[str, float]:
    """Look up and update keys by a bounded Pareto law, most of them not resident; keys a second."""
    rng, calls = np.random.default_rng(scale.seed), -(-min(_ZIPF_KEYS, rows) // _CALL_KEYS)
    power, seconds = 1 - scale.zipf_exponent, {"lookup": 0.0, "update": 0.0}
    for _ in range(calls):
        drawn = rng.random(_CALL_KEYS) * (rows**power - 1) + 1
        ranks = np.minimum(drawn ** (1 / power), rows - 1).astype(np.int64)
        keys = ids(ranks * _PRIME % rows)  # neighbours in rank are no neighbours on disk
        seconds["lookup"] += seconds_of(table.lookup, keys)
        seconds["update"] += seconds_of(table.update, keys, gradients)
    return {f"{verb}s_per_s": calls * _CALL_KEYS / seconds[verb] for verb in seconds}


def _update(store: Any, table: Any, keys: Keys, gradients: Rows) -> tuple[int, list[float]]:
    """Update rows call by call, commit, settle; return bytes written and seconds of the calls."""
    before, calls = _written_bytes(), []
    for low in range(0, len(keys), _CALL_KEYS):
        chunk = keys[low : low + _CALL_KEYS]
        calls.append(seconds_of(table.update, chunk, gradients[: len(chunk)]))
    store.checkpoint(f"at {store.command}")
    with store.executor.tables.reading():  # the engine's background runs merges too
        store.executor.storage.merges.finish()
    return _written_bytes() - before, calls


def _opened_again(
    path: pathlib.Path, cache_bytes: int, rows: int, ids: Callable[[Keys], Keys], scale: Scale
) -> dict[str, Any]:
    opens, lookups, found = [], [], {}
    rng = np.random.default_rng(scale.seed)
    for _ in range(scale.cold_repeats):
        disk.drop_page_cache(path)
        before = _anonymous_bytes()
        begin = time.perf_counter()
        with contextlib.closing(_opened(path, cache_bytes, read_only=True)) as store:
            opens.append(time.perf_counter() - begin)
            found["memory_per_row"] = (_anonymous_bytes() - before) / rows
            keys = ids(rng.integers(0, rows, min(scale.cold_reads, rows // 10)))
            lookups.append(seconds_of(store.table("ads").lookup, keys))
        del store
    disk.drop_page_cache(path)
    with contextlib.closing(_opened(path, cache_bytes, read_only=True)) as store:
        digest_s = seconds_of(store.table("ads").digest)
    del store
    disk.drop_page_cache(path)
    read_s = sum(map(disk.read_plain, path.glob("base/*")))
    return found | {
        "open_s": statistics.median(opens),
        "cold_reads": len(keys),
        "cold_lookup_s": statistics.median(lookups),
        "digest_s": digest_s,
        "plain_read_s": read_s,
        "digest_share_of_disk": read_s / digest_s,
    }


def _opened(path: pathlib.Path, cache_bytes: int, *, read_only: bool = False) -> Any:
    return open_store(path, cache_bytes, checkpoints_keep=1, read_only=read_only)


def _written_bytes() -> int:
    return disk.io_bytes("wchar")


def _anonymous_bytes() -> int:
    gc.collect()
    return memory.status_bytes("self")["RssAnon"]
