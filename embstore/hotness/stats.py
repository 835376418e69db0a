# ruff: noqa: RUF009 - the calls declare fields
"""The stats of access frequencies: counting, recording, warming and pinning."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from embstore.stats import counter, flag, gauge, inline, part, text, texts

if TYPE_CHECKING:
    from embstore.hotness.counter import KeyCounter
    from embstore.hotness.frequencies import Frequencies
    from embstore.hotness.pins import HotPins
    from embstore.hotness.warming import Warming
    from embstore.tables.tables import Tables


@dataclass
class CountStats:
    """The counts of one table. An instance without arguments describes a table that has no
    counts."""

    distinct: int = gauge("Keys that have a count.", metric="counted_keys")
    accesses: int = gauge("Counted accesses.", metric="counted_accesses")
    error: int = gauge("Every count is low by at most this.", metric="count_error")
    is_exact: bool = flag(
        "Every key has a count; else a sketch counts.", metric="count_is_exact", default=True
    )


class CountedTable(NamedTuple):
    """The access frequencies of one table."""

    counts: "KeyCounter | CountStats"
    profile_rows: int


@dataclass
class FrequencyTableStats:
    """The accesses of one table."""

    counts: CountStats = inline(lambda table: table.counts)
    profile_rows: int = gauge("Rows in the imported profile; 0: none was imported.")


@dataclass
class RecordedStats:
    """The recorded calls, for sizing the cache."""

    rate: float = gauge("Share of the keys that is recorded.")
    events: int = gauge("Recorded keys of calls.")
    calls: int = gauge("Recorded calls.")


@dataclass
class WarmingStats:
    """The last warm-up of the cache."""

    rows: int = gauge("Rows brought in.")
    of: int = gauge("Rows to bring in; 0: not known yet.", metric="of_rows")
    running: bool = flag("The warm-up runs.")
    error: str | None = text("Why it ended early.")


@dataclass
class HotSetStats:
    """The pinned hot set."""

    version: int = gauge("Version of the pinned hot set; 0: none is pinned.")
    rows: int = gauge("Rows of the hot set.")
    bytes: int = gauge("Size of these rows, as the set was chosen; 0: unknown.")
    pinned_rows: int = gauge("Rows of the hot set in the cache.")


class Source(Protocol):
    """The parts of an engine from which the stats are read."""

    tables: "Tables"
    frequencies: "Frequencies"
    warming: "Warming"
    hot_pins: "HotPins"


def _tables(engine: Source) -> dict[str, CountedTable]:
    counters, rows = engine.frequencies.accesses.counters, engine.frequencies.profiled_rows
    return {
        t.name: CountedTable(counters.get(t.table_id) or CountStats(), rows.get(t.table_id, 0))
        for t in engine.tables.by_id.values()
    }


def _levels_bytes(engine: Source) -> int:
    ranks = [pool.ranks.tables.values() for pool in engine.tables.pools.values()]
    return sum(levels.memory_bytes for tables in ranks for levels in tables)


@dataclass
class FrequencyStats:
    """Access frequencies, and their uses. When the counts are deleted, their stats become 0."""

    count_rate: float = gauge(
        "Share of lookups that is counted.", lambda e: e.frequencies.accesses.rate
    )
    counted_calls: int = counter("Counted lookups.", lambda e: e.frequencies.accesses.counted_calls)
    counted_accesses: int = counter(
        "Keys of counted lookups, repeated ones each time.",
        lambda e: e.frequencies.accesses.counted_accesses,
    )
    memory_bytes: int = gauge(
        "Memory of counts and recorded calls.",
        lambda e: e.frequencies.accesses.memory_bytes,
        metric="frequency_memory_bytes",
    )
    levels_bytes: int = gauge("Memory of the ranks of imported profiles.", _levels_bytes)
    recorded: RecordedStats = part("Recorded calls.", lambda e: e.frequencies.accesses.recorder)
    tables: dict[str, FrequencyTableStats] = part(
        "By name.", _tables, metric="table", label="table"
    )
    unreadable: list[str] = texts(
        "Files of profiles that cannot be read.",
        lambda e: sorted(e.frequencies.kept.unreadable),
        metric="unreadable_profiles",
    )
    warming: WarmingStats = part("The last warm-up of the cache.", lambda e: e.warming.stats)
    hot_set: HotSetStats = part("The pinned hot set.", lambda e: e.hot_pins.facts())
