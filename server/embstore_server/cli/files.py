"""`embstore export`, `embstore import`: tables as files (`embstore_client.files`)."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore_server.cli import output
from embstore_server.cli.connection import LONG_TIMEOUT_S, Connect, on_server
from embstore_server.cli.flags import flag
from embstore_server.cli.output import Shown
from embstore_server.setup.parsing import bytes_text

if TYPE_CHECKING:
    from embstore.handles.store import Store
    from embstore.handles.table import Table

_Name = Annotated[str, typer.Argument(metavar="TABLE")]


@on_server(LONG_TIMEOUT_S)
def export(
    connect: Connect,
    table: _Name,
    *,
    to: Annotated[
        str,
        flag(
            "A path, or a URL of fsspec, that ends with .safetensors, .parquet or .npy.",
            "FILE",
            *("-o", "--output"),
        ),
    ],
    label: Annotated[
        str | None, flag("A kept checkpoint. Default: the present state, committed.", "LABEL")
    ] = None,
    since: Annotated[
        str | None, flag("Only rows written after this kept checkpoint.", "LABEL")
    ] = None,
    with_state: Annotated[bool, flag("The optimizer's state, too.", None)] = False,
) -> Shown:
    """Write the rows of a table to a file, all as of one command.

    Other clients can train meanwhile. The file gets its name when it is complete. A .npy file has
    every row of the table, by number; the others have the rows that were written.
    """
    from embstore_client.files import export_table

    how: dict[str, Any] = {"label": label, "since": since, "with_state": with_state}
    with connect() as store, output.progress_of("rows") as progress:
        done = export_table(store.table(table), to, progress=progress, **how)
    about = done.about
    text = (
        f"{to}: {done.rows:,} rows of {table} as of command {about.command:,}, t {about.t:,}, "
        f"{bytes_text(done.bytes)}"
    )
    document = {"rows": done.rows, "bytes": done.bytes, "command": about.command, "t": about.t}
    return {"file": to, "table": table, "label": label, "since": since, **document}, text


@on_server(LONG_TIMEOUT_S)
def import_(
    connect: Connect,
    table: _Name,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A path, or a URL of fsspec: .safetensors, .parquet, .npy, .npz, .csv, .tsv; .txt "
            "as of GloVe; or a checkpoint of PyTorch (.pt, .pth, .bin, .ckpt).",
        ),
    ],
    *,
    tensor: Annotated[
        str | None, flag("Tensor or column of the rows, if there are several.", "NAME")
    ] = None,
    key: Annotated[
        str | None, flag("Tensor or column of the keys. Default: keys, key or id.", "NAME")
    ] = None,
    ids: Annotated[
        Literal["keys", "hash"],
        flag("keys: of the table; hash: text and other ids, to be hashed to keys."),
    ] = "keys",
    with_state: Annotated[bool, flag("Set the optimizer's state and t, too.", None)] = False,
    allow_nan: Annotated[bool, flag("Accept rows with NaN.", None)] = False,
    create: Annotated[
        bool, flag("Create the table that the file describes, if it is missing.", None)
    ] = False,
) -> Shown:
    """Set rows of a table from a file. An interrupted import can be repeated.

    Without --with-state, rows are assigned: their optimizer state starts at zero.
    """
    from embstore_client.files import import_table

    names: dict[str, Any] = {"tensor": tensor, "key": key}
    how: dict[str, Any] = {"ids": ids, "with_state": with_state, "allow_nan": allow_nan}
    with connect() as store, output.progress_of("rows") as progress:
        handle = _created(store, table, file, names) if create else store.table(table)
        done = import_table(handle, file, progress=progress, **names, **how)
    text = f"{done.rows:,} rows of {file} are in {table}, t {done.t:,}"
    return {"table": table, "file": file, **vars(done)}, text


def _created(store: "Store", name: str, file: str, names: dict[str, Any]) -> "Table":
    """Return a table; if it does not exist, create it by the description in the file."""
    from embstore_client.files import about_file

    try:
        return store.table(name)
    except TableNotFoundError:
        about = about_file(file, **names)
    if about is None:
        raise InvalidArgumentError(
            f"{file}: expected a file that describes the table to create, found none of "
            "embstore's metadata: create the table with `embstore table create`"
        )
    if about.since is not None:
        raise InvalidArgumentError(
            f"{file}: expected all rows of the table to create, found only those written since "
            f"checkpoint {about.since!r}: import the file before it first"
        )
    config = about.config
    return store.create_table(
        name,
        dim=config.dim,
        rows=config.rows,
        optimizer=config.optimizer,
        initializer=config.initializer,
        seed=config.seed,
        key_space=config.key_space,
    )
