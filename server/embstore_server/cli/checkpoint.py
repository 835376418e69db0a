"""`embstore checkpoint`: make one, or list those that are kept."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import connection, output
from embstore_server.cli.options import ADDRESS, LONG_TIMEOUT_S, Address, AsJson, Timeout, TlsCa

if TYPE_CHECKING:
    from embstore.results import Checkpoint


def checkpoint(
    label: Annotated[
        str | None, typer.Argument(metavar="LABEL", help="Used once.", show_default=False)
    ] = None,
    *,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="A small object to keep beside.", show_default=False),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List those that are kept, oldest first.")
    ] = False,
    address: Address = ADDRESS,
    timeout: Timeout = LONG_TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Make everything durable and keep it under LABEL; or, with --list, list what is kept."""
    if listed == (label is not None) or (listed and metadata is not None):
        raise InvalidArgumentError("expected a LABEL, with or without --metadata, or --list alone")
    noted = _object(metadata)
    with connection.connected(address, timeout, tls_ca) as store:
        if label is None:
            _show_all(store.checkpoints(), as_json)
            return
        with output.progress(f"checkpoint {label!r}"):
            made = _described(store.checkpoint(label, noted))
    if as_json:
        output.show_json(made)
    else:
        output.show_text(f"kept {label!r}: all up to command {made['command']:,} is durable")


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as exc:
        raise InvalidArgumentError(f"--metadata: expected a JSON object: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"--metadata: expected a JSON object, found {text}")
    return value


def _described(checkpoint: "Checkpoint") -> dict[str, Any]:
    return {
        "label": checkpoint.label,
        "command": checkpoint.state.command,
        "tables": len(checkpoint.state.tables),
        "metadata": checkpoint.metadata,
    }


def _show_all(checkpoints: list["Checkpoint"], as_json: bool) -> None:
    described = [_described(c) for c in checkpoints]
    if as_json:
        output.show_json(described)
        return
    output.show_rows(
        ("label", "command", "tables", "metadata"),
        [(*list(d.values())[:-1], json.dumps(d["metadata"])) for d in described],
    )
