"""Backups of a cluster: the backup of each shard is in its own folder, `shard-N`.

The backup of a shard contains the shard's number, its map, and the mark of its checkpoint: a random
text that is equal in all shards' checkpoints of one attempt (`embstore.cluster_checkpoints`). All
shards of a cluster are restored together, from backups of one checkpoint: a cluster of shards from
different times would open, but its model would be wrong. Neither command numbers nor the tables'
update counts t show the time of a backup: an `assign` changes rows without changing t. Therefore
the marks are compared before any file is copied.

    SOURCE/shard-N    backups of shard N
    TARGET/shard-N    the result: the directory of shard N
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from embstore.cluster_checkpoints import identity_of
from embstore.errors import CheckpointNotFoundError, InvalidArgumentError
from embstore.sharding import ShardMap
from embstore.storage.backup import (
    Progress,
    backups_in,
    check_empty,
    newest_last,
    place_of,
    restoring,
)
from embstore.storage.catalogue import Catalogue
from embstore.storage.destinations import Destination, open_destination
from embstore.storage.files import Files
from embstore.storage.shard import ShardPlace

_AGAIN = "back the cluster up again, under a label: embstore backup ... --label LABEL"


def is_of_cluster(source: Destination) -> bool:
    """Return whether a destination contains backups of a cluster's shards, in their folders."""
    return bool(source.list("shard-0/labels"))


def restore_cluster(
    source: str,
    target: Path,
    label: str | None,
    store_id: Callable[[], str | None],
    progress: Progress,
) -> tuple[ShardMap, list[Catalogue]]:
    """Make the directories of all shards of a cluster; return the cluster's map and the shards'
    catalogues. After any error, no shard has a store, and the directories are as they were.

    Parameters
    ----------
    source : path or URL that contains the folders of the shards
    target : directory in which `shard-N` is made for each shard
    label : label of the backups; None: the newest label among the labels that all shards have
    store_id : a function, called once per shard, that returns the id of the shard's store; None:
        the id in the backup
    progress : called per shard, with the bytes done so far and the total

    Raises
    ------
    CheckpointNotFoundError : not all shards have a backup of this label.
    InvalidArgumentError : the backups are not those of all shards of one cluster, with the same map
        and of one checkpoint; or a directory is not empty.
    CorruptTableError : a file is damaged.
    """
    first = _folder(source, 0)
    places = {name: place_of(first, name, one) for name, one in backups_in(first).items()}
    # The cluster may have had more or fewer shards when another label was kept.
    counts = {name: len(one.shard_map.shards) if one else 1 for name, one in places.items()}
    every = [_folder(source, shard) for shard in range(max(counts.values(), default=1))]
    of_shards = [backups_in(one) for one in every]
    chosen = _label(label, of_shards, counts)
    count = counts[chosen]
    sources, backups = every[:count], [of_shard[chosen] for of_shard in of_shards[:count]]
    shard_map = _checked(
        source, [place_of(s, chosen, b) for s, b in zip(sources, backups, strict=True)]
    )
    kept = {_identity(chosen, backup) for backup in backups}
    if len(kept) > 1 or None in kept:
        raise InvalidArgumentError(
            f"{source}: expected backups of one checkpoint {chosen!r} of all shards, found that "
            f"they differ between the shards; {_AGAIN}"
        )
    targets = [Files(target, f"shard-{shard}") for shard in range(count)]
    for files in targets:
        check_empty(files)
    with ExitStack() as stack:
        made = [
            stack.enter_context(restoring(one, files, chosen, store_id(), progress))
            for one, files in zip(sources, targets, strict=True)
        ]
    return shard_map, made


def _folder(source: str, shard: int) -> Destination:
    return open_destination(source, f"shard-{shard}")


def _identity(label: str, backup: Catalogue) -> str | None:
    """Return the identity of a backup's checkpoint; None if no cluster made the checkpoint."""
    kept = backup.checkpoint(label)
    if kept is None or kept.state.commit != backup.head.commit:
        return None
    return identity_of(kept.described())


def _label(
    label: str | None, of_shards: list[dict[str, Catalogue]], counts: Mapping[str, int]
) -> str:
    """Return the label to restore; all shards have a backup of it. `counts` gives, by label, the
    number of shards that the cluster had when the label was made."""

    def lacking(name: str) -> list[int]:
        count = counts.get(name, len(of_shards))
        return [shard for shard, names in enumerate(of_shards[:count]) if name not in names]

    common = {name for name in counts if not lacking(name)}
    if label is None and common:
        return max(common, key=lambda name: newest_last(of_shards[0][name]))
    if label is None or label not in common:
        wanted, count = "", len(of_shards)
        if label is not None:
            count = counts.get(label, count)
            wanted = f", {label!r}, which shards {lacking(label)} have not"
        there = ", ".join(map(repr, sorted(common))) or "none"
        raise CheckpointNotFoundError(
            f"expected backups of one label of all {count} shards{wanted}; labels that all have: "
            f"{there}; give one of them, or {_AGAIN}"
        )
    return label


def _checked(source: str, places: list[ShardPlace | None]) -> ShardMap:
    """Return the map that the backups of all shards have."""
    first = places[0]
    for shard, place in enumerate(places):
        where = f"{source.rstrip('/')}/shard-{shard}"
        if place is None or first is None:
            raise InvalidArgumentError(
                f"{where}: expected the backup of a shard, found one of a store outside of any "
                "cluster: restore it by itself"
            )
        if place.shard != shard or place.shard_map.cluster != first.shard_map.cluster:
            raise InvalidArgumentError(
                f"{where}: expected the backup of shard {shard} of cluster "
                f"{first.shard_map.cluster!r}, found the backup of {place.name}: give each folder "
                "the name of its shard"
            )
        if place.shard_map != first.shard_map:
            raise InvalidArgumentError(
                f"{where}: expected version {first.shard_map.version} of the map, as the backup of "
                f"shard 0 has it, found version {place.shard_map.version}; {_AGAIN}"
            )
    assert first is not None, "there is a shard 0"
    return first.shard_map
