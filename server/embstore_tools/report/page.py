"""The report of a run as one HTML page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from embstore_server.setup.parsing import bytes_text
from embstore_tools.report import charts
from embstore_tools.report.reading import RunFile

_LOOP = {
    "compute": "compute_s",
    "waiting for rows": "lookup_s",
    "sending gradients": "send_s",
    "waiting for batches": "batch_s",
}
_ADVISED = (0.5, 0.8, 0.9, 0.95, 0.99)
_STAGES_MAX = 6
"""The largest number of stages that are drawn, which is the number of distinct colours."""

_COLOURS = ("#2f6fde", "#d9822b", "#2a9d6f", "#b5479e", "#8a7f2e", "#6b6f76")
_STYLE = """
:root { color-scheme: light dark; --line: #8886; --text: #222; --back: #fff; --faint: #666; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --back: #16181c; --faint: #999; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; } .legend, .note { color: var(--faint); font-size: .85rem; }
.legend span { margin-right: 1rem; } .legend i { display: inline-block; width: .7rem; height: .7rem;
  margin-right: .3rem; }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; }
svg { width: 100%; height: auto; } polyline { fill: none; stroke-width: 1.6; }
.grid { stroke: var(--line); stroke-width: .5; } .tick { fill: var(--faint); font-size: 10px; }
.mark { stroke: var(--faint); stroke-dasharray: 4 3; }
"""


def page(run: RunFile) -> str:
    """Return the report of a run: a whole HTML document."""
    title = f"Run {run.session['name']}"
    body = "\n".join(_parts(run))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_colours()}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _colours() -> str:
    return "\n".join(
        f"polyline.s{n} {{ stroke: {c}; }} circle.s{n} {{ fill: {c}; }} "
        f".a{n} {{ fill: {c}; }} .k{n} {{ background: {c}; }}"
        for n, c in enumerate(_COLOURS)
    )


def _parts(run: RunFile) -> Iterator[str]:
    yield _table(_summary(run))
    if not run.steps:
        yield '<p class="note">The run has no steps.</p>'
        return
    yield from _over_steps(run)
    yield from _advice(run)


def _summary(run: RunFile) -> Iterator[tuple[str, str]]:
    session, steps = run.session, run.total("step")
    seconds = run.total("time_s")
    keys, hits = run.total("lookup_keys"), run.total("lookup_hits")
    early, late = run.total("early_bytes"), run.total("late_bytes")
    yield "tables", ", ".join(session["tables"])
    yield "steps", f"{steps:,.0f} in {seconds:,.1f} s: {_rate(steps, seconds)} a second"
    yield (
        "announced",
        f"{session['lookahead_steps_max']:,} steps ahead, {session['world_size']} ranks, planner "
        f"{session['planner']}",
    )
    yield "hits at lookup", f"{_share(hits, keys)} of {keys:,.0f} unique keys"
    yield "early bytes", f"{_share(early, early + late)} of {bytes_text(int(early + late))} of rows"
    yield "stalls", f"{run.total('stalls'):,.0f} lookups, {run.total('stall_s'):,.2f} s"
    yield (
        "planning held back",
        f"{run.total('held_back_s'):,.2f} s for room; {run.total('steps_in_parts'):,.0f} steps in "
        f"parts, {run.total('steps_planned_again'):,.0f} planned again",
    )
    yield "cache", bytes_text(run.cache["budget_bytes"])


def _over_steps(run: RunFile) -> Iterator[str]:
    xs = run.steps
    hits = {"hits": run.rates("lookup_hits", "lookup_keys")}
    hits["planned, and pinned"] = run.rates("prefetched_keys", "lookup_keys")
    yield _section("Hit rate", "Of the unique keys of each step, when they were looked up.")
    yield charts.lines(xs, hits, _percent, most=1.0)
    loop = {n: _thousandfold(run.rates(of)) for n, of in _LOOP.items() if of in run.samples}
    if loop:  # a file that the server's page has saved lacks this part
        yield _section("Where the loop's time went", "Milliseconds a step.")
        yield charts.stacked(xs, loop, _ms)
    yield _section("Stalls", "Milliseconds a step that lookups waited while it was their turn.")
    yield charts.lines(xs, {"stalled": _thousandfold(run.rates("stall_s"))}, _ms)
    yield _section("Rows sent", "Bytes a step: before its turn, and when it had come.")
    sent = {"early": run.rates("early_bytes"), "late": run.rates("late_bytes")}
    yield charts.stacked(xs, sent, _bytes, base=1024)
    yield _section("Disk", "Bytes a step that the store read and wrote, of all its callers.")
    disk = {"read": run.rates("bytes_read"), "written": run.rates("bytes_written")}
    yield charts.lines(xs, disk, _bytes, base=1024)
    stages = islice(run.named("planning."), _STAGES_MAX)
    planning = {name.partition(".")[2]: _thousandfold(run.rates(name)) for name in stages}
    if planning:
        yield _section(
            "Planning ahead", "Milliseconds per step, concurrently with the loop, by stage."
        )
        yield charts.stacked(xs, planning, _ms)


def _advice(run: RunFile) -> Iterator[str]:
    yield _section(
        "Cache size, and the hot set's share",
        "What share of the counted accesses the most accessed rows had. With so many rows cached "
        "no more of them would be read from the disk; a hot set of them needs no calls.",
    )
    if not run.accesses:
        yield (
            '<p class="note">The file has none: no accesses were counted (--count-rate of the '
            "server), or the server's page saved it, which shows them itself.</p>"
        )
    for accesses in run.accesses:
        layout = _layout(run.cache, accesses)
        rows, shares = accesses["rows"], accesses["share"]
        yield f"<p>Rows of {accesses['dim']} elements, {escape(accesses['optimizer'])}: "
        yield f"{escape(', '.join(accesses['tables']))}</p>"
        yield charts.curve(rows, shares, lambda count: f"{count:,.0f} rows", layout["rows_now"])
        now = _share_at(layout["rows_now"], rows, shares)
        lines = [
            (f"{100 * wanted:g} % of accesses", _size(wanted, accesses, layout["row_bytes"]))
            for wanted in _ADVISED
        ]
        today = f"{layout['rows_now']:,} rows: at most {100 * now:.1f} %"
        yield _table([("the cache's rows today", today), *lines])


def _layout(cache: Mapping[str, Any], accesses: Mapping[str, Any]) -> dict[str, Any]:
    kind = accesses["dim"], accesses["optimizer"]
    found: dict[str, Any] = next(
        one for one in cache["layouts"] if (one["dim"], one["optimizer"]) == kind
    )
    return found


def _share_at(count: int, rows: Sequence[int], shares: Sequence[float]) -> float:
    """Return the share of the accesses that the `count` most accessed rows get. If this share is
    not known, return the share of the next smaller number of rows whose share is known."""
    return max(
        (share for row, share in zip(rows, shares, strict=True) if row <= count), default=0.0
    )


def _size(wanted: float, accesses: Mapping[str, Any], row_bytes: int) -> str:
    """Return the smallest number of rows that together get a given share of the accesses."""
    pairs = zip(accesses["rows"], accesses["share"], strict=True)
    count = next((rows for rows, share in pairs if share >= wanted), None)
    if count is None:
        return "more than the rows that were counted"
    part = count / accesses["rows_of_tables"]
    return f"{count:,} rows, {bytes_text(count * row_bytes)}: {100 * part:.2g} % of the tables"


def _section(title: str, note: str) -> str:
    return f'<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'


def _table(lines: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><th>{escape(n)}</th><td>{escape(text)}</td></tr>" for n, text in lines)
    return f"<table>{rows}</table>"


def _thousandfold(values: Sequence[float]) -> list[float]:
    return [1000 * value for value in values]


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _bytes(value: float) -> str:
    return bytes_text(int(value))


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.4g} %" if whole else "none"


def _rate(count: float, seconds: float) -> str:
    return f"{count / seconds:,.1f}" if seconds else "0"
