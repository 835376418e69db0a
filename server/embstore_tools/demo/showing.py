"""Prints results as tables on a console."""

from rich.console import Console
from rich.table import Table

from embstore_tools.demo.result import Comparison, DemoResult, SessionResult


def show(result: DemoResult, console: Console) -> None:
    """Print a result as a table."""
    table = Table(title="embstore demo", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    parts = _training, _store, _frequencies, _lookups, _hot, _exactness
    for part in parts:
        for name, text in part(result):
            table.add_row(name, text)
        table.add_section()
    console.print(table)


def _training(result: DemoResult) -> list[tuple[str, str]]:
    auc = "unknown: the held-out samples have one label only"
    if result.auc is not None:
        auc = f"{result.auc:.4f} of {result.samples_held_out:,} samples"
    shares = ", ".join(f"{stage} {spent:.1f}" for stage, spent in result.seconds.items())
    return [
        ("trained", f"{result.samples:,} samples in {result.steps:,} steps, {result.framework}"),
        ("samples/s", f"{result.samples_per_second:,.0f} (the dense check not counted)"),
        ("seconds", shares),
        ("loss at the end", f"{result.loss:.4f}"),
        ("AUC, held out", auc),
    ]


def _store(result: DemoResult) -> list[tuple[str, str]]:
    share = result.cache_bytes / result.table_bytes
    return [
        ("tables", f"{result.tables}, {result.rows:,} rows of {result.dim}, {result.optimizer}"),
        ("bytes of the tables", megabytes(result.table_bytes)),
        ("bytes of the cache", f"{megabytes(result.cache_bytes)} ({share:.1%} of the tables)"),
        ("policy", result.policy),
        ("read from disk", megabytes(result.bytes_read)),
        ("written to disk", megabytes(result.bytes_written)),
        ("over the network", megabytes(result.network_bytes)),
    ]


def _frequencies(result: DemoResult) -> list[tuple[str, str]]:
    known = result.popularity
    if known is None:
        return []
    lines = [("counted before", f"{known.counted_rows:,} rows used, in {known.count_s:.1f} s")]
    if known.warmed_rows:
        lines.append(("warmed", f"{known.warmed_rows:,} rows, the most frequent ones"))
    return lines


def _lookups(result: DemoResult) -> list[tuple[str, str]]:
    session = result.session
    if session is None:
        return [
            ("look-ahead", "none, there was no session"),
            ("hits by unique key", percent(result.hit_rate_unique)),
            ("hits by access", percent(result.hit_rate_access)),
        ]
    waited = result.seconds.get("lookup", 0.0)
    return [
        ("look-ahead", f"{session.lookahead:,} steps at most"),
        ("hits at lookup", _hits(session)),
        ("early bytes", f"{session.early_share:.1%} of the rows, sent before their step's turn"),
        ("stalled", f"{session.stall_s:.2f} s; the trainer waited {waited:.2f} s in lookups"),
        ("steps in parts", f"{session.steps_in_parts:,}"),
    ]


def _hot(result: DemoResult) -> list[tuple[str, str]]:
    hot = result.hot
    if hot is None:
        return []
    batches = hot.hot_batches + hot.mixed_batches
    rows = (
        f"{hot.hot_rows:,}, {megabytes(hot.hot_bytes)} of {megabytes(hot.budget_bytes)}: those of "
        f"{hot.threshold:,} accesses or more"
    )
    hot_batches = (
        f"{hot.hot_batches:,} of {batches:,}, with {hot.hot_share:.1%} of the samples; "
        f"{hot.calls_in_hot_batches:,} calls to the store in them"
    )
    exchanged = (
        f"{hot.rows_pulled:,} rows from the store and {hot.rows_pushed:,} to it in "
        f"{hot.switches:,} switches, {megabytes(hot.exchanged_bytes)}"
    )
    return [("hot rows", rows), ("all-hot batches", hot_batches), ("exchanged", exchanged)]


def _hits(session: SessionResult) -> str:
    """Return the hit rate as text, which is 100 % only if no key missed."""
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


def show_comparison(compared: Comparison, console: Console) -> None:
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
    for line, cells in _compared(results):
        table.add_row(line, *cells)
    console.print(table)


def _compared(results: list[DemoResult]) -> list[tuple[str, list[str]]]:
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


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 as text; None: the share is not known."""
    return "-" if share is None else f"{share:.1%}"


def megabytes(count: int | None) -> str:
    """Return a number of bytes as text in MB; None: the number is not known."""
    return "-" if count is None else f"{count / 1e6:,.1f} MB"
