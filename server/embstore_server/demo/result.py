"""What a demo came to: all figures, as data, as JSON and as a table on a console.

Two hit rates of the cache, because both are in use. By unique key: of the distinct keys of each
lookup, how many were in the cache (what the cache must do). By access: of all keys as the trainer
named them, repeats included (what most papers report, and always higher, as hot keys repeat).

Neither says much in a session: keys are announced once each, and their rows are in the cache before
they are looked up. There the session's own figures are shown, and its hit rate must be 100 %; only
a step in parts, whose rows do not fit the cache together, may miss some.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class SessionResult:
    """Figures of the session that the training was in."""

    lookahead: int
    """Steps announced beyond the last finished one, at most."""
    lookup_keys: int
    """Keys of all lookups, by unique key."""
    hit_rate: float
    """Of these, the share whose rows were in the cache when they were looked up, 0 to 1."""
    early_share: float
    """Of the bytes of rows that were looked up, the share sent before the step's turn, 0 to 1.
    0 of an embedded store: there is no way on which they could be early."""
    stall_s: float
    """Seconds from asking for a step's rows until all could be read. A server is asked a step
    ahead, so the step before is in them; `DemoResult.seconds` has what the loop itself waited."""
    steps_in_parts: int
    """Steps whose rows did not fit the cache together."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "SessionResult":
        """Return the figures of a session from what the store tells of it."""
        early, late = facts["early_bytes"], facts["late_bytes"]
        return cls(
            lookahead=facts["lookahead_steps_max"],
            lookup_keys=facts["lookup_keys"],
            hit_rate=facts["hit_rate"],
            early_share=early / max(1, early + late),
            stall_s=facts["stall_s"],
            steps_in_parts=facts["steps_in_parts"],
        )


@dataclass(frozen=True)
class DemoResult:
    """Figures of one demo. Rates are of 0 to 1; `seconds` by what they were spent on."""

    samples: int
    """Trained on."""
    samples_held_out: int
    steps: int
    samples_per_second: float
    """Of training, the dense check not counted; a session's store works on during it."""
    loss: float
    auc: float | None
    """Of the held-out samples; None if they have one label only."""
    hit_rate_unique: float
    """Of lookups while training, by unique key."""
    hit_rate_access: float
    tables: int
    rows: int
    dim: int
    optimizer: str
    table_bytes: int
    """What all rows take, weights and optimizer state."""
    cache_bytes: int
    """What the store may use for resident rows, their index and staging."""
    bytes_read: int
    """By the store, from its directory."""
    bytes_written: int
    seconds: dict[str, float]
    session: SessionResult | None
    """None: there was no session."""
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


def show(result: DemoResult, console: Console) -> None:
    """Print a result as a table."""
    table = Table(title="embstore demo", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for lines in (_training(result), _store(result), _lookups(result), _exactness(result)):
        for name, text in lines:
            table.add_row(name, text)
        table.add_section()
    console.print(table)


def _training(result: DemoResult) -> list[tuple[str, str]]:
    auc = "unknown: the held-out samples have one label only"
    if result.auc is not None:
        auc = f"{result.auc:.4f} of {result.samples_held_out:,} samples"
    shares = ", ".join(f"{stage} {spent:.1f}" for stage, spent in result.seconds.items())
    return [
        ("trained", f"{result.samples:,} samples in {result.steps:,} steps"),
        ("samples/s", f"{result.samples_per_second:,.0f} (the dense check not counted)"),
        ("seconds", shares),
        ("loss at the end", f"{result.loss:.4f}"),
        ("AUC, held out", auc),
    ]


def _store(result: DemoResult) -> list[tuple[str, str]]:
    share = result.cache_bytes / result.table_bytes
    return [
        ("tables", f"{result.tables}, {result.rows:,} rows of {result.dim}, {result.optimizer}"),
        ("bytes of the tables", _megabytes(result.table_bytes)),
        ("bytes of the cache", f"{_megabytes(result.cache_bytes)} ({share:.0%} of the tables)"),
        ("read from disk", _megabytes(result.bytes_read)),
        ("written to disk", _megabytes(result.bytes_written)),
    ]


def _lookups(result: DemoResult) -> list[tuple[str, str]]:
    session = result.session
    if session is None:
        return [
            ("look-ahead", "none, there was no session"),
            ("hits by unique key", f"{result.hit_rate_unique:.1%}"),
            ("hits by access", f"{result.hit_rate_access:.1%}"),
        ]
    waited = result.seconds.get("lookup", 0.0)
    return [
        ("look-ahead", f"{session.lookahead:,} steps at most"),
        ("hits at lookup", _hits(session)),
        ("early bytes", f"{session.early_share:.1%} of the rows, sent before their step's turn"),
        ("stalled", f"{session.stall_s:.2f} s; the trainer waited {waited:.2f} s in lookups"),
        ("steps in parts", f"{session.steps_in_parts:,}"),
    ]


def _hits(session: SessionResult) -> str:
    """Tell the hit rate, which is 100 % only if not one key missed."""
    keys = f"of {session.lookup_keys:,} unique keys"
    if session.hit_rate == 1:
        return f"100 % {keys}"
    missed = round((1 - session.hit_rate) * session.lookup_keys)
    return f"[bold red]not 100 %[/]: {missed:,} {keys} missed"


def _exactness(result: DemoResult) -> list[tuple[str, str]]:
    if result.exact:
        verdict = "[bold green]equal to the dense check, bit for bit[/]"
    else:
        verdict = f"[bold red]not equal to the dense check[/]: {result.digest_of_check}"
    lines = [("digest", result.digest), ("exact", verdict)]
    if result.first_difference:
        lines.append(("first difference", result.first_difference))
    if result.differing_tables:
        lines.append(("tables that differ", ", ".join(result.differing_tables)))
    return lines


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
