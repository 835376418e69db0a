"""`embstore hotset`: the rows worth keeping at hand, chosen from a profile under a budget."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import output, parameters
from embstore_server.cli.options import AsJson
from embstore_server.cli.output import bytes_text

if TYPE_CHECKING:
    from embstore.cache.sizes import Layout
    from embstore.frequency.hotset import HotCoverage, HotSet
    from embstore.frequency.profile import Profile

_COLUMNS = ("table", "hot rows", "of rows", "bytes", "of accesses")
_DIM, _OPTIMIZER = 16, "rowwise_adagrad"

ProfileFile = Annotated[
    Path,
    typer.Option(
        "--profile", metavar="FILE", help="What embstore profile wrote.", show_default=False
    ),
]
Dim = Annotated[int | None, typer.Option(min=1, help="Of the embeddings.", show_default=str(_DIM))]
OptimizerKind = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Whose state rows have.", show_default=_OPTIMIZER),
]
RowBytes = Annotated[
    int | None,
    typer.Option(min=1, help="Instead: of weights and state together.", show_default=False),
]


def hotset(
    *,
    profile: ProfileFile,
    budget: Annotated[
        str, typer.Option(metavar="BYTES", help="For all hot rows, as 256MiB.", show_default=False)
    ],
    dim: Dim = None,
    optimizer: OptimizerKind = None,
    row_bytes: RowBytes = None,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Of the hot set.", show_default=False),
    ] = None,
    version: Annotated[int, typer.Option(min=1, help="Above that of the set it replaces.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Find the accesses from which on a row is hot, so that all hot rows fit a budget.

    Small tables are hot as a whole, if their rows are known.
    """
    from embstore.frequency.hotset import choose_hot_set, hot_coverage
    from embstore.frequency.profile import Profile
    from embstore_server.cli.profile import check_output
    from embstore_server.profiling.sizes import row_bytes_of

    budget_bytes = parameters.byte_count("--budget", budget)
    assert budget_bytes is not None
    cost = row_bytes_of(layout(dim, optimizer, row_bytes))
    if out is not None:
        check_output("--output", out)
    loaded = Profile.load(profile)
    chosen = choose_hot_set(loaded, budget_bytes, dict.fromkeys(loaded.tables, cost), version)
    coverage = hot_coverage(chosen, loaded)
    if out is not None:
        chosen.save(out)
    document = _document(loaded, chosen, coverage, cost)
    if as_json:
        output.show_json({"path": out and str(out), "budget_bytes": budget_bytes, **document})
        return
    output.show_rows(_COLUMNS, [_line(name, of) for name, of in document["tables"].items()])
    output.show_text("")
    for line in _said(document, budget_bytes, loaded):
        output.show_text(line)


def layout(dim: int | None, optimizer: str | None, row_bytes: int | None) -> "Layout":
    """Return the layout of rows that the flags describe.

    Raises
    ------
    InvalidArgumentError : they say it twice, no table has such rows, or there is no such optimizer.
    """
    from embstore.arrays import DIM_MAX
    from embstore.cache.sizes import Layout
    from embstore.frequency.hotset import ROW_BYTES_MAX
    from embstore_server.profiling.sizes import layout_of_bytes

    if row_bytes is not None:
        if dim is not None or optimizer is not None:
            raise InvalidArgumentError(
                "--row-bytes is instead of --dim and --optimizer: leave one out"
            )
        _check_most("--row-bytes", row_bytes, ROW_BYTES_MAX)
        return layout_of_bytes(row_bytes)
    kind = optimizer or _OPTIMIZER
    elements = dim or _DIM
    _check_most("--dim", elements, DIM_MAX)
    state_dim = parameters.optimizer(kind, learning_rate=0.0).state_dim(elements)
    return Layout(elements, state_dim, kind)


def _check_most(flag: str, value: int, most: int) -> None:
    if value > most:
        raise InvalidArgumentError(f"{flag}: expected at most {most}, found {value}")


def _document(
    profile: "Profile", chosen: "HotSet", coverage: "HotCoverage", cost: int
) -> dict[str, Any]:
    from embstore.frequency.hotset import contained

    tables = {}
    for name, keys in chosen.tables.items():
        table = profile.tables[name]
        hot = int(table.counts[contained(keys, table.keys)].sum())
        tables[name] = {
            "hot_rows": len(keys),
            "rows": table.rows or None,
            "distinct": len(table.keys),
            "bytes": len(keys) * cost,
            "accesses": hot / max(1, table.accesses),
        }
    return {
        "version": chosen.version,
        "threshold": chosen.threshold,
        "rows": chosen.row_count,
        "bytes": chosen.bytes,
        "row_bytes": cost,
        "accesses": coverage.accesses,
        "samples": coverage.samples,
        "samples_counted": coverage.samples_counted,
        "tables": tables,
    }


def _line(name: str, facts: dict[str, Any]) -> tuple[Any, ...]:
    rows = f"{facts['rows']:,}" if facts["rows"] else f"{facts['distinct']:,} seen"
    size = bytes_text(facts["bytes"])
    return name, facts["hot_rows"], rows, size, f"{facts['accesses']:.1%}"


def _said(document: dict[str, Any], budget_bytes: int, profile: "Profile") -> Iterator[str]:
    counted = "" if profile.rate == 1 else f", counted in {profile.rate:.3g} of the samples"
    yield (
        f"{document['rows']:,} rows of {document['row_bytes']} bytes are hot, "
        f"{bytes_text(document['bytes'])} of {bytes_text(budget_bytes)}: those with "
        f"{document['threshold']:,} accesses or more{counted}"
    )
    how = (
        f"of {len(profile.samples):,} kept samples"
        if document["samples_counted"] and profile.samples is not None
        else "of samples, if their ids were independent"
    )
    yield (
        f"they take {document['accesses']:.1%} of accesses, and all ids of "
        f"{document['samples']:.1%} {how}"
    )
