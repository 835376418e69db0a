"""What calls leave in counters and histograms, and how a scrape shows it."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from embstore_server.telemetry.metrics import BOUNDS, Metrics
from embstore_server.transports.rest.exposition import exposition

SERVICE = {
    "version": "1.2.3",
    "instance": "i",
    "start_time_seconds": 1.7e9,
    "uptime_s": 5.0,
    "ready": True,
    "reason": "",
    "queue_calls": 3,
    "running_verb": "Lookup",
    "inflight_bytes": 4096,
    "remembered_calls": 5,
}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def observe(metrics: Metrics, verb: str = "Lookup", code: str = "OK", **more: Any) -> None:
    values = {"seconds": 0.003, "wait_s": 0.001, "run_s": 0.0015} | more
    metrics.observe_call(verb, code, **{"received_bytes": 10, "sent_bytes": 100} | values)


def scraped(metrics: Metrics, service: Any = SERVICE, stats: Any = None) -> Samples:
    age_s = None if stats is None else 1.5
    text = exposition(metrics.registry, {"service": service, **(stats or {})}, age_s).decode()
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type != "unknown", family.name
        for sample in family.samples:
            at = sample.name, frozenset(sample.labels.items())
            assert at not in samples, f"shown twice: {at}"
            samples[at] = sample.value
    return samples


def latency(*seconds: float) -> dict[str, float]:
    """Return what is kept of calls of so many seconds."""
    metrics = Metrics()
    for s in seconds:
        observe(metrics, seconds=s)
    found: dict[str, float] = metrics.stats()["Lookup"]["call"]
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_bounds_grow_from_100_us_to_60_s():
    assert (BOUNDS[0], BOUNDS[-1]) == (1e-4, 60.0)
    assert all(1 < high / low <= 3 for low, high in pairwise(BOUNDS))


def test_quantiles_are_within_their_bucket():
    generator = np.random.default_rng(7)
    seconds = np.exp(generator.normal(-5, 1.5, 5000))
    found = latency(*seconds.tolist())
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        exact = float(np.quantile(seconds, share))
        bucket = int(np.searchsorted(BOUNDS, exact))
        assert BOUNDS[bucket - 1] <= found[name] <= BOUNDS[bucket]
    assert found["mean"] == pytest.approx(float(seconds.mean()))


def test_quantile_divides_a_bucket_linearly():
    found = latency(*[0.015] * 4)  # (0.01, 0.02]
    assert found["p50"] == pytest.approx(0.015)
    assert found["p95"] == pytest.approx(0.0195)


def test_quantile_above_the_last_bound_is_that_bound():
    assert latency(1e6)["p50"] == BOUNDS[-1]


def test_histograms_add_up():
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


def test_call_that_never_reached_the_engine_has_no_wait():
    metrics = Metrics()
    observe(metrics)
    observe(metrics, code="UNAVAILABLE", wait_s=0.0, run_s=0.0)
    found = metrics.stats()["Lookup"]
    assert [found[part]["count"] for part in ("call", "wait", "engine")] == [2, 1, 1]
    assert found["call"]["mean"] == pytest.approx(0.003)
    assert 0.0005 <= found["wait"]["p99"] <= 0.001
