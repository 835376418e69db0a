"""The statistics of `embstore.Store.stats()`, and its device's facts, as metric families.

Most figures are one entry of a dictionary, named below with the metric that it becomes. A figure
that has an origin (misses) or a kind (evictions) is one metric with a label, so that the parts add
up in a query.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

_DEVICE_GAUGES = (
    ("memory_bytes", "embstore_device_memory_bytes", "Memory of the device; of cpu: the host's."),
    ("memory_free_bytes", "embstore_device_memory_free_bytes", "Of it, what nobody uses."),
    ("scratch_bytes", "embstore_device_scratch_bytes", "Memory for calls, beside the cache."),
    ("compile_seconds", "embstore_device_compile_seconds", "That compiling kernels took."),
)
_DEVICE_LABELS = ("model", "driver_version", "runtime_version")
_POOL_GAUGES = (
    ("slots", "embstore_pool_slots", "Rows that the pool has room for."),
    ("resident_rows", "embstore_pool_resident_rows", "Rows in the pool."),
    ("dirty_rows", "embstore_pool_dirty_rows", "Rows in the pool newer than the disk's."),
    ("memory_bytes", "embstore_pool_memory_bytes", "Memory of rows, index and staging."),
)
_POOL_COUNTERS = (
    ("accesses", "embstore_pool_accesses", "Keys of lookups, repeated ones each time."),
    ("access_hits", "embstore_pool_access_hits", "Of the accesses, those found resident."),
    ("unique_keys", "embstore_pool_unique_keys", "Keys of lookups, each once a call."),
    ("unique_hits", "embstore_pool_unique_hits", "Of the unique keys, those found resident."),
    ("calls_in_parts", "embstore_pool_calls_in_parts", "Calls with more keys than slots."),
    ("parts", "embstore_pool_parts", "Parts that those calls were done in."),
)
_POOL_KINDS = (
    (
        ("log", "base", "initializer"),
        "misses",
        "origin",
        "Rows brought in by any command, by origin.",
    ),
    (("clean", "dirty"), "evictions", "kind", "Rows that left the pool; dirty ones were logged."),
)
_TABLE_GAUGES = (
    ("rows", "embstore_table_rows", "Keys of the table are below this."),
    ("resident_rows", "embstore_table_resident_rows", "Rows of the table in the cache."),
    ("dirty_rows", "embstore_table_dirty_rows", "Rows of the table newer than the disk's."),
    ("row_bytes", "embstore_table_row_bytes", "Bytes of one row, weights and state."),
    ("t", "embstore_table_t", "Updates applied (t); a restore takes it back."),
)
_CACHE_GAUGES = (
    ("budget_bytes", "embstore_cache_budget_bytes", "Memory that the cache may take."),
    ("memory_bytes", "embstore_cache_memory_bytes", "Memory that the cache takes."),
)
_STORAGE_GAUGES = (
    ("commit", "embstore_commit", "Number of the last commit."),
    ("log_bytes", "embstore_log_bytes", "Bytes of the log."),
    ("log_segments", "embstore_log_segments", "Files of the log."),
    ("log_rows", "embstore_log_rows", "Rows whose newest stored content is in the log."),
    ("log_records", "embstore_log_records", "Records in the log, overwritten ones too."),
    ("log_index_bytes", "embstore_log_index_bytes", "Memory of the log's index."),
    ("merge_running", "embstore_merge_running", "1 while a merge runs in the background."),
)
_STORAGE_COUNTERS = (
    ("bytes_read", "embstore_storage_read_bytes", "Bytes of rows read from log and base."),
    ("bytes_written", "embstore_storage_written_bytes", "Bytes of rows appended to the log."),
    ("folds", "embstore_folds", "Merges of the log into the base."),
    ("compactions", "embstore_compactions", "Merges of the log into a smaller log."),
    ("merge_failures", "embstore_merge_failures", "Merges that failed, and changed nothing."),
)
_STAGE_COUNTERS = (
    ("seconds", "embstore_stage_seconds", "Time of calls spent in the stage."),
    ("laps", "embstore_stage_laps", "How often the stage was passed."),
)

_Rows = tuple[tuple[str, str, str], ...]
_Entries = list[tuple[list[str], Mapping[str, Any]]]


def store_families(stats: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of a store's statistics."""
    cache: _Entries = [([], stats["cache"])]
    storage: _Entries = [([], stats["storage"])]
    pools = [([str(p["dim"]), p["optimizer"]], p) for p in stats["cache"]["pools"]]
    tables = [([name], table) for name, table in stats["tables"].items()]
    stages = [([name], stage) for name, stage in stats["stages"].items()]
    yield from _families(GaugeMetricFamily, _CACHE_GAUGES, [], cache)
    yield from _families(GaugeMetricFamily, _POOL_GAUGES, ["dim", "optimizer"], pools)
    yield from _families(CounterMetricFamily, _POOL_COUNTERS, ["dim", "optimizer"], pools)
    yield from _by_kind(pools)
    yield from _families(GaugeMetricFamily, _TABLE_GAUGES, ["table"], tables)
    yield from _families(GaugeMetricFamily, _STORAGE_GAUGES, [], storage)
    yield from _families(CounterMetricFamily, _STORAGE_COUNTERS, [], storage)
    yield GaugeMetricFamily(
        "embstore_checkpoints", "Kept checkpoints.", len(stats["storage"]["checkpoints"])
    )
    yield from _families(CounterMetricFamily, _STAGE_COUNTERS, ["stage"], stages)


def device_families(name: str, facts: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of a device; a fact that it does not have has none."""
    labels = {label: facts.get(label, "") for label in _DEVICE_LABELS}
    yield InfoMetricFamily(
        "embstore_device", "What keeps and computes the rows.", {"device": name} | labels
    )
    had = tuple(row for row in _DEVICE_GAUGES if row[0] in facts)
    yield from _families(GaugeMetricFamily, had, [], [([], facts)])


def _families(
    make: Callable[..., Any], metrics: _Rows, labels: list[str], entries: _Entries
) -> Iterator[Metric]:
    for key, name, text in metrics:
        family = make(name, text, labels=labels)
        for values, figures in entries:
            family.add_metric(values, float(figures[key]))
        yield family


def _by_kind(pools: _Entries) -> Iterator[Metric]:
    for kinds, what, label, text in _POOL_KINDS:
        family = CounterMetricFamily(
            f"embstore_pool_{what}", text, labels=["dim", "optimizer", label]
        )
        for values, figures in pools:
            for kind in kinds:
                family.add_metric([*values, kind], figures[f"{what}_{kind}"])
        yield family
