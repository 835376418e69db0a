"""`embstore table`: create, list, show and drop tables."""

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import connection, output, parameters
from embstore_server.cli.connection import ServedTable
from embstore_server.cli.exits import FAILED
from embstore_server.cli.options import ADDRESS, TIMEOUT_S, Address, AsJson, Timeout, TlsCa

app = typer.Typer(help="Create, list, show and drop tables.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@app.command()
def create(
    name: Name,
    *,
    dim: Annotated[int, typer.Option(help="Elements of a row.", show_default=False)],
    rows: Annotated[int, typer.Option(help="Keys are below this.", show_default=False)],
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="sgd, adagrad, rowwise_adagrad or adam.", show_default=False
        ),
    ],
    learning_rate: Annotated[
        float, typer.Option(help="Of updates that give none.", show_default=False)
    ],
    initializer: Annotated[
        str,
        typer.Option(
            metavar="KIND:NUMBERS",
            help="uniform:LOW,HIGH, normal:MEAN,STD or constant:VALUE.",
            show_default=False,
        ),
    ],
    epsilon: Annotated[float | None, typer.Option(help="Adagrads, Adam.")] = None,
    initial_accumulator: Annotated[float | None, typer.Option(help="Adagrads.")] = None,
    beta1: Annotated[float | None, typer.Option(help="Adam.")] = None,
    beta2: Annotated[float | None, typer.Option(help="Adam.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the initial rows. Default: from the name.")
    ] = None,
    address: Address = ADDRESS,
    timeout: Timeout = TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Make a table. One that was made just so before is left as it is."""
    made: dict[str, Any] = {
        "optimizer": parameters.optimizer(
            optimizer,
            learning_rate=learning_rate,
            epsilon=epsilon,
            initial_accumulator=initial_accumulator,
            beta1=beta1,
            beta2=beta2,
        ),
        "initializer": parameters.initializer(initializer),
    }
    with connection.connected(address, timeout, tls_ca) as store:
        table = store.create_table(name, dim=dim, rows=rows, seed=seed, **made)
        described = _described(table)
    _show(described, as_json)


@app.command("list")
def list_tables(
    *,
    address: Address = ADDRESS,
    timeout: Timeout = TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """List all tables."""
    with connection.connected(address, timeout, tls_ca) as store:
        tables: dict[str, dict[str, Any]] = store.stats()["tables"]
    if as_json:
        output.show_json([{"name": name, **figures} for name, figures in sorted(tables.items())])
        return
    columns = ("rows", "dim", "optimizer", "learning_rate", "t", "resident_rows", "dirty_rows")
    output.show_rows(
        ("name", *(column.replace("_", " ") for column in columns)),
        [(name, *(t[column] for column in columns)) for name, t in sorted(tables.items())],
    )


@app.command()
def show(
    name: Name,
    *,
    address: Address = ADDRESS,
    timeout: Timeout = TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Show what a table is and how it stands."""
    with connection.connected(address, timeout, tls_ca) as store:
        described = _described(store.table(name))
    _show(described, as_json)


@app.command()
def drop(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    address: Address = ADDRESS,
    timeout: Timeout = TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Forget a table and its rows. Kept checkpoints still have it."""
    with connection.connected(address, timeout, tls_ca) as store:
        if not yes:
            _ask(name, store.table(name).stats())
        command = store.drop_table(name)
    if as_json:
        output.show_json({"name": name, "command": command})
    else:
        output.show_text(f"dropped {name} by command {command:,}")


def _ask(name: str, figures: dict[str, Any]) -> None:
    if not sys.stdin.isatty():
        raise InvalidArgumentError(f"table {name!r}: expected --yes, as there is no one to ask")
    question = f"Drop {name} with {figures['rows']:,} rows after {figures['t']:,} updates?"
    if not typer.confirm(question, err=True):
        output.show_error(f"table {name!r} is left as it is")
        raise typer.Exit(FAILED)


def _described(table: ServedTable) -> dict[str, Any]:
    """Return configuration and figures of a table as JSON holds them."""
    config, figures = table.config, table.stats()
    optimizer = {"kind": config.optimizer.kind, **asdict(config.optimizer)}
    return {
        "name": config.name,
        "dim": config.dim,
        "rows": config.rows,
        "t": figures["t"],
        "learning_rate": optimizer.pop("learning_rate"),
        "optimizer": optimizer,
        "initializer": {"kind": config.initializer.kind, **asdict(config.initializer)},
        "seed": config.seed,
        "row_bytes": figures["row_bytes"],
        "resident_rows": figures["resident_rows"],
        "dirty_rows": figures["dirty_rows"],
    }


def _show(described: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.show_json(described)
        return
    shown = described | {"seed": str(described["seed"])}  # a name rather than a number
    lines = [(key.replace("_", " "), _spelt(value)) for key, value in shown.items()]
    output.show_parts([(described["name"], lines[1:])])


def _spelt(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kind, *rest = value.items()
    return " ".join([kind[1], *(f"{name}={number:g}" for name, number in rest)])
