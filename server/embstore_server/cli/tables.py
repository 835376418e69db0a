"""`embstore table`: create, list, show, grow, clear and drop tables, and set optimizers."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from warnings import catch_warnings, simplefilter

import typer

from embstore.config import OPTIMIZERS, KeySpace
from embstore.engine.stats import TableStats
from embstore_server.cli import output, parameters
from embstore_server.cli.connection import Connect, on_server
from embstore_server.cli.flags import YES, flag, with_options
from embstore_server.cli.output import Shown
from embstore_server.cli.stats import by_name

if TYPE_CHECKING:
    from embstore.handles.table import Table

_OF_STATS = ("row_bytes", "resident_rows", "host_rows", "dirty_rows", "host_dirty_rows")

Name = Annotated[str, typer.Argument(metavar="NAME")]


@on_server()
@with_options(parameters.optimizer_options())
def create(
    connect: Connect,
    name: Name,
    *,
    dim: Annotated[int, flag("Elements of a row.")],
    rows: Annotated[int | None, flag("Number of rows, for dense keys.")] = None,
    key_space: Annotated[KeySpace, flag("dense: 0 <= key < rows; sparse: any 64 bits.")] = "dense",
    optimizer: Annotated[str, flag(f"{', '.join(OPTIMIZERS)}.", "KIND")],
    learning_rate: Annotated[float, flag("Rate of updates that give none.")],
    initializer: Annotated[str, flag(f"{parameters.initializer_forms()}.", "KIND:NUMBERS")],
    seed: Annotated[int | None, flag("Seed of the initial rows. Default: from the name.")] = None,
    **optimizer_parameters: float | bool | None,
) -> Shown:
    """Create a table. An existing table of the same configuration is left as it is."""
    made: dict[str, Any] = {
        "optimizer": parameters.optimizer(
            optimizer, learning_rate=learning_rate, **optimizer_parameters
        ),
        "initializer": parameters.initializer(initializer),
    }
    with connect() as store, catch_warnings():
        simplefilter("ignore")  # shown below, with the command that changes it
        table = store.create_table(name, dim=dim, rows=rows, seed=seed, key_space=key_space, **made)
        shown = _shown(table)
    kept = shown[0]["learning_rate"]
    if kept != learning_rate:
        output.show_hint(
            f"{name} was there already and keeps its learning rate {kept:g}; for the other: "
            f"embstore table set-learning-rate {name} {learning_rate:g}"
        )
    return shown


@on_server()
def list(connect: Connect) -> Shown:
    """List all tables."""
    with connect() as store:  # not the store's stats, which need rights on all tables
        tables = {name: store.table(name).stats() for name in store.tables()}
    listed = [{"name": name, **stats} for name, stats in tables.items()]
    return listed, partial(by_name, "name", TableStats, tables)


@on_server()
def show(connect: Connect, name: Name) -> Shown:
    """Show a table's configuration and stats."""
    with connect() as store:
        return _shown(store.table(name))


@on_server()
def grow(
    connect: Connect,
    name: Name,
    rows: Annotated[int, typer.Argument(metavar="ROWS", help="Number of rows from now on.")],
) -> Shown:
    """Increase the number of rows of a table; its initializer gives the new rows their values."""
    with connect() as store:
        done = store.table(name).grow(rows)
    document = {"name": name, "rows": rows, "command": done.command}
    return document, f"{name} has {rows:,} rows since command {done.command:,}"


@on_server()
def set_learning_rate(
    connect: Connect,
    name: Name,
    rate: Annotated[float, typer.Argument(metavar="RATE")],
) -> Shown:
    """Set the learning rate of updates that do not contain one."""
    with connect() as store:
        store.table(name).learning_rate = rate
    return {"name": name, "learning_rate": rate}, f"{name} learns at a rate of {rate:g} from now on"


@on_server()
def clear(
    connect: Connect,
    name: Name,
    *,
    yes: Annotated[bool, YES] = False,
) -> Shown:
    """Delete all rows of a table. Kept checkpoints still contain them."""
    with connect() as store:
        if not yes:
            question = f"Clear {name} after {store.table(name).t:,} updates?"
            output.ask(question, f"table {name!r}", "cleared")
        done = store.table(name).clear()
    text = f"cleared {name} of {done.rows:,} rows by command {done.command:,}"
    return {"name": name, **asdict(done)}, text


@on_server()
def drop(
    connect: Connect,
    name: Name,
    *,
    yes: Annotated[bool, YES] = False,
) -> Shown:
    """Delete a table and its rows. Kept checkpoints still contain it."""
    with connect() as store:
        if not yes:
            stats = store.table(name).stats()
            rows = (
                f"{stats['rows']:,} rows" if not store.table(name).config.is_sparse else "its rows"
            )
            question = f"Drop {name} with {rows} after {stats['t']:,} updates?"
            output.ask(question, f"table {name!r}", "dropped")
        command = store.drop_table(name)
    return {"name": name, "command": command}, f"dropped {name} by command {command:,}"


def _shown(table: "Table") -> Shown:
    config, stats = table.config, table.stats()
    optimizer = {"kind": config.optimizer.kind, **asdict(config.optimizer)}
    for name in config.optimizer.unnamed:
        del optimizer[name]
    described = {
        "name": config.name,
        "dim": config.dim,
        "key_space": config.key_space,
        "rows": None if config.is_sparse else config.rows,
        "t": stats["t"],
        "learning_rate": config.optimizer.learning_rate,
        "optimizer": optimizer,
        "initializer": {"kind": config.initializer.kind, **asdict(config.initializer)},
        "seed": config.seed,
        **{name: stats[name] for name in _OF_STATS},
    }
    shown = described | {"seed": str(config.seed)}  # an identifier: no thousands separators
    lines = [(key.replace("_", " "), _text(value)) for key, value in shown.items()]
    return described, partial(output.parts, [(config.name, lines[1:])])


def _text(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kind, *rest = value.items()
    return " ".join([kind[1], *(f"{name}={number:g}" for name, number in rest)])
