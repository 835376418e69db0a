"""What calls leave in counters and histograms, and how a scrape tells it."""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import embstore
from embstore import RowWiseAdagrad, Sgd, Uniform
from embstore_server.metrics import Exposition, Metrics
from embstore_server.metrics.exposition import Captured
from embstore_server.metrics.histogram import BOUNDS, Histogram
from embstore_server.metrics.state import State

STATE = State(
    version="1.2.3",
    instance="i",
    started=1.7e9,
    ready=True,
    queue_calls=3,
    running_verb="Lookup",
    inflight_bytes=4096,
    remembered_calls=5,
    store_id="s",
    epoch=2,
    command=77,
)
OPENING = State("1.2.3", "i", 1.7e9, False, 0, "", 0, 0)

CPU_FACTS = {"model": "a CPU", "memory_bytes": 800, "memory_free_bytes": 0, "threads": 2}
GPU_FACTS = {
    "model": "a GPU",
    "memory_bytes": 1 << 37,
    "memory_free_bytes": 1 << 36,
    "driver_version": "12.9",
    "runtime_version": "12.8",
    "multiprocessors": 100,
    "compile_seconds": 2.5,
    "scratch_bytes": 1 << 20,
}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def observe(metrics: Metrics, verb: str = "Lookup", code: str = "OK", **figures: Any) -> None:
    values = {"seconds": 0.003, "wait_s": 0.001, "run_s": 0.0015} | figures
    metrics.observe_call(verb, code, **{"received_bytes": 10, "sent_bytes": 100} | values)


def scraped(
    metrics: Metrics, state: State = STATE, stats: Any = None, facts: Any = CPU_FACTS
) -> Samples:
    captured = None if stats is None else Captured(stats, facts, 1.5)
    text = Exposition(metrics).text(state, captured).decode()
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type != "unknown", family.name
        for sample in family.samples:
            at = sample.name, frozenset(sample.labels.items())
            assert at not in samples, f"told twice: {at}"
            samples[at] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.fixture
def stats(tmp_path: Path) -> Iterator[dict[str, Any]]:
    with embstore.open(tmp_path / "store", cache_bytes=1 << 20) as store:
        ads = store.create_table(
            "ads/eu",
            dim=8,
            rows=1000,
            optimizer=RowWiseAdagrad(learning_rate=0.1),
            initializer=Uniform(-1, 1),
        )
        store.create_table(
            "users", dim=4, rows=50, optimizer=Sgd(learning_rate=0.1), initializer=Uniform(-1, 1)
        )
        ads.lookup([1, 2, 2, 3])
        ads.lookup([1, 1, 4])
        ads.update([1, 2], np.ones((2, 8), np.float32))
        store.checkpoint("one")
        yield store.stats()


def test_bounds_grow_from_100_us_to_60_s() -> None:
    assert (BOUNDS[0], BOUNDS[-1]) == (1e-4, 60.0)
    assert all(1 < high / low <= 3 for low, high in pairwise(BOUNDS))


def test_seconds_of_a_bound_are_inside_its_bucket() -> None:
    histogram = Histogram()
    histogram.observe(BOUNDS[3])
    histogram.observe(math.nextafter(BOUNDS[3], 1.0))
    assert histogram.counts[3:5] == [1, 1]


def test_quantiles_are_within_their_bucket() -> None:
    generator = np.random.default_rng(7)
    seconds = np.exp(generator.normal(-5, 1.5, 5000))
    histogram = Histogram()
    for s in seconds.tolist():
        histogram.observe(s)
    for share in (0.5, 0.95, 0.99):
        exact = float(np.quantile(seconds, share))
        bucket = int(np.searchsorted(BOUNDS, exact))
        assert BOUNDS[bucket - 1] <= histogram.quantile(share) <= BOUNDS[bucket]
    assert histogram.summary()["mean"] == pytest.approx(float(seconds.mean()))


def test_quantile_divides_a_bucket_linearly() -> None:
    histogram = Histogram()
    for _ in range(4):
        histogram.observe(0.015)  # (0.01, 0.02]
    assert histogram.quantile(0.5) == pytest.approx(0.015)
    assert histogram.quantile(0.25) == pytest.approx(0.0125)


def test_quantile_above_the_last_bound_is_that_bound() -> None:
    histogram = Histogram()
    histogram.observe(1e6)
    assert histogram.quantile(0.5) == BOUNDS[-1]


def test_quantile_of_nothing_is_zero() -> None:
    assert Histogram().summary() == {"count": 0, "mean": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0}


def test_calls_are_counted_by_verb_and_code() -> None:
    metrics = Metrics()
    observe(metrics)
    observe(metrics)
    observe(metrics, code="NOT_FOUND")
    observe(metrics, "Update", received_bytes=1000)
    samples = scraped(metrics)
    assert value(samples, "embstore_calls_total", verb="Lookup", code="OK") == 2
    assert value(samples, "embstore_calls_total", verb="Lookup", code="NOT_FOUND") == 1
    assert value(samples, "embstore_received_bytes_total", verb="Lookup") == 30
    assert value(samples, "embstore_received_bytes_total", verb="Update") == 1000
    assert value(samples, "embstore_sent_bytes_total", verb="Lookup") == 300
    assert metrics.totals()["Lookup"]["codes"] == {"OK": 2, "NOT_FOUND": 1}


