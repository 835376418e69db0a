"""The result of a demo: all stats, as data and as JSON.

There are two hit rates of the cache, because both are in use. The hit rate by unique key is the
share of the distinct keys of each lookup that were in the cache; it measures the cache's work. The
hit rate by access is the share of all requested keys, with repetitions, that were in the cache.
Most papers report the latter; it is always higher, because hot keys occur repeatedly.

Neither rate is informative in a session, because rows of announced keys are in the cache before the
keys are looked up. Therefore the session's own stats are shown. The session's hit rate must be 100
%; only a step in parts, whose rows do not fit in the cache together, may miss some keys. In
hot/cold training these stats are those of the mixed batches; hot batches make no lookups in the
store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


def shards_of(stats: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the stats of each shard of a store, or of the store itself if it has no shards."""
    shards: list[dict[str, Any]] = stats.get("shards", [stats])
    return shards


@dataclass(frozen=True)
class SessionResult:
    """Stats of the session in which the training ran."""

    lookahead: int
    """The largest number of steps announced beyond the last finished step."""
    lookup_keys: int
    """The number of unique keys of a lookup, summed over all lookups."""
    hit_rate: float
    """The share of looked-up unique keys whose rows were in the cache, 0 to 1."""
    early_share: float
    """The share of looked-up row bytes that was sent before the step's turn, 0 to 1. It is 0 for an
    embedded store, which sends no bytes."""
    stall_s: float
    """Seconds from the request for a step's rows until all rows could be read. The rows are
    requested from a server one step ahead, so these seconds include the previous step;
    `DemoResult.seconds` contains the time that the loop itself waited."""
    steps_in_parts: int
    """Number of steps whose rows did not fit in the cache together."""

    @classmethod
    def of(cls, shares: Sequence[Mapping[str, Any]]) -> "SessionResult":
        """Return the stats of a session from the stats of a store, or of each of its shards."""
        early, late, keys = (
            sum(one[name] for one in shares)
            for name in ("early_bytes", "late_bytes", "lookup_keys")
        )
        missed = sum((1 - one["hit_rate"]) * one["lookup_keys"] for one in shares)
        return cls(
            lookahead=shares[0]["lookahead_steps_max"],
            lookup_keys=keys,
            hit_rate=1 - missed / max(1, keys),
            early_share=early / max(1, early + late),
            stall_s=max(one["stall_s"] for one in shares),
            steps_in_parts=max(one["steps_in_parts"] for one in shares),
        )


@dataclass(frozen=True)
class PopularityResult:
    """The frequencies of rows that were known before training."""

    count_s: float
    """Seconds spent counting the file."""
    counted_rows: int
    """Number of rows that the training accesses."""
    warmed_rows: int
    """Number of rows read into the cache before the first step; 0 if the policy uses no profile."""


@dataclass(frozen=True)
class HotColdResult:
    """Stats of hot/cold training: about the samples that were trained on the replica, and about the
    replica's rows."""

    budget_bytes: int
    hot_rows: int
    """Number of rows of the replica."""
    hot_bytes: int
    """Bytes of the replica's rows, weights and state."""
    threshold: int
    """Smallest number of accesses in the file that makes a row hot."""
    hot_batches: int
    mixed_batches: int
    hot_samples: int
    mixed_samples: int
    hot_share: float
    """The share of the trained samples that were in all-hot batches, 0 to 1."""
    switches: int
    """Number of times that rows were exchanged with the store."""
    rows_pulled: int
    rows_pushed: int
    exchanged_bytes: int
    calls_in_hot_batches: int
    """Number of calls to the store while hot batches were trained; it should be 0."""
    lookup_keys: int
    """The number of unique keys of a lookup, summed over the lookups that the replica answered."""


@dataclass(frozen=True)
class DemoResult:
    """Stats of one demo. Rates are from 0 to 1; `seconds` contains the seconds of each activity."""

    samples: int
    """Number of samples trained on."""
    samples_held_out: int
    steps: int
    samples_per_second: float
    """Trained samples per second. The time of the dense check is not counted, although in a session
    the store works during that time."""
    loss: float
    auc: float | None
    """AUC of the held-out samples; None if all of them have the same label."""
    framework: str
    """The framework of the model."""
    policy: str
    hit_rate_unique: float
    """Hit rate of lookups during training, by unique key; lookups in a replica count as hits."""
    hit_rate_access: float | None
    """Hit rate by access. None: keys were missed in a session, which does not count accesses."""
    tables: int
    rows: int
    """The number of rows of the dense tables; with sparse keys, the number of trained rows."""
    dim: int
    optimizer: str
    table_bytes: int
    """Bytes of all rows, weights and optimizer state."""
    cache_bytes: int
    """Bytes that the store may use for resident rows, their index and staging."""
    bytes_read: int
    """Bytes of rows that the store read from its directory during training."""
    bytes_written: int
    """Bytes of rows that the store wrote to its directory during training. The checkpoint
    afterwards writes the rows that are still in the cache."""
    network_bytes: int | None
    """Bytes of requests and replies during training. None: there was no network."""
    seconds: dict[str, float]
    popularity: PopularityResult | None
    """The rows' frequencies. None: no accesses were counted."""
    session: SessionResult | None
    """The session's stats. None: there was no session."""
    hot: HotColdResult | None
    """Stats of hot/cold training. None: all batches were trained through the store."""
    digest: str
    """Hash of the digests of all tables of the store, in the order of the columns."""
    digest_of_check: str
    """Hash of the digests of all tables of the dense check, which got the same gradients."""
    differing_tables: tuple[str, ...]
    first_difference: str | None
    """The first position during training at which a looked-up row differed from the row of the
    dense check, or None."""

    @property
    def exact(self) -> bool:
        """Whether the store and the dense check agreed to the bit, at each step and at the end."""
        return (
            self.digest == self.digest_of_check
            and not self.differing_tables
            and self.first_difference is None
        )

    def as_json(self) -> dict[str, Any]:
        """Return all stats as a JSON object."""
        return asdict(self) | {"exact": self.exact}


@dataclass(frozen=True)
class Comparison:
    """The results of several jobs on one file, by name.

    All jobs train the same model on the same samples, and hold out the same samples. All jobs
    except hot/cold training, which arranges samples in new batches, use the same order, and get the
    same bits.
    """

    results: dict[str, DemoResult]
    count_s: float
    """Seconds spent counting the file, for the jobs that needed counts."""

    @property
    def exact(self) -> bool:
        """Whether every store agreed with its dense check to the bit."""
        return all(result.exact for result in self.results.values())

    def as_json(self) -> dict[str, Any]:
        """Return all stats as a JSON object."""
        results = {name: result.as_json() for name, result in self.results.items()}
        return {"results": results, "count_s": self.count_s, "exact": self.exact}
