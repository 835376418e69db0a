"""The screen of `embstore top`, drawn from the present and the previous stats of a store."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from embstore.stats import share
from embstore_server.setup.parsing import bytes_text

_TABLES_SHOWN = 8
_STAGES_SHOWN = 8
_BAR_CELLS = 20
NONE = "-"

Read = Callable[[dict[str, Any]], Any]
"""A function that returns a number from a document of stats, or None if the document lacks it."""


@dataclass(frozen=True)
class StatsSample:
    """The stats of a store with their time, and the previous stats."""

    stats: dict[str, Any]
    at: float
    """Time of the stats, in monotonic seconds."""
    before: tuple[dict[str, Any], float] | None = None

    def grown(self, read: Read) -> float | None:
        """Return the increase of a counter since the previous stats; None: unknown."""
        if self.before is None:
            return None
        old, new = read(self.before[0]), read(self.stats)
        return None if old is None or new is None or new < old else new - old

    def rate(self, read: Read) -> float | None:
        """Return the increase of a counter per second; None: unknown."""
        grown = self.grown(read)
        if grown is None or self.before is None or self.at <= self.before[1]:
            return None
        return float(grown / (self.at - self.before[1]))


def drawn(look: StatsSample) -> RenderableType:
    """Return the whole screen."""
    parts = [_head(look), _pools(look), _sessions(look), _stages(look), _tables(look)]
    return Group(*parts, Columns([_memory(look), _files(look)], padding=(0, 4)))


def _head(look: StatsSample) -> RenderableType:
    stats, cache = look.stats, look.stats["cache"]

    def of_pools(name: str) -> Read:
        return lambda stats: sum(pool[name] for pool in stats["cache"]["pools"])

    keys, hits = look.grown(of_pools("unique_keys")), look.grown(of_pools("unique_hits"))
    rate = cache["unique_hit_rate"] if not keys or hits is None else share(hits, keys)
    said = [
        ("hit rate", _percent(rate)),
        ("keys", _rate(look.rate(of_pools("accesses")))),
        ("commands", _rate(look.rate(lambda stats: stats["command"]))),
        ("policy", stats["policy"]),
        ("device", stats["device"]),
        ("role", stats["replication"]["role"]),
        ("command", f"{stats['command']:,}"),
    ]
    line = Text("embstore  ", style="bold")
    for name, value in said:
        line.append(f"{name} ", style="dim").append(f"{value}   ", style="bold")
    return line


def _pools(look: StatsSample) -> RenderableType:
    rows: list[dict[str, str]] = []
    for index, pool in enumerate(look.stats["cache"]["pools"]):
        keys, hits = (
            look.grown(lambda stats, i=index, n=name: _of_pool(stats, i, n))  # type: ignore[misc]
            for name in ("unique_keys", "unique_hits")
        )
        recent = share(hits, keys) if keys and hits is not None else None
        row = {
            "layout": f"{pool['optimizer']} {pool['dim']}",
            "rows in slots": _bar(pool["occupancy"]),
            "slots": f"{pool['slots']:,}",
            "dirty": _percent(share(pool["dirty_rows"], pool["resident_rows"])),
            "hits now": _percent(recent),
            "since start": _percent(pool["unique_hit_rate"]),
        }
        missed = ["log", "base", "initializer"]
        if look.stats["cache"]["host_budget_bytes"]:
            row["level two"] = f"{pool['host_rows']:,}"
            row["its hits"] = _percent(pool["host_hit_rate"])
            missed.insert(0, "host")
        head = "missed: " + " / ".join(missed).replace("initializer", "new")
        rows.append(row | {head: " / ".join(f"{pool[f'misses_{name}']:,}" for name in missed)})
    heads = list(rows[0]) if rows else []
    return _table(heads, [list(row.values()) for row in rows], "no tables yet")


def _of_pool(stats: dict[str, Any], index: int, name: str) -> Any:
    pools = stats["cache"]["pools"]
    return pools[index][name] if index < len(pools) else None


def _sessions(look: StatsSample) -> RenderableType:
    rows = []
    for session in look.stats["sessions"]["open"]:
        name = session["name"]
        rate = look.rate(lambda stats, n=name: _of_session(stats, n))  # type: ignore[misc]
        ahead = session["announced_step"] - session["last_step"]
        rows.append(
            (
                name,
                f"{session['last_step']:,}",
                _rate(rate),
                f"{ahead} of {session['lookahead_steps_max']}",
                _percent(session["hit_rate"]),
                _percent(session["early_share"]),
                f"{session['stalls']:,}, {session['stall_s']:.1f} s",
                f"{session['ranks_joined']} of {session['world_size']}",
                f"{session['oldest_lease_s']:.0f} s",
            )
        )
    heads = "session", "step", "a second", "ahead", "hits", "early", "stalls", "ranks", "lease"
    return _table(heads, rows, "no session is open")


def _of_session(stats: dict[str, Any], name: str) -> Any:
    found = (one for one in stats["sessions"]["open"] if one["name"] == name)
    return next((one["steps_finished"] for one in found), None)


def _stages(look: StatsSample) -> RenderableType:
    stages = sorted(look.stats["stages"].items(), key=lambda one: -one[1]["seconds"])
    rows = []
    for name, stage in stages[:_STAGES_SHOWN]:
        rate = look.rate(lambda stats, n=name: stats["stages"].get(n, {}).get("seconds", 0.0))  # type: ignore[misc]
        rows.append((name, _bar(rate), f"{stage['seconds']:.2f} s", f"{stage['laps']:,}"))
    return _table(("stage", "of a second", "since start", "times"), rows, "no calls yet")


def _tables(look: StatsSample) -> RenderableType:
    total = sum(table["lookup_keys"] for table in look.stats["tables"].values())
    tables = sorted(
        look.stats["tables"].items(),
        key=lambda one: (-one[1]["lookup_keys"], -one[1]["resident_rows"]),
    )
    rows = [
        (
            name,
            _bar(share(table["lookup_keys"], total)),
            f"{table['rows']:,}",
            f"{table['resident_rows']:,}",
            f"{table['dirty_rows']:,}",
            f"{table['t']:,}",
        )
        for name, table in tables[:_TABLES_SHOWN]
    ]
    heads = "table", "of the keys", "rows", "in the cache", "dirty", "updates"
    return _table(heads, rows, "")


def _memory(look: StatsSample) -> RenderableType:
    cache, frequency = look.stats["cache"], look.stats["frequency"]
    of_cache = f"{bytes_text(cache['memory_bytes'])} of {bytes_text(cache['budget_bytes'])}"
    pinned = f"{look.stats['sessions']['planning']['pinned_rows']:,} rows"
    counts, index = frequency["memory_bytes"], look.stats["storage"]["log_index_bytes"]
    rows = [("cache", of_cache), ("counts", bytes_text(counts)), ("log index", bytes_text(index))]
    if cache["host_budget_bytes"]:
        used, budget = bytes_text(cache["host_memory_bytes"]), cache["host_budget_bytes"]
        rows.insert(1, ("level two", f"{used} of {bytes_text(budget)} of the host's"))
    return _table(("memory", ""), [*rows, ("pinned", pinned)], "")


def _files(look: StatsSample) -> RenderableType:
    storage, log = look.stats["storage"], look.stats["command_log"]
    read = look.rate(lambda stats: stats["storage"]["bytes_read"])
    written = look.rate(lambda stats: stats["storage"]["bytes_written"])
    age = f"{look.stats['commits']['commit_age_s']:.0f} s ago, durability {log['durability']}"
    runs = f"{bytes_text(storage['base_bytes'])} in {storage['base_runs']} runs"
    kept = ", ".join(storage["checkpoints"]) or "none"
    rows = [
        ("log", f"{bytes_text(storage['log_bytes'])}, {storage['log_rows']:,} rows"),
        ("base", f"{runs}, {storage['folds']} folds, {storage['base_merges']} merges"),
        ("read, written", f"{_bytes_rate(read)}, {_bytes_rate(written)}"),
        ("last commit", age),
        ("checkpoints", kept),
    ]
    return _table(("files", ""), rows, "")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> RenderableType:
    lines = list(rows)
    if not lines:
        return Text(nothing, style="dim")
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index == 0 or len(heads) == 2 else "right")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    return table


def _bar(part: float | None) -> str:
    if part is None:
        return NONE
    full = round(min(1.0, max(0.0, part)) * _BAR_CELLS)
    return f"{'█' * full}{'░' * (_BAR_CELLS - full)} {part:6.1%}"


def _percent(part: float | None) -> str:
    return NONE if part is None else f"{part:.1%}"


def _rate(value: float | None) -> str:
    return NONE if value is None else f"{value:,.1f}/s"


def _bytes_rate(value: float | None) -> str:
    return NONE if value is None else f"{bytes_text(round(value))}/s"
