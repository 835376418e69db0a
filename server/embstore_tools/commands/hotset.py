"""`embstore hotset`: chooses the most accessed rows of a profile that fit a budget."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from embstore.errors import InvalidArgumentError
from embstore_server.cli import output, parameters
from embstore_server.cli.extras import needing
from embstore_server.cli.flags import flag
from embstore_server.cli.output import AsJson
from embstore_server.setup.parsing import bytes_text

if TYPE_CHECKING:
    from embstore.layout import Layout
    from embstore.profiles.profile import Profile

_COLUMNS = ("table", "hot rows", "of rows", "bytes", "of accesses")
_DIM, _OPTIMIZER = 16, "rowwise_adagrad"

ProfileFile = Annotated[Path, flag("Profile that embstore profile wrote.", "FILE", "--profile")]
Dim = Annotated[int | None, flag("Elements of a row.", min=1, show_default=str(_DIM))]
OptimizerKind = Annotated[
    str | None, flag("Decides the state of a row.", "KIND", show_default=_OPTIMIZER)
]
RowBytes = Annotated[int | None, flag("Size of a row, instead of the two.", min=1)]


@needing("fast")
def hotset(
    *,
    profile: ProfileFile,
    budget: Annotated[str, flag("Size of all hot rows, for example 256MiB.", "BYTES")],
    dim: Dim = None,
    optimizer: OptimizerKind = None,
    row_bytes: RowBytes = None,
    out: Annotated[Path | None, flag("The hot set.", "FILE", "--output", "-o")] = None,
    version: Annotated[int, flag("Higher than that of the set it replaces.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Choose the most accessed rows that fit a budget: the hot set.

    Small tables are hot as a whole, if their number of rows is known.
    """
    from embstore.profiles.hotset import choose_hot_set, contained, hot_coverage
    from embstore.profiles.profile import Profile

    budget_bytes = parameters.byte_count("--budget", budget)
    assert budget_bytes is not None
    cost = layout(dim, optimizer, row_bytes).row_bytes
    if out is not None:
        parameters.check_output("--output", out, [profile])
    loaded = Profile.load(profile)
    chosen = choose_hot_set(loaded, budget_bytes, dict.fromkeys(loaded.tables, cost), version)
    coverage = hot_coverage(chosen, loaded)
    if out is not None:
        chosen.save(out)
    document: dict[str, Any] = {
        "path": out and str(out),
        "budget_bytes": budget_bytes,
        "version": chosen.version,
        "threshold": chosen.threshold,
        "rows": chosen.row_count,
        "bytes": chosen.bytes,
        "row_bytes": cost,
        "accesses": coverage.accesses,
        "samples": coverage.samples,
        "samples_counted": coverage.samples_counted,
        "tables": {},
    }
    for name, keys in chosen.tables.items():
        table = loaded.tables[name]
        hot = int(table.counts[contained(keys, table.keys)].sum())
        document["tables"][name] = {
            "hot_rows": len(keys),
            "rows": table.rows or None,
            "distinct": len(table.keys),
            "bytes": len(keys) * cost,
            "accesses": hot / max(1, table.accesses),
        }
    if as_json:
        output.show_json(document)
    else:
        _show(document, loaded)


def layout(dim: int | None, optimizer: str | None, row_bytes: int | None) -> "Layout":
    """Return the layout of rows that the flags describe, after checking that a table can have this
    layout."""
    from embstore.arrays import DIM_MAX
    from embstore.layout import Layout
    from embstore.profiles.hotset import ROW_BYTES_MAX
    from embstore_server.sizing.sizes import layout_of_bytes

    if row_bytes is None:
        kind, elements = optimizer or _OPTIMIZER, dim or _DIM
        _check_most("--dim", elements, DIM_MAX)
        state_dim = parameters.optimizer(kind, learning_rate=1.0).state_dim(elements)
        return Layout(elements, state_dim, kind)
    if dim is not None or optimizer is not None:
        raise InvalidArgumentError(
            "--row-bytes replaces --dim and --optimizer: give one or the other"
        )
    _check_most("--row-bytes", row_bytes, ROW_BYTES_MAX)
    return layout_of_bytes(row_bytes)


def _check_most(flag: str, value: int, most: int) -> None:
    if value > most:
        raise InvalidArgumentError(f"{flag}: expected at most {most}, found {value}")


def _show(document: dict[str, Any], profile: "Profile") -> None:
    lines = []
    for name, of in document["tables"].items():
        rows = f"{of['rows']:,}" if of["rows"] else f"{of['distinct']:,} seen"
        size, share = bytes_text(of["bytes"]), f"{of['accesses']:.1%}"
        lines.append((name, of["hot_rows"], rows, size, share))
    output.show_rows(_COLUMNS, lines)
    counted = "" if profile.rate == 1 else f", counted in {profile.rate:.3g} of the samples"
    how = "of samples, if their ids were independent"
    if document["samples_counted"] and profile.samples is not None:
        how = f"of {len(profile.samples):,} kept samples"
    output.show_text(
        f"\n{document['rows']:,} rows of {document['row_bytes']} bytes are hot, "
        f"{bytes_text(document['bytes'])} of {bytes_text(document['budget_bytes'])}: those with "
        f"{document['threshold']:,} accesses or more{counted}\n"
        f"they take {document['accesses']:.1%} of accesses, and all ids of "
        f"{document['samples']:.1%} {how}"
    )
