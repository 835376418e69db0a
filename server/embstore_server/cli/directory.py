"""`embstore verify`, `embstore restore-from`: commands for directories that no server has open."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import exits, output
from embstore_server.cli.extras import needing
from embstore_server.cli.flags import flag
from embstore_server.setup.parsing import bytes_text

if TYPE_CHECKING:
    from embstore.storage.verify import Verification

_DIGEST_CACHE_BYTES = 256 << 20
_Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the store.")]


@needing("fast")
def verify(
    data: _Directory,
    *,
    digests: Annotated[
        bool, flag("Also the digest of each table of the head.", None, "--digests")
    ] = False,
    as_json: output.AsJson = False,
) -> None:
    """Read every file of a store, or of backups, and report damaged rows.

    No server may have the directory open. Status 1: damage was found.
    """
    from embstore.storage import markers
    from embstore.storage.backup import verify_backups
    from embstore.storage.contents import IDENTITY
    from embstore.storage.files import Files
    from embstore.storage.verify import verify as verify_store

    files = Files(data)
    has_backups = not files.exists(IDENTITY) and (
        files.exists(markers.PATH) or files.is_directory("labels")
    )
    if has_backups and digests:
        raise InvalidArgumentError("--digests: expected a store, found backups; restore one")

    def note(problem: str) -> None:
        if not as_json:
            output.show_text(f"wrong: {problem}")

    with output.progress_of("bytes") as progress:
        found = (verify_backups if has_backups else verify_store)(files, note, progress)
    document: dict[str, Any] = asdict(found) | {
        "affected": [affected._asdict() for affected in found.affected]
    }
    lines = list(_lines(found))
    if digests and not found.problems:
        document["digests"] = _digests(data)
        lines += [f"{digest}  {name}" for name, digest in document["digests"].items()]
    elif digests:
        lines.append("no digest, because of the damage above")
    output.show(document, "\n".join(lines), as_json=as_json)
    if found.problems:
        raise typer.Exit(exits.FAILED)


@needing("fast")
def restore_from(
    source: Annotated[
        str, typer.Argument(metavar="DEST", help="Where backups are: a path or URL.")
    ],
    data: _Directory,
    *,
    label: Annotated[
        str | None, flag("Of the backup. Default: that of the newest backup.", "LABEL")
    ] = None,
    new_id: Annotated[
        bool, flag("Give the store another id: it is to be another one.", None, "--new-id")
    ] = False,
    as_json: output.AsJson = False,
) -> None:
    """Make DIR, which must be empty, a store from a backup; verify every row.

    If this is interrupted, DIR is no store. If DEST has the backups of a cluster, DIR gets a
    directory for each shard, all of one label.
    """
    from uuid import uuid4

    from embstore.storage.backup import restore_from as restore
    from embstore.storage.cluster_backups import is_of_cluster, restore_cluster
    from embstore.storage.destinations import open_destination
    from embstore.storage.files import Files

    def store_id() -> str | None:
        return uuid4().hex if new_id else None

    backups = open_destination(source)
    if is_of_cluster(backups):
        with output.progress_of("bytes") as progress:
            shard_map, shards = restore_cluster(source, data, label, store_id, progress)
        document = {
            "cluster": shard_map.cluster,
            "shards": len(shards),
            "command": shards[0].head.command,
            "tables": len(shards[0].head.tables),
        }
        text = (
            f"{data} has {len(shards)} shards of cluster {shard_map.cluster!r}, up to command "
            f"{shards[0].head.command:,}"
        )
        output.show(document, text, as_json=as_json)
        return
    with output.progress_of("bytes") as progress:
        made = restore(backups, Files(data), label, store_id(), progress)
    document = {
        "store_id": made.store_id,
        "epoch": made.epoch,
        "command": made.head.command,
        "tables": len(made.head.tables),
    }
    text = f"{data} is a store, up to command {made.head.command:,}: store id {made.store_id}"
    output.show(document, text, as_json=as_json)


def _lines(found: "Verification") -> "list[str]":
    lines = [f"affected: {affected}" for affected in found.affected]
    lines += [f"left over: {path}: no commit names it" for path in found.leftovers]
    verdict = f"{len(found.problems)} problems" if found.problems else "nothing is wrong"
    return [
        *lines,
        f"read {found.files:,} files, {bytes_text(found.bytes)}, {found.rows:,} records, and "
        f"{found.commands:,} records of the command log: {verdict}",
    ]


def _digests(data: Path) -> dict[str, str]:
    import embstore

    with embstore.open(
        data, device="cpu", cache_bytes=_DIGEST_CACHE_BYTES, read_only=True
    ) as store:
        names = store.tables()
        with output.progress("digests", len(names)) as advance:
            digests = {}
            for name in names:
                digests[name] = store.table(name).digest()
                advance(1)
    return digests
