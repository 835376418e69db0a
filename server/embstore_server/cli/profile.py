"""`embstore profile`: files of training samples -> how often each row is accessed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import output
from embstore_server.cli.options import AsJson
from embstore_server.cli.output import bytes_text

if TYPE_CHECKING:
    from embstore.frequency.profile import Profile
    from embstore_server.profiling.count import Counting, SampleCounter
    from embstore_server.profiling.readers import SampleFile

_MIB = 1 << 20
_COLUMNS = ("table", "rows", "accesses", "distinct", "skew", "top 1 % take", "low by at most")

Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture", metavar="FILE", help="Draw the curves into a PNG.", show_default=False
    ),
]


def profile(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="Criteo TSV or Parquet.", show_default=False),
    ],
    *,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Of the profile.")],
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=NAME",
            help="Count a column as accesses to a table. Default, for Criteo TSV: all 26.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Share of the samples that is counted.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of what is counted and what is kept.")] = 0,
    batch: Annotated[int, typer.Option(help="Samples of a recorded call.")] = 2048,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N", help="Of a table: larger ids are refused.", show_default=False
        ),
    ] = None,
    hash_rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N", help="Of a table: ids are taken modulo N.", show_default=False
        ),
    ] = None,
    keys_max: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="Rows of a table that are counted exactly, before a sketch does.",
            show_default="4,194,304",
        ),
    ] = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Count how often each row is accessed, and show the skew.

    From the profile, embstore size tells how much cache is needed, embstore hotset what is hot.
    """
    from embstore_server.profiling import count, plots, readers

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
    check_output("--output", out)
    if picture is not None:
        plots.check_picture(picture)
    opened = readers.open_files(files, list(columns) if table else None)
    counter = _counted(opened, counting)
    made = counter.profile()
    made.save(out)
    if picture is not None:
        from embstore_server.profiling.curves import coverage_plot

        plots.write_picture(picture, [coverage_plot(made, by_table=True)])
    if as_json:
        output.show_json(_document(made, counter, out))
    else:
        _show(made, counter, out)


def check_output(flag: str, path: Path) -> None:
    """Refuse a file that could not be written, before the work whose result it takes.

    What is there and is no regular file, a device or a pipe, is refused too: it would be replaced.

    Raises
    ------
    InvalidArgumentError
    """
    from embstore.frequency.archive import is_replaceable

    if not is_replaceable(path):
        raise InvalidArgumentError(
            f"{flag}: expected a regular file, or a new one, in a folder that is there, "
            f"found {path}"
        )


def _named(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return the table of each column."""
    from embstore.config import check_name
    from embstore_server.demo.columns import table_name
    from embstore_server.profiling.readers import criteo_columns

    if not pairs:
        return {column: table_name(index) for index, column in enumerate(criteo_columns())}
    named: dict[str, str] = {}
    for pair in pairs:
        column, equals, name = pair.rpartition("=")
        if not equals or not column or not name:
            raise InvalidArgumentError(f"--table: expected COLUMN=NAME, found {pair!r}")
        if column in named:
            raise InvalidArgumentError(f"--table: expected each column once, found {column} twice")
        named[column] = check_name(name)
    return named


def _row_counts(flag: str, pairs: Sequence[str] | None) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pair in pairs or ():
        name, _, digits = pair.rpartition("=")
        if not name or not digits.isascii() or not digits.isdecimal():
            raise InvalidArgumentError(f"{flag}: expected NAME=N, found {pair!r}")
        if name in counts:
            raise InvalidArgumentError(f"{flag}: expected each table once, found {name} twice")
        counts[name] = int(digits)
    return counts


def _counted(files: "Sequence[SampleFile]", counting: "Counting") -> "SampleCounter":
    from embstore_server.profiling.count import count_files

    total = sum(file.size_bytes for file in files)
    read = 0
    with output.progress("MiB read", -(-total // _MIB)) as advance:

        def tell(count: int) -> None:
            nonlocal read
            before, read = read, read + count
            advance(-(-read // _MIB) - -(-before // _MIB))

        return count_files(files, counting, tell)


def _document(made: "Profile", counter: "SampleCounter", out: Path) -> dict[str, Any]:
    from embstore_server.profiling.curves import table_facts

    trace = made.trace
    return {
        "path": str(out),
        "file_bytes": out.stat().st_size,
        "samples": counter.samples,
        "counted_samples": counter.counted,
        "rate": made.rate,
        "seed": made.seed,
        "memory_bytes": counter.memory_bytes,
        "kept_samples": 0 if made.samples is None else len(made.samples),
        "recorded": trace and {"rate": trace.rate, "calls": trace.calls, "events": len(trace.keys)},
        "tables": {name: table_facts(table) for name, table in made.tables.items()},
    }


def _show(made: "Profile", counter: "SampleCounter", out: Path) -> None:
    from embstore_server.profiling import plots
    from embstore_server.profiling.curves import coverage_plot, table_facts

    facts = {name: table_facts(table) for name, table in made.tables.items()}
    output.show_rows(_COLUMNS, [_line(name, table) for name, table in facts.items()])
    output.show_text("")
    output.show_text(plots.text(coverage_plot(made, by_table=False)))
    output.show_text("")
    output.show_text(
        f"{counter.counted:,} of {counter.samples:,} samples counted, in "
        f"{bytes_text(counter.memory_bytes)}; {out} has {bytes_text(out.stat().st_size)}"
    )


def _line(name: str, facts: dict[str, Any]) -> tuple[Any, ...]:
    return (
        name,
        facts["rows"],
        facts["accesses"],
        facts["distinct"],
        f"{facts['zipf_exponent']:.2f}",
        f"{facts['top_1_percent']:.1%}",
        facts["error"],
    )
