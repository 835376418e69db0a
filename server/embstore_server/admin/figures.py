"""The models of statistics, made from `embstore.Store.stats()`.

Counts are since the store was opened; a pool's since it was made. Hits are those of lookups, told
in both ways that are in use: **by access**, where a key that a call names five times counts five
times, hit or missed, and **by unique key**, where it counts once. Misses are told by origin, and of
all commands: updates bring rows in too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from embstore_server.admin.models import Reply


class Hits(Reply):
    """How often what lookups asked for was resident."""

    count: int = Field(description="Asked for")
    hits: int = Field(description="Of these, found resident")
    rate: float | None = Field(description="hits / count, 0 to 1; null where nothing was")

    @classmethod
    def of(cls, count: int, hits: int) -> "Hits":
        """Return the counts with their rate."""
        return cls(count=count, hits=hits, rate=hits / count if count else None)


class Misses(Reply):
    """Rows that any command brought in, by where they came from."""

    log: int = Field(description="From the log")
    base: int = Field(description="From the base")
    initializer: int = Field(description="Never written: from the table's initializer")


class Evictions(Reply):
    """Rows that left the cache."""

    clean: int = Field(description="As on the disk: dropped")
    dirty: int = Field(description="Newer than on the disk: appended to the log")


class CacheFigures(Reply):
    """What pools of rows hold and did."""

    slots: int = Field(description="Rows that there is room for")
    resident_rows: int = Field(description="Rows held")
    dirty_rows: int = Field(description="Of the rows held, those newer than on the disk")
    occupancy: float = Field(description="resident_rows / slots, 0 to 1")
    memory_bytes: int = Field(description="Of rows, index and staging")
    by_access: Hits = Field(description="Of lookups: keys, repeated ones each time")
    by_unique_key: Hits = Field(description="Of lookups: keys, each once a call")
    misses: Misses
    evictions: Evictions
    calls_in_parts: int = Field(description="Calls with more unique keys than slots")
    parts: int = Field(description="Parts that those calls were done in")

    @staticmethod
    def values(pools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the sums over pools, as `Store.stats()` has them."""

        def total(name: str) -> int:
            return sum(pool[name] for pool in pools)

        slots, resident = total("slots"), total("resident_rows")
        same = ("slots", "resident_rows", "dirty_rows", "memory_bytes", "calls_in_parts", "parts")
        return {
            **{name: total(name) for name in same},
            "occupancy": resident / slots if slots else 0.0,
            "by_access": Hits.of(total("accesses"), total("access_hits")),
            "by_unique_key": Hits.of(total("unique_keys"), total("unique_hits")),
            "misses": Misses(
                log=total("misses_log"),
                base=total("misses_base"),
                initializer=total("misses_initializer"),
            ),
            "evictions": Evictions(clean=total("evictions_clean"), dirty=total("evictions_dirty")),
        }


class PoolFigures(CacheFigures):
    """The rows of all tables of one layout: they share slots."""

    dim: int = Field(description="fp32 of a row's weights")
    optimizer: str = Field(description="Kind of the optimizer, which fixes the row's state")


class Cache(CacheFigures):
    """The whole cache."""

    budget_bytes: int = Field(description="Memory that it may take")
    pools: list[PoolFigures]

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> "Cache":
        """Return the figures of stats["cache"]."""
        pools = [
            PoolFigures(dim=pool["dim"], optimizer=pool["optimizer"], **CacheFigures.values([pool]))
            for pool in stats["pools"]
        ]
        values = CacheFigures.values(stats["pools"]) | {"memory_bytes": stats["memory_bytes"]}
        return cls(budget_bytes=stats["budget_bytes"], pools=pools, **values)


class TableFigures(Reply):
    """One table's figures."""

    rows: int = Field(description="Keys are below this")
    dim: int = Field(description="fp32 of a row's weights")
    optimizer: str = Field(description="Kind of the optimizer")
    learning_rate: float = Field(description="Of updates that give none")
    t: int = Field(description="Updates applied")
    resident_rows: int = Field(description="Rows in the cache")
    dirty_rows: int = Field(description="Of the rows in the cache, those newer than on the disk")
    row_bytes: int = Field(description="Of one row, weights and state")
    resident_bytes: int = Field(description="resident_rows * row_bytes: its part of the cache")

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> "TableFigures":
        """Return the figures of `Table.stats()`."""
        return cls(**stats, resident_bytes=stats["resident_rows"] * stats["row_bytes"])


class Log(Reply):
    """The part of the rows that was written since they were last folded into the base."""

    bytes: int = Field(description="Of its files")
    segments: int = Field(description="Files")
    rows: int = Field(description="Rows whose newest stored content is here")
    records: int = Field(description="Records, overwritten ones too")
    index_bytes: int = Field(description="Memory of its index")


class Merges(Reply):
    """What tidies the log in the background."""

    folds: int = Field(description="Merges of the log into the base")
    compactions: int = Field(description="Merges of the log into a smaller log")
    running: bool = Field(description="One is at work")
    failures: int = Field(description="Merges that failed, and changed nothing")
    error: str | None = Field(description="Why the last one failed; null: none did")


class StorageFigures(Reply):
    """Log, base and merges."""

    commit: int = Field(description="Number of the last commit")
    checkpoints: list[str] = Field(description="Kept labels, oldest first")
    bytes_read: int = Field(description="Of rows, from log and base, for the cache")
    bytes_written: int = Field(description="Of rows, to the log, by evictions and flushes")
    log: Log
    merges: Merges

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> "StorageFigures":
        """Return the figures of stats["storage"]."""
        whole = ("commit", "checkpoints", "bytes_read", "bytes_written")
        return cls(
            **{name: stats[name] for name in whole},
            log=Log(**{name: stats[f"log_{name}"] for name in Log.model_fields}),
            merges=Merges(
                folds=stats["folds"],
                compactions=stats["compactions"],
                running=stats["merge_running"],
                failures=stats["merge_failures"],
                error=stats["merge_error"],
            ),
        )


class Stage(Reply):
    """A part of every call's work on the engine thread."""

    seconds: float = Field(description="Spent in it")
    laps: int = Field(description="Times it was passed")


class Latency(Reply):
    """Seconds, with quantiles estimated from a histogram's buckets."""

    count: int = Field(description="Observed")
    mean: float = Field(description="Seconds")
    p50: float = Field(description="Seconds")
    p95: float = Field(description="Seconds")
    p99: float = Field(description="Seconds")


class VerbFigures(Reply):
    """The calls of one verb, since the process began."""

    codes: dict[str, int] = Field(description="Calls by gRPC status")
    received_bytes: int = Field(description="Of requests")
    sent_bytes: int = Field(description="Of replies")
    call: Latency = Field(description="From the request to its answer")
    wait: Latency = Field(description="In the queue, of calls that reached the engine")
    engine: Latency = Field(description="On the engine thread")


class ServiceFigures(Reply):
    """What the process is doing."""

    uptime_s: float = Field(description="Seconds since the service began")
    queue_calls: int = Field(description="Calls that wait for the engine")
    running_verb: str | None = Field(description="What ran when these figures were put together")
    inflight_bytes: int = Field(description="Of requests and replies held")
    remembered_calls: int = Field(description="Answers kept for calls sent again")


class Memory(Reply):
    """Bytes by purpose; of the cache's, `tables` says whose rows they hold."""

    process_resident_bytes: int = Field(description="RAM of the whole process")
    cache_bytes: int = Field(description="Rows, their index and staging")
    log_index_bytes: int = Field(description="Index of the log")
    inflight_bytes: int = Field(description="Requests and replies held")
