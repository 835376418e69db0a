"""The result of a demo: all figures, as data and as JSON.

Two hit rates of the cache, because both are in use. By unique key: the share of the distinct keys
of each lookup that were in the cache (the cache's work). By access: the share of all keys as the
trainer named them, repeats included (reported by most papers, and always higher, as hot keys
repeat).

Neither is informative in a session: keys are announced once each, and their rows are in the cache
before they are looked up. There the session's own figures are shown, and its hit rate must be 100
%; only a step in parts, whose rows do not fit the cache together, may miss some. In hot/cold
training they are the mixed batches' rates; hot batches are answered here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


def shards_of(stats: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the stats of each shard of a store, or its own where it has none."""
    shards: list[dict[str, Any]] = stats.get("shards", [stats])
    return shards


@dataclass(frozen=True)
class SessionResult:
    """Figures of the session that the training was in."""

    lookahead: int
    """Steps announced beyond the last finished one, at most."""
    lookup_keys: int
    """Keys of all lookups, by unique key."""
    hit_rate: float
    """The share of these keys whose rows were in the cache when they were looked up, 0 to 1."""
    early_share: float
    """The share of looked-up row bytes that was sent before the step's turn, 0 to 1. It is 0 for an
    embedded store, which sends nothing."""
    stall_s: float
    """Seconds from asking for a step's rows until all could be read. A server is asked a step
    ahead, so they include the step before; `DemoResult.seconds` has the loop's own wait."""
    steps_in_parts: int
    """Steps whose rows did not fit the cache together."""

    @classmethod
    def of(cls, shares: Sequence[Mapping[str, Any]]) -> "SessionResult":
        """Return the figures of a session from the stats of a store, or of each shard of one."""
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
    """The rows' frequencies known before training."""

    count_s: float
    """Seconds that it took to count the file."""
    counted_rows: int
    """Rows that will be accessed."""
    warmed_rows: int
    """Rows brought into the cache before the first step; 0 where the policy uses no profile."""


@dataclass(frozen=True)
class HotColdResult:
    """Figures of hot/cold training: the samples trained on the replica, and the replica's rows."""

    budget_bytes: int
    hot_rows: int
    """Rows of the replica."""
    hot_bytes: int
    """Bytes of these rows, weights and state."""
    threshold: int
    """Accesses in the file from which on a row is hot."""
    hot_batches: int
    mixed_batches: int
    hot_samples: int
    mixed_samples: int
    hot_share: float
    """The share of the trained samples that were in all-hot batches, 0 to 1."""
    switches: int
    """Times that rows were exchanged with the store."""
    rows_pulled: int
    rows_pushed: int
    exchanged_bytes: int
    calls_in_hot_batches: int
    """Calls to the store while hot batches were trained: none, if all is well."""
    lookup_keys: int
    """Keys of the lookups that the replica answered, by unique key."""


@dataclass(frozen=True)
class DemoResult:
    """Figures of one demo. Rates are from 0 to 1; `seconds` are by activity."""

    samples: int
    """Samples trained on."""
    samples_held_out: int
    steps: int
    samples_per_second: float
    """Samples a second of training, without the dense check; a session's store works during it."""
    loss: float
    auc: float | None
    """AUC of the held-out samples; None if they have one label only."""
    framework: str
    """The framework of the model."""
    policy: str
    hit_rate_unique: float
    """Hit rate of lookups while training, by unique key; a replica's rows are hits."""
    hit_rate_access: float | None
    """None: not known, as a session that misses any knows no accesses."""
    tables: int
    rows: int
    """Rows of dense tables, or the trained rows of sparse keys."""
    dim: int
    optimizer: str
    table_bytes: int
    """Bytes of all rows, weights and optimizer state."""
    cache_bytes: int
    """Bytes that the store may use for resident rows, their index and staging."""
    bytes_read: int
    """Bytes of rows that the store read from its directory while training."""
    bytes_written: int
    """The same to its directory; the rows in the cache are written by the checkpoint after it."""
    network_bytes: int | None
    """Bytes of requests and replies while training; None: there was no network."""
    seconds: dict[str, float]
    popularity: PopularityResult | None
    """None: nothing was counted."""
    session: SessionResult | None
    """None: there was no session."""
    hot: HotColdResult | None
    """None: everything was trained at the store."""
    digest: str
    """Hash of the digests of all tables of the store, in the order of the columns."""
    digest_of_check: str
    """The same of the dense check, which had the same gradients."""
    differing_tables: tuple[str, ...]
    first_difference: str | None
    """Where a row looked up while training first differed from the check's, or None."""

    @property
    def exact(self) -> bool:
        """Whether the store and the dense check agreed to the bit, at each step and at the end."""
        return (
            self.digest == self.digest_of_check
            and not self.differing_tables
            and self.first_difference is None
        )

    def as_json(self) -> dict[str, Any]:
        """Return all figures as a JSON object."""
        return asdict(self) | {"exact": self.exact}


@dataclass(frozen=True)
class Comparison:
    """The results of several jobs on one file, by name.

    All train on the same samples with the same model, and the same ones are held out. All except
    hot/cold, which packs them anew, do so in the same order, and get the same bits.
    """

    results: dict[str, DemoResult]
    count_s: float
    """Seconds that it took to count the file, for the jobs that needed it."""

    @property
    def exact(self) -> bool:
        """Whether each agreed with its dense check to the bit."""
        return all(result.exact for result in self.results.values())

    def as_json(self) -> dict[str, Any]:
        """Return all figures as a JSON object."""
        results = {name: result.as_json() for name, result in self.results.items()}
        return {"results": results, "count_s": self.count_s, "exact": self.exact}
