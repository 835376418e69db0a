"""`embstore profile`: counts in files of training samples how often each row is accessed."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
_OF_HASHED = ("ids, about", "share a row")

Picture = Annotated[Path | None, flag("Draw the curves into a PNG.", "FILE", "--picture")]


@needing("fast")
def profile(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="Criteo TSV, Parquet, or text; .gz and .zst, too."),
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
    rows: Annotated[
        list[str] | None, flag("Rows of a table: ids are below; sparse: of 64 bits.", "NAME=N")
    ] = None,
    hash_rows: Annotated[
        list[str] | None, flag("Rows of a table: ids are hashed to N; sparse: 64 bits.", "NAME=N")
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
    bounds, hashed = _row_counts("--rows", rows), _row_counts("--hash-rows", hash_rows)
    _check_once(bounds, hashed)
    counting = count.Counting(
        tuple(columns.values()),
        rate=rate,
        seed=seed,
        batch=batch,
        rows=bounds | hashed,
        keys_max=count.KEYS_MAX if keys_max is None else keys_max,
    )
    parameters.check_output("--output", out, files)
    if picture is not None:
        plots.check_drawing(picture)
        parameters.check_output("--picture", picture, [*files, out])
    opened = readers.open_files(files, list(columns) if table else None, _hashing(columns, hashed))
    with _mebibytes_read(sum(file.size_bytes for file in opened)) as report:
        counter = count.count_files(opened, counting, report)
    made = counter.profile()
    made.save(out)
    if picture is not None:
        plots.write_picture(picture, [plots.coverage_plot(made, by_table=True)])
    _show(made, counter, _sharing(hashed), out, as_json=as_json)


def _hashing(columns: Mapping[str, str], hashed: Mapping[str, int]) -> dict[str, Any]:
    """Return the hash function of each column whose table hashes its ids."""
    from embstore.hashing import hash_ids

    return {
        column: partial(hash_ids, feature=name, rows=hashed[name])
        for column, name in columns.items()
        if name in hashed
    }


def _sharing(hashed: Mapping[str, int]) -> dict[str, int]:
    """Return the number of rows of each table whose ids may share rows."""
    from embstore.arrays import SPARSE_ROWS

    return {name: rows for name, rows in hashed.items() if rows != SPARSE_ROWS}


def _of_hashed(facts: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return the approximate number of ids of a table, and the fraction of these ids that share
    their row with another id."""
    share = facts.get("ids_sharing_a_row")
    return facts.get("ids"), None if share is None else f"{share:.2%}"


@contextmanager
def _mebibytes_read(total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of reading `total` bytes. Yield a function that is called with the bytes of
    each piece."""
    read = 0
    with output.progress("MiB read", -(-total // _MIB)) as advance:

        def report(count: int) -> None:
            nonlocal read
            before, read = read, read + count
            advance(-(-read // _MIB) - -(-before // _MIB))

        yield report


def _named(given: Sequence[str] | None) -> dict[str, str]:
    """Return the table's name for each column."""
    from embstore.config import check_name
    from embstore_tools.demo.columns import table_name
    from embstore_tools.profiling.readers import criteo_columns

    if not given:
        return {column: table_name(i) for i, column in enumerate(criteo_columns())}
    named = pairs("--table", "COLUMN=NAME", given)
    return {column: check_name(name) for column, name in named.items()}


def _row_counts(flag: str, given: Sequence[str] | None) -> dict[str, int]:
    """Return the number of rows of each table, in the form that `Counting` accepts."""
    from embstore.arrays import SPARSE_ROWS

    counts = pairs(flag, "NAME=N", given or ())
    for name, digits in counts.items():
        if digits != "sparse" and not (digits.isascii() and digits.isdecimal()):
            raise InvalidArgumentError(f"{flag}: expected NAME=N, found {name}={digits}")
    return {name: SPARSE_ROWS if of == "sparse" else int(of) for name, of in counts.items()}


def _check_once(bounds: Mapping[str, int], hashed: Mapping[str, int]) -> None:
    for name in bounds.keys() & hashed.keys():
        raise InvalidArgumentError(
            f"table {name!r}: expected its rows once, found them given both with hashing and "
            "without"
        )


def _show(
    made: "Profile",
    counter: "SampleCounter",
    hashed: Collection[str],
    out: Path,
    *,
    as_json: bool,
) -> None:
    from embstore_tools.profiling import plots, sharing

    trace = made.trace
    tables = {
        name: plots.table_facts(table) | (sharing.hashed_facts(table) if name in hashed else {})
        for name, table in made.tables.items()
    }
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
        line = name, of["rows"], of["accesses"], of["distinct"], skew, top, of["error"]
        lines.append((*line, *_of_hashed(of)) if hashed else line)
    output.show_rows((*_COLUMNS, *_OF_HASHED) if hashed else _COLUMNS, lines)
    output.show_text("\n" + plots.text(plots.coverage_plot(made, by_table=False)))
    output.show_text(
        f"\n{counter.counted:,} of {counter.samples:,} samples counted, in "
        f"{bytes_text(counter.memory_bytes)}; {out} has {bytes_text(file_bytes)}"
    )
