"""Seconds in buckets: cheap to add to, enough to estimate quantiles from, and addable over servers.

Bounds follow the 1-2-5 series from 100 us to 60 s, so a bucket is at most 2.5 times its lower
bound (3 times for the last), and a quantile is at worst wrong by that. Seconds below the first
bound, or above the last, are known no closer than that.
"""

from bisect import bisect_left

BOUNDS: tuple[float, ...] = (
    *(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
)
"""Upper bounds in seconds, each inside its bucket; one more bucket is for what is above."""


class Histogram:
    """Counts of seconds by bucket, and their sum. Event loop only; copies may be read elsewhere."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Add one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum_seconds += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, how many at most that), as Prometheus wants buckets."""
        buckets, total = [], 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), list(self.counts), strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets

    def summary(self) -> dict[str, float]:
        """Return count, mean, p50, p95 and p99; seconds, 0 where nothing was observed."""
        count = sum(self.counts)
        return {
            "count": count,
            "mean": self.sum_seconds / count if count else 0.0,
            "p50": self.quantile(0.50),
            "p95": self.quantile(0.95),
            "p99": self.quantile(0.99),
        }

    def quantile(self, share: float) -> float:
        """Return about what `share` of all seconds are at most; linear inside a bucket.

        As Prometheus's histogram_quantile, so that a panel and the REST figures agree; what lies
        above the last bound is answered with that bound.
        """
        rank, below, lower = share * sum(self.counts), 0, 0.0
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            if count and below + count >= rank:
                return lower + (bound - lower) * (rank - below) / count
            below, lower = below + count, bound
        return lower if below < rank else 0.0
