"""What the server counts of itself, and how Prometheus reads it.

    histogram   seconds in buckets, and quantiles out of them
    calls       counts, bytes and seconds of every call: on the hot path
    state       what the process is doing now
    storefigures  the store's own statistics as metric families
    sessions    those of look-ahead sessions and of their planning
    frequency   those of what is counted, warmed and pinned
    exposition  one scrape: all of them as text

Counters are never set back while the process lives, except a pool's: they begin anew when the last
table of its layout is dropped and another comes, and those of counted accesses with ClearCounts;
Prometheus takes it for a restart, as it is.
Labels are verbs, codes, stages, layouts, and names of tables and live sessions: all bounded.
"""

from embstore_server.metrics.calls import Metrics
from embstore_server.metrics.exposition import Exposition

__all__ = ["Exposition", "Metrics"]
