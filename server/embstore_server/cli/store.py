"""`embstore checkpoint`, `set-retention`, `restore`, `backup`, `digest`, `call`: commands on the
store of a running server.
"""

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from embstore.choices import Retention
from embstore.errors import InvalidArgumentError
from embstore_server.cli import output
from embstore_server.cli.connection import LONG_TIMEOUT_S, Connect, on_server
from embstore_server.cli.flags import YES, flag
from embstore_server.cli.output import Shown
from embstore_server.setup.parsing import bytes_text

if TYPE_CHECKING:
    from embstore.handles.store import Store
    from embstore.results import KeptCheckpoint
    from embstore.storage.shard import ShardPlace


@on_server(LONG_TIMEOUT_S)
def checkpoint(
    connect: Connect,
    label: Annotated[
        str | None, typer.Argument(metavar="LABEL", help="A name that no checkpoint has yet.")
    ] = None,
    *,
    metadata: Annotated[str | None, flag("A small object to keep with it.", "JSON")] = None,
    listed: Annotated[bool, flag("List the kept ones, oldest first.", None, "--list")] = False,
) -> Shown:
    """Make everything durable and keep it under LABEL; --list lists checkpoints.

    embstore set-retention protects a checkpoint, or drops it.
    """
    if listed == (label is not None) or (listed and metadata is not None):
        raise InvalidArgumentError("expected a LABEL, with or without --metadata, or --list alone")
    try:
        noted = json.loads(metadata or "{}")
    except ValueError as exc:
        raise InvalidArgumentError(f"--metadata: expected a JSON object: {exc}") from exc
    with connect() as store:
        if label is None:
            kept = [_described(one) for one in store.checkpoints()]
            rows = [_row(one) for one in kept]
            return kept, partial(output.rows, ("label", "command", "tables", "", "metadata"), rows)
        with output.progress(f"checkpoint {label!r}"):
            made = _described(store.checkpoint(label, noted))
    return made, f"kept {label!r}: all up to command {made['command']:,} is durable"


def _described(checkpoint: "KeptCheckpoint") -> dict[str, Any]:
    return {
        "label": checkpoint.label,
        "command": checkpoint.command,
        "tables": checkpoint.tables,
        "protected": checkpoint.protected,
        "metadata": checkpoint.metadata,
    }


def _row(described: dict[str, Any]) -> tuple[Any, ...]:
    kept = "protected" if described["protected"] else ""
    metadata = json.dumps(described["metadata"])
    return described["label"], described["command"], described["tables"], kept, metadata


@on_server()
def set_retention(
    connect: Connect,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="A kept checkpoint.")],
    retention: Annotated[
        Retention,
        typer.Argument(
            metavar="RETENTION",
            help="protected: newer checkpoints do not push it out; routine: they do; dropped: it "
            "is not kept any more.",
        ),
    ],
    *,
    yes: Annotated[bool, YES] = False,
) -> Shown:
    """Protect a checkpoint, make it a routine one again, or drop it.

    A protected checkpoint must be made routine before it can be dropped, which frees its disk
    space. The store's current rows stay.
    """
    with connect() as store:
        if retention == "dropped" and not yes:
            output.ask(f"Lose the checkpoint {label!r}?", f"checkpoint {label!r}", "dropped")
        found = _described(store.set_retention(label, retention))
    if retention == "dropped":
        return found | {"kept": False}, f"dropped {label!r}"
    return found | {"kept": True}, f"{label!r} is {retention}"


@on_server(LONG_TIMEOUT_S)
def restore(
    connect: Connect,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="A kept checkpoint.")],
    *,
    wait: Annotated[
        float, flag("Wait so long for open sessions to end, at most.", "SECONDS", min=0)
    ] = 0.0,
    force: Annotated[bool, flag("End open sessions.", None, "--force")] = False,
    yes: Annotated[bool, YES] = False,
) -> Shown:
    """Go back to a kept checkpoint, for all clients. Newer commands are lost.

    The session of a killed trainer ends when its lease expires: see --wait.
    """
    with connect() as store:
        if not yes:
            output.ask(f"Lose all changes since {label!r}?", f"checkpoint {label!r}", "restored")
        with output.progress(f"restore {label!r}"):
            command = store.restore(label, wait_s=wait, force=force)
    document = {"label": label, "command": command}
    return document, f"restored {label!r} by command {command:,}"


@on_server(LONG_TIMEOUT_S)
def backup(
    connect: Connect,
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DEST", help="The name of a folder below the server's --backup-within."
        ),
    ],
    *,
    label: Annotated[
        str | None, flag("A kept checkpoint. Default: the present state.", "LABEL")
    ] = None,
) -> Shown:
    """Back up the store of a running server to DEST.

    Only new files are written there. Other calls continue meanwhile. If this command is
    interrupted, the server finishes the backup.
    """
    with connect() as store, output.progress("backup"):
        made = store.backup(destination, label)
    text = (
        f"backed up {made.label!r} to {destination}, all up to command {made.command:,}: "
        f"{made.files:,} files, {bytes_text(made.bytes)}; new are {made.new_files:,} files, "
        f"{bytes_text(made.new_bytes)}"
    )
    return vars(made), text


@on_server(LONG_TIMEOUT_S)
def digest(
    connect: Connect,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Default: all.")
    ] = None,
    leaves: Annotated[
        bool, typer.Option("--leaves", help="Also of blocks of 256 keys with a written row.")
    ] = False,
) -> Shown:
    """Show the digests of tables.

    Digests are equal if, and only if, every bit of the rows is equal.

    Lines are in the format of sha256sum, so that diff compares two stores; with --leaves it shows
    the blocks in which they differ.
    """
    with connect() as store:
        handles = [store.table(name) for name in tables or store.tables()]  # before any digest
        digests = {}
        with output.progress("digests", len(handles)) as advance:
            for table in handles:
                digests[table.name] = table.digest()
                if leaves:
                    digests |= {f"{table.name}:{block}": leaf for block, leaf in table.leaves()}
                advance(1)
    return digests, "\n".join(f"{value}  {name}" for name, value in digests.items())


@on_server(LONG_TIMEOUT_S, of_one=True)
def call(
    connect: Connect,
    verb: Annotated[str, typer.Argument(metavar="VERB", help="As in the .proto file: GetStats.")],
    request: Annotated[str, typer.Argument(metavar="[JSON]", help="Its request.")] = "{}",
) -> Shown:
    """Call a verb without arrays with a request in JSON, and show the reply.

    A shard of a cluster is not given a verb that all shards must execute.
    """
    from embstore_proto.verbs import JSON_VERBS, VERBS, Outgoing
    from embstore_server.path.alone import check_alone

    if verb not in VERBS:
        raise InvalidArgumentError(f"expected a verb: {', '.join(JSON_VERBS)}; found {verb!r}")
    outgoing = Outgoing(VERBS[verb].request_of_json(request), None)
    with connect() as store:
        check_alone(VERBS[verb].command, partial(_place_of, store))
        answer = cast(Any, store.executor).transport.send(VERBS[verb], outgoing)
    text = VERBS[verb].reply_json(answer.value, answer.context)
    return json.loads(text), text


def _place_of(store: "Store") -> "ShardPlace | None":
    from embstore.storage.shard import ShardPlace

    info = store.server_info()
    if info.shard is None or info.shard_map is None:
        return None
    return ShardPlace(info.shard, info.shard_map)