def test_histograms_add_up() -> None:
    metrics = Metrics()
    for seconds in (0.00005, 0.003, 0.004, 100.0):
        observe(metrics, seconds=seconds)
    samples = scraped(metrics)
    name = "embstore_call_seconds"
    assert value(samples, f"{name}_count", verb="Lookup") == 4
    assert value(samples, f"{name}_sum", verb="Lookup") == pytest.approx(100.00705)
    assert value(samples, f"{name}_bucket", verb="Lookup", le="0.0001") == 1
    assert value(samples, f"{name}_bucket", verb="Lookup", le="0.005") == 3
    assert value(samples, f"{name}_bucket", verb="Lookup", le="60.0") == 3
    assert value(samples, f"{name}_bucket", verb="Lookup", le="+Inf") == 4


def test_call_that_never_reached_the_engine_has_no_wait() -> None:
    metrics = Metrics()
    observe(metrics)
    observe(metrics, code="UNAVAILABLE", wait_s=0.0, run_s=0.0)
    latencies = metrics.latencies()["Lookup"]
    assert {part: figures["count"] for part, figures in latencies.items()} == {
        "call": 2,
        "wait": 1,
        "engine": 1,
    }
    assert latencies["call"]["mean"] == pytest.approx(0.003)
    assert 0.0005 <= latencies["wait"]["p99"] <= 0.001


def test_scrape_tells_the_moment() -> None:
    samples = scraped(Metrics())
    assert value(samples, "embstore_ready") == 1
    assert value(samples, "embstore_queue_calls") == 3
    assert value(samples, "embstore_running_calls", verb="Lookup") == 1
    assert value(samples, "embstore_inflight_bytes") == 4096
    assert value(samples, "embstore_remembered_calls") == 5
    assert value(samples, "embstore_epoch") == 2
    assert value(samples, "embstore_command") == 77
    assert value(samples, "embstore_start_time_seconds") == 1.7e9
    labels = {"version": "1.2.3", "instance": "i", "store_id": "s"}
    assert value(samples, "embstore_build_info", **labels) == 1
    assert value(samples, "process_resident_memory_bytes") > 1 << 20


def test_scrape_before_the_store_is_open_says_nothing_of_it() -> None:
    samples = scraped(Metrics(), OPENING)
    names = {name for name, _ in samples}
    assert value(samples, "embstore_ready") == 0
    assert not names & {
        "embstore_epoch",
        "embstore_command",
        "embstore_running_calls",
        "embstore_stats_age_seconds",
        "embstore_cache_budget_bytes",
    }


def test_scrape_tells_cache_tables_storage_and_stages(stats: dict[str, Any]) -> None:
    samples = scraped(Metrics(), stats=stats)
    pool = {"dim": "8", "optimizer": "rowwise_adagrad"}
    assert value(samples, "embstore_stats_age_seconds") == 1.5
    assert value(samples, "embstore_cache_budget_bytes") == 1 << 20
    assert value(samples, "embstore_cache_memory_bytes") == stats["cache"]["memory_bytes"]
    assert value(samples, "embstore_pool_accesses_total", **pool) == 7
    assert value(samples, "embstore_pool_access_hits_total", **pool) == 2
    assert value(samples, "embstore_pool_unique_keys_total", **pool) == 5
    assert value(samples, "embstore_pool_unique_hits_total", **pool) == 1
    assert value(samples, "embstore_pool_misses_total", **pool, origin="initializer") == 4
    assert value(samples, "embstore_pool_misses_total", **pool, origin="log") == 0
    assert value(samples, "embstore_pool_evictions_total", **pool, kind="dirty") == 0
    assert value(samples, "embstore_pool_resident_rows", **pool) == 4
    assert value(samples, "embstore_table_rows", table="ads/eu") == 1000
    assert value(samples, "embstore_table_resident_rows", table="ads/eu") == 4
    assert value(samples, "embstore_table_t", table="ads/eu") == 1
    assert value(samples, "embstore_table_t", table="users") == 0
    assert value(samples, "embstore_storage_written_bytes_total") > 0
    assert value(samples, "embstore_log_rows") == 2
    assert value(samples, "embstore_checkpoints") == 1
    assert value(samples, "embstore_merge_running") == 0
    for stage, figures in stats["stages"].items():
        assert value(samples, "embstore_stage_laps_total", stage=stage) == figures["laps"]


def test_scrape_tells_the_device(stats: dict[str, Any]) -> None:
    samples = scraped(Metrics(), stats=stats | {"device": "cuda:1"}, facts=GPU_FACTS)
    labels = {"model": "a GPU", "driver_version": "12.9", "runtime_version": "12.8"}
    assert value(samples, "embstore_device_info", device="cuda:1", **labels) == 1
    assert value(samples, "embstore_device_memory_bytes") == 1 << 37
    assert value(samples, "embstore_device_memory_free_bytes") == 1 << 36
    assert value(samples, "embstore_device_scratch_bytes") == 1 << 20
    assert value(samples, "embstore_device_compile_seconds") == 2.5


def test_scrape_has_no_metric_of_what_a_device_does_not_have(stats: dict[str, Any]) -> None:
    samples = scraped(Metrics(), stats=stats)
    assert value(samples, "embstore_device_memory_free_bytes") == 0
    assert {name for name, _ in samples if name.startswith("embstore_device")} == {
        "embstore_device_info",
        "embstore_device_memory_bytes",
        "embstore_device_memory_free_bytes",
    }


def test_every_number_of_pools_and_storage_is_told(stats: dict[str, Any]) -> None:
    """One more figure in the statistics is one more metric: this fails until it has one."""
    numbered: dict[str, Any] = {}
    counts = iter(range(1000, 2000))
    for section in (stats["storage"], *stats["cache"]["pools"]):
        for key, figure in section.items():
            if isinstance(figure, int) and key != "dim":
                section[key] = numbered[f"{key} {next(counts)}"] = next(counts)
    told = set(scraped(Metrics(), stats=stats).values())
    assert not [key for key, number in numbered.items() if number not in told]
