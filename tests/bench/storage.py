"""The store's storage beside the bare disk: cold rows, write-back, checkpoint, digest.

Each part first runs with small sizes, in a folder of its own, so that the measured code is compiled
and warm. The store and the disk alternate within a part: store, disk, store, disk.
"""

import contextlib
import functools
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from embstore.engine.scrubbing import Scrubber
from embstore.storage.files import Files
from embstore.storage.verify import verify
from embstore_server.setup.settings import Settings
from tests.bench import disk
from tests.bench.scale import Scale, row_bytes
from tests.bench.sizes import of_size
from tests.bench.stores import (
    CHUNK_KEYS,
    create_table,
    open_store,
    small_grads,
    update_all,
    wait_for_folds,
)
from tests.bench.turns import seconds_of
from tests.bench.worker import SkippedError
from tests.bench.workload import Keys

STORAGE_DIM = 128
"""Rows of 528 bytes, as in the design's measurements of write-back."""
DIGEST_BLOCK_KEYS = 256
DIGEST_TOUCHED_SHARE = 0.01


Part = Callable[[Scale, pathlib.Path], dict[str, Any]]


def warmed(part: Part) -> Part:
    """Return a part that is measured small before, so that it is compiled and warm."""

    @functools.wraps(part)
    def measure(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, size in (("small", of_size(Scale, "quick")), ("full", scale)):
            (folder / name).mkdir()
            result = part(size, folder / name)
            shutil.rmtree(folder / name)
        return result

    return measure


@contextlib.contextmanager
def _table(
    folder: pathlib.Path, scale: Scale, rows: int, dim: int, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield a store and its table, all of whose rows can be cached."""
    cache_bytes = scale.cache_bytes(1.1 * rows, dim)
    with open_store(folder / "store", cache_bytes, **options) as store:
        yield store, create_table(store, "ads", rows, dim)


@warmed
def cold_rows(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time lookups of cold rows, in the log and in the base, beside a plain map."""
    kind = disk.file_system(folder)
    if kind in ("tmpfs", "ramfs"):
        raise SkippedError(f"files on {kind} never become cold")
    path, plain = folder / "store", folder / "plain"
    fill_bytes = scale.cache_bytes(4 * CHUNK_KEYS, scale.dim)
    grads = small_grads(scale.dim)
    with open_store(path, fill_bytes, checkpoints_keep=1) as store:
        table = create_table(store, "ads", scale.cold_rows, scale.dim)
        for first in range(0, scale.cold_rows, CHUNK_KEYS):
            last = min(first + CHUNK_KEYS, scale.cold_rows)
            update_all(table, np.arange(first, last, dtype=np.int64), grads)
        store.checkpoint("filled")
    disk.write_plain(plain, scale.cold_rows * row_bytes(scale.dim))
    result: dict[str, Any] = {"rows": scale.cold_rows, "reads": scale.cold_reads}
    result["log"] = _cold_reads(scale, path, plain)

    # A generation is folded when it is older than every kept label: two more, one of them kept.
    with open_store(path, fill_bytes, checkpoints_keep=1) as store:
        table = create_table(store, "ads", scale.cold_rows, scale.dim)
        for label in ("second", "third"):
            table.update(np.arange(8, dtype=np.int64), grads[:8])
            store.checkpoint(label)
        enough = scale.cold_rows * row_bytes(scale.dim) // 10
        folded = wait_for_folds(store, enough, scale.fold_wait_s)
    if folded:
        result["base"] = _cold_reads(scale, path, plain)
    else:
        result["base_skipped"] = f"not folded within {scale.fold_wait_s:.0f} s"
    return result


def _cold_reads(scale: Scale, path: pathlib.Path, plain: pathlib.Path) -> dict[str, Any]:
    rng = np.random.default_rng(scale.seed)
    cache_bytes = scale.cache_bytes(2 * scale.cold_reads, scale.dim)
    opens, lookups, gathers, lookup_bytes, gather_bytes = [], [], [], [], []
    for _ in range(scale.cold_repeats):
        keys: Keys = rng.integers(0, scale.cold_rows, scale.cold_reads)
        disk.drop_page_cache(path)
        begin = time.perf_counter()
        # Read-only, or a fold would start at once and read beside what is timed.
        with open_store(path, cache_bytes, read_only=True) as store:
            table = store.table("ads")
            opens.append(time.perf_counter() - begin)
            before = disk.io_bytes("read_bytes")
            lookups.append(seconds_of(table.lookup, keys))
            lookup_bytes.append(disk.io_bytes("read_bytes") - before)
        del store, table  # or what they mapped would stay mapped, and in the page cache

        disk.drop_page_cache(plain)
        before = disk.io_bytes("read_bytes")
        gathers.append(disk.gather_plain(plain, keys))
        gather_bytes.append(disk.io_bytes("read_bytes") - before)
    if min(gather_bytes) < scale.cold_reads * disk.GATHER_ROW_BYTES:
        raise SkippedError(
            f"the plain file did not become cold: {min(gather_bytes)} bytes were read"
        )
    return {
        "open_s": statistics.median(opens),
        "lookup_s": statistics.median(lookups),
        "plain_gather_s": statistics.median(gathers),
        "lookup_read_bytes": statistics.median(lookup_bytes),
        "plain_gather_read_bytes": statistics.median(gather_bytes),
        "ratio": statistics.median(gathers) / statistics.median(lookups),
        "allocated_bytes": disk.allocated_bytes(path),
    }


@warmed
def write_back(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time flush() of dirty rows into the page cache."""
    rows, grads, times = 4 * scale.write_back_rows, small_grads(STORAGE_DIM), []
    rng = np.random.default_rng(scale.seed)
    with _table(folder, scale, rows, STORAGE_DIM) as (_, table):
        for _ in range(scale.storage_repeats + 1):
            keys = rng.choice(rows, scale.write_back_rows, replace=False)
            update_all(table, keys, grads)
            times.append(seconds_of(table.flush))
    return {
        "rows": scale.write_back_rows,
        "row_bytes": row_bytes(STORAGE_DIM),
        "flush_ms": 1e3 * statistics.median(times[1:]),
        "flush_ms_all": [1e3 * seconds for seconds in times],
    }


@warmed
def checkpoint(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time checkpoint() of dirty rows beside one file written in order and fsynced."""
    rows = scale.checkpoint_rows
    size_bytes = rows * row_bytes(STORAGE_DIM)
    # All labels are kept, so that no fold runs beside what is timed.
    keep = scale.storage_repeats + 2
    grads = small_grads(STORAGE_DIM)
    keys = np.random.default_rng(scale.seed).permutation(rows)
    stored, plain = [], []
    with _table(folder, scale, rows, STORAGE_DIM, checkpoints_keep=keep) as (store, table):
        for repeat in range(scale.storage_repeats):
            update_all(table, keys, grads)
            stored.append(seconds_of(store.checkpoint, f"label-{repeat}"))
            # A new file each time, as the log's are: a page that the system has to find first
            # costs several times one that a removed file has just given back.
            plain.append(disk.write_plain(folder / f"plain-{repeat}", size_bytes))
    return {
        "dirty_bytes": size_bytes,
        "checkpoint_bytes_per_s": size_bytes / statistics.median(stored),
        "plain_bytes_per_s": size_bytes / statistics.median(plain),
        "checkpoint_s_all": stored,
        "plain_s_all": plain,
        "ratio": statistics.median(plain) / statistics.median(stored),
    }


@warmed
def digest(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time digest() of a whole table, and after an update of 1 % of its blocks."""
    rows, grads = scale.digest_rows, small_grads(scale.dim)
    rng = np.random.default_rng(scale.seed)
    blocks = rows // DIGEST_BLOCK_KEYS
    touched_blocks = max(1, int(blocks * DIGEST_TOUCHED_SHARE))
    whole, partial = [], []
    with _table(folder, scale, rows, scale.dim) as (_, table):
        for _ in range(scale.storage_repeats):
            update_all(table, np.arange(rows, dtype=np.int64), grads)
            whole.append(seconds_of(table.digest))
            first = DIGEST_BLOCK_KEYS * rng.choice(blocks, touched_blocks, replace=False)
            update_all(table, (first[:, None] + np.arange(DIGEST_BLOCK_KEYS)).ravel(), grads)
            partial.append(seconds_of(table.digest))
    hashed_bytes = rows * (8 + 4 * scale.dim + 4)  # key, weights, one accumulator: no padding
    return {
        "hashed_bytes": hashed_bytes,
        "whole_s": statistics.median(whole),
        "partial_s": statistics.median(partial),
        "touched_blocks": touched_blocks,
        "bytes_per_s": hashed_bytes / statistics.median(whole),
        "ratio": statistics.median(whole) / statistics.median(partial),
    }


@warmed
def checking(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time what checks files: verify() of a directory, and the scrubber of a server."""
    rows, path = scale.checkpoint_rows, folder / "store"
    with _table(folder, scale, rows, STORAGE_DIM) as (store, table):
        update_all(table, np.arange(rows), small_grads(STORAGE_DIM))
        store.checkpoint("filled")
        scrubber = Scrubber(store.executor.storage, 1)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        while not scrubber.found.passes:
            scrubber.step()
        scrub_s, scrub_cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
        scrubber.join_threads()
    files = [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    disk.drop_page_cache(path)
    read_s = sum(seconds_of(file.read_bytes) for file in files)
    disk.drop_page_cache(path)
    begin = time.perf_counter()
    report = verify(Files(path), print, lambda done, of: None)
    verify_s = time.perf_counter() - begin
    assert not report.problems
    return {
        "bytes": size,
        "verify_bytes_per_s": size / verify_s,
        "verify_share_of_disk": read_s / verify_s,
        "scrub_bytes_per_s": scrubber.bytes / scrub_s,
        "scrub_share_of_a_core": scrub_cpu_s / scrubber.bytes * Settings.scrub_bytes_per_s,
    }
