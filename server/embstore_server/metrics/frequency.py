"""What is counted, recorded, warmed and pinned, as metric families.

Counts begin anew with ClearCounts, and where no hot set is pinned its version is 0.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_COUNTERS = (
    ("counted_calls", "embstore_counted_calls", "Lookups whose keys were counted."),
    ("counted_accesses", "embstore_counted_accesses", "Keys counted, repeated ones each time."),
)
_GAUGES = (
    ("count_rate", "embstore_count_rate", "Share of the lookups that is counted."),
    ("memory_bytes", "embstore_frequency_memory_bytes", "Memory of counts and profiles."),
)
_TABLE_GAUGES = (
    ("distinct", "embstore_table_counted_keys", "Keys that counts are kept of."),
    ("error", "embstore_table_count_error", "Every count is low by at most this."),
    ("profile_rows", "embstore_table_profile_rows", "Rows that the imported profile knows."),
)
_PARTS = (
    ("recorded", "rate", "embstore_recorded_rate", "Share of the keys that is recorded."),
    ("recorded", "events", "embstore_recorded_events", "Keys of calls that are recorded."),
    ("recorded", "calls", "embstore_recorded_calls", "Calls of the recorded stretch."),
    ("warming", "rows", "embstore_warming_rows", "Rows brought in by the last warm-up."),
    ("warming", "of", "embstore_warming_of_rows", "Rows that it is to bring in."),
    ("warming", "running", "embstore_warming_running", "1 while it runs."),
    ("hot_set", "version", "embstore_hot_set_version", "Of the pinned hot set; 0: none is."),
    ("hot_set", "rows", "embstore_hot_set_rows", "Rows of the pinned hot set."),
    ("hot_set", "bytes", "embstore_hot_set_bytes", "Bytes of these rows."),
    ("hot_set", "pinned_rows", "embstore_hot_set_pinned_rows", "Of them, those in the cache."),
)


def frequency_families(frequency: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of stats["frequency"]."""
    for key, name, text in _COUNTERS:
        yield CounterMetricFamily(name, text, float(frequency[key]))
    for key, name, text in _GAUGES:
        yield GaugeMetricFamily(name, text, float(frequency[key]))
    for part, key, name, text in _PARTS:
        yield GaugeMetricFamily(name, text, float(frequency[part][key]))
    for key, name, text in _TABLE_GAUGES:
        family = GaugeMetricFamily(name, text, labels=["table"])
        for table, figures in frequency["tables"].items():
            family.add_metric([table], float(figures[key]))
        yield family
