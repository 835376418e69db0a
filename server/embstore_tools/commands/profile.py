"""`embstore profile`: files of training samples -> how often each row is accessed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import output, parameters
from embstore_server.cli.extras import needing
from embstore_server.cli.flags import flag
from embstore_server.cli.output import AsJson
from embstore_server.setup.parsing import bytes_text, pairs

if TYPE_CHECKING:
    from embstore.profiles.profile import Profile
    from embstore_tools.profiling.count import SampleCounter

_MIB = 1 << 20
_COLUMNS = ("table", "rows", "accesses", "distinct", "skew", "top 1 % take", "low by at most")

Picture = Annotated[Path | None, flag("Draw the curves into a PNG.", "FILE", "--picture")]


@needing("fast")
def profile(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...",
            help="Criteo TSV, Parquet, or text with a header; .gz and .zst, too.",
        ),
    ],
    *,
    out: Annotated[Path, flag("The profile.", "FILE", "--output", "-o")],
    table: Annotated[
        list[str] | None,
        flag("Column with the ids of a table. Default, for Criteo TSV: all 26.", "COLUMN=NAME"),
    ] = None,
    rate: Annotated[float, flag("Share of the samples that is counted.")] = 1.0,
    seed: Annotated[int, flag("Seed of the samples that are counted and kept.")] = 0,
    batch: Annotated[int, flag("Samples of a recorded call.")] = 2048,
    rows: Annotated[list[str] | None, flag("Rows of a table: ids are below.", "NAME=N")] = None,
    hash_rows: Annotated[
        list[str] | None, flag("Rows of a table: ids are hashed to N.", "NAME=N")
    ] = None,
    keys_max: Annotated[
        int | None,
        flag(
            "Rows of a table that are counted exactly; above, a sketch counts.",
            "COUNT",
            show_default="4,194,304",
        ),
    ] = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Count how often each row is accessed, and show the skew.

    From the profile, embstore size predicts hit rates, and embstore hotset chooses hot rows.
    """
    from embstore_tools.profiling import count, plots, readers

    columns = _named(table)
    counting = count.Counting(
        tuple(columns.values()),
        rate=rate,
        seed=seed,
        batch=batch,
        rows=_row_counts("--rows", rows),
        hash_rows=_row_counts("--hash-rows", hash_rows),
        keys_max=count.KEYS_MAX if keys_max is None else keys_max,
    )
    parameters.check_output("--output", out)
    if picture is not None:
        plots.check_picture(picture)
    hashed = {c: counting.hash_rows[t] for c, t in columns.items() if t in counting.hash_rows}
    opened = readers.open_files(files, list(columns) if table else None, hashed)
    with _mebibytes_read(sum(file.size_bytes for file in opened)) as report:
        counter = count.count_files(opened, counting, report)
    made = counter.profile()
    made.save(out)
    if picture is not None:
        plots.write_picture(picture, [plots.coverage_plot(made, by_table=True)])
    _show(made, counter, out, as_json=as_json)


@contextmanager
def _mebibytes_read(total: int) -> Iterator[Callable[[int], None]]:
    """Show how far files of `total` bytes are read; yield what takes the bytes of each piece."""
    read = 0
    with output.progress("MiB read", -(-total // _MIB)) as advance:

        def report(count: int) -> None:
            nonlocal read
            before, read = read, read + count
            advance(-(-read // _MIB) - -(-before // _MIB))

        yield report


def _named(given: Sequence[str] | None) -> dict[str, str]:
    """Return the table of each column."""
    from embstore.config import check_name
    from embstore_tools.demo.columns import table_name
    from embstore_tools.profiling.readers import criteo_columns

    if not given:
        return {column: table_name(i) for i, column in enumerate(criteo_columns())}
    named = pairs("--table", "COLUMN=NAME", given)
    return {column: check_name(name) for column, name in named.items()}


def _row_counts(flag: str, given: Sequence[str] | None) -> dict[str, int]:
    counts = pairs(flag, "NAME=N", given or ())
    for name, digits in counts.items():
        if not digits.isascii() or not digits.isdecimal():
            raise InvalidArgumentError(f"{flag}: expected NAME=N, found {name}={digits}")
    return {name: int(digits) for name, digits in counts.items()}


def _show(made: "Profile", counter: "SampleCounter", out: Path, *, as_json: bool) -> None:
    from embstore_tools.profiling import plots

    trace, tables = (
        made.trace,
        {name: plots.table_facts(table) for name, table in made.tables.items()},
    )
    file_bytes = out.stat().st_size
    if as_json:
        return output.show_json(
            {
                "path": str(out),
                "file_bytes": file_bytes,
                "samples": counter.samples,
                "counted_samples": counter.counted,
                "rate": made.rate,
                "seed": made.seed,
                "memory_bytes": counter.memory_bytes,
                "kept_samples": 0 if made.samples is None else len(made.samples),
                "recorded": trace
                and {"rate": trace.rate, "calls": trace.calls, "events": len(trace.keys)},
                "tables": tables,
            }
        )
    lines = []
    for name, of in tables.items():
        skew, top = f"{of['zipf_exponent']:.2f}", f"{of['top_1_percent']:.1%}"
        lines.append((name, of["rows"], of["accesses"], of["distinct"], skew, top, of["error"]))
    output.show_rows(_COLUMNS, lines)
    output.show_text("\n" + plots.text(plots.coverage_plot(made, by_table=False)))
    output.show_text(
        f"\n{counter.counted:,} of {counter.samples:,} samples counted, in "
        f"{bytes_text(counter.memory_bytes)}; {out} has {bytes_text(file_bytes)}"
    )
