"""One file, trained on under each policy and in each way, side by side.

All of them train on the same samples with the same model, and the same ones are held out. But for
hot/cold, which packs them anew, they do so in the same order, and come to the same bits.
"""

from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from embstore_server.demo.job import Job
from embstore_server.demo.result import DemoResult
from embstore_server.demo.showing import megabytes, percent
from embstore_server.demo.ways import Ahead, Calls, HotCold


@dataclass(frozen=True)
class Comparison:
    """The results, by what was compared."""

    results: dict[str, DemoResult]
    count_s: float
    """Seconds that it took to count the file, for those that needed it."""

    @property
    def exact(self) -> bool:
        """Whether each agreed with its dense check to the bit."""
        return all(result.exact for result in self.results.values())

    def as_json(self) -> dict[str, Any]:
        """Return all figures as a JSON object."""
        results = {name: result.as_json() for name, result in self.results.items()}
        return {"results": results, "count_s": self.count_s, "exact": self.exact}


def jobs_of(job: Job, hot_cold: HotCold) -> dict[str, Job]:
    """Return what is compared: `job` under each policy, and in each way."""
    return {
        "LRU": replace(job, policy="lru", way=Calls()),
        "LFU": replace(job, policy="lfu", way=Calls()),
        "warm rank": replace(job, policy="rank", way=Calls()),
        "look-ahead": replace(job, policy="lru", way=Ahead(hot_cold.lookahead)),
        "hot/cold": replace(job, policy="lru", way=hot_cold),
    }


def show(compared: Comparison, console: Console) -> None:
    """Print a comparison as a table."""
    results = list(compared.results.values())
    first = results[0]
    share = first.cache_bytes / first.table_bytes
    table = Table(
        title=f"embstore demo: {first.samples:,} samples, {first.rows:,} rows, a cache of "
        f"{share:.1%} of their bytes",
        title_justify="left",
    )
    table.add_column("")
    for name in compared.results:
        table.add_column(name, justify="right")
    for line, cells in _lines(results):
        table.add_row(line, *cells)
    console.print(table)


def _lines(results: list[DemoResult]) -> list[tuple[str, list[str]]]:
    return [
        ("hits by unique key", [percent(r.hit_rate_unique) for r in results]),
        ("hits by access", [percent(r.hit_rate_access) for r in results]),
        ("read from disk", [megabytes(r.bytes_read) for r in results]),
        ("written to disk", [megabytes(r.bytes_written) for r in results]),
        ("over the network", [megabytes(r.network_bytes) for r in results]),
        ("hot samples", [percent(r.hot.hot_share if r.hot else None) for r in results]),
        ("samples/s", [f"{r.samples_per_second:,.0f}" for r in results]),
        ("AUC, held out", ["-" if r.auc is None else f"{r.auc:.4f}" for r in results]),
        ("exact", ["yes" if r.exact else "[bold red]no[/]" for r in results]),
    ]
