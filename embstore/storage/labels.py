"""Retention of checkpoints: each folder of labels keeps its last checkpoints; protected ones stay.

A label `ads/nightly/7` is in the folder `ads/nightly`; a label without a slash is in the folder "".
Each folder keeps its own last checkpoints. Therefore the checkpoints of one client do not push out
the checkpoints of another client, and routine checkpoints do not push out a label in another
folder. The part before the first slash is a namespace. A namespace has at most FOLDERS_MAX folders.
If it gets more, the folder whose last checkpoint is the oldest is dropped.

**A stand-in**, LABEL/replacing, belongs to the folder of LABEL. While both exist, the stand-in does
not count: it pushes out no checkpoint and no folder. A client that replaces LABEL makes the
stand-in first, and drops it last.

**Protected** checkpoints are exempt: they are never pushed out or dropped, and they do not count,
so that a folder keeps the same number of routine checkpoints with and without them. PROTECTED_MAX
bounds the number of protected checkpoints, because each one keeps files that merges could otherwise
remove.

**A shard** does not know which of its checkpoints are complete, that is, which labels all shards
have. It therefore keeps up to `SPARE` more in each folder, and some more folders. The client that
has made a cluster's checkpoint lists the complete labels, and tells them to each shard when it
resumes writes. Then the shard pushes out older ones (`without_old`). So clients and shards that
die while they make checkpoints, and leave incomplete ones, push out no complete one. Clients drop
what others have left (`embstore_client.shards.checkpoints`), except clients that may not pause
writes.

**Dropping a checkpoint is always safe**, even if it is the newest or the only one. No other state
needs that checkpoint: the head and every other checkpoint name all files that they need. A running
scan keeps the files that it reads mapped, and a running backup keeps second names of its files. A
restore and a drop never overlap, because each needs the engine. The drop is one rename of the
catalogue: before the rename the label is kept whole, and after the rename the label does not exist.
Files that no catalogue names any more are removed at once or by the next opening.
"""

from collections.abc import Container, Sequence
from dataclasses import replace
from shlex import quote

from embstore.choices import STAND_IN, Retention
from embstore.cluster_checkpoints import is_marked
from embstore.errors import CapacityError, CheckpointProtectedError
from embstore.storage.states import KeptState

FOLDERS_MAX = 8
"""Maximum number of folders per namespace. It is limited because each folder keeps files that
merges could otherwise remove."""
PROTECTED_MAX = 64
"""Maximum number of protected checkpoints of a store."""


SPARE = 4
"""The number of checkpoints that a shard keeps beyond the usual number in each folder, and of
folders beyond `FOLDERS_MAX`, since some may be incomplete."""


def kept_after(
    checkpoints: Sequence[KeptState], made: KeptState, keep: int, *, is_shard: bool
) -> tuple[KeptState, ...]:
    """Return the checkpoints to keep when `made` is made, oldest first."""
    after = (*checkpoints, made)
    is_of_several = is_shard and any(is_marked(one.metadata) for one in after)
    return still_kept(after, keep, spare=SPARE if is_of_several else 0)


def still_kept(
    checkpoints: Sequence[KeptState], keep: int, *, spare: int = 0
) -> tuple[KeptState, ...]:
    """Return the checkpoints to keep, oldest first. `checkpoints` are all checkpoints, oldest
    first; the last one was just made. `spare` is the number of checkpoints to keep beyond `keep` in
    each folder, and of folders beyond `FOLDERS_MAX`."""
    by_folder: dict[str, list[KeptState]] = {}
    labels = {one.label for one in checkpoints}
    exempt = {one.label for one in checkpoints if one.protected}
    exempt |= {label + STAND_IN for label in labels} & labels
    for one in checkpoints:
        if one.label not in exempt:
            folder = one.label.removesuffix(STAND_IN).rpartition("/")[0]
            by_folder[folder] = [*by_folder.pop(folder, []), one][-keep - spare :]  # newest last
    spaces: dict[str, list[str]] = {}
    for folder in by_folder:
        spaces.setdefault(folder.partition("/")[0], []).append(folder)
    folders = {folder for space in spaces.values() for folder in space[-FOLDERS_MAX - spare :]}
    stay = exempt | {one.label for folder in folders for one in by_folder[folder]}
    return tuple(one for one in checkpoints if one.label in stay)


def without_old(
    checkpoints: Sequence[KeptState], complete: Container[str], keep: int
) -> tuple[KeptState, ...]:
    """Return the checkpoints that a shard keeps, oldest first, if those with the labels `complete`
    are complete: the newest complete ones, and the newest of all."""
    newest = still_kept([one for one in checkpoints if one.label in complete], keep)
    labels = {one.label for one in (*newest, *still_kept(checkpoints, keep))}
    return tuple(one for one in checkpoints if one.label in labels)


def retained(
    checkpoints: Sequence[KeptState], kept: KeptState, retention: Retention
) -> tuple[KeptState, ...]:
    """Return the remaining checkpoints after `kept` was made protected or routine, or was dropped.

    Raises CheckpointProtectedError if a protected checkpoint would be dropped, and CapacityError if
    too many are protected.
    """
    if retention == "dropped":
        if kept.protected:
            raise CheckpointProtectedError(
                f"checkpoint {kept.label!r} is protected: make it routine first, "
                f"{_routine(kept.label)}"
            )
        return tuple(one for one in checkpoints if one is not kept)
    protected = [one for one in checkpoints if one.protected and one is not kept]
    if retention == "protected" and len(protected) >= PROTECTED_MAX:
        raise CapacityError(
            f"{PROTECTED_MAX} checkpoints are protected; make one of them routine, or drop it, "
            f"before {kept.label!r} is protected"
        )
    changed = replace(kept, protected=retention == "protected")
    return tuple(changed if one is kept else one for one in checkpoints)


def check_loses_none(checkpoints: Sequence[KeptState], to: KeptState) -> None:
    """Raise CheckpointProtectedError if a restore to `to` would lose a protected checkpoint."""
    lost = [one for one in checkpoints if one.protected and one.state.commit > to.state.commit]
    if lost:
        labels = ", ".join(repr(one.label) for one in lost)
        raise CheckpointProtectedError(
            f"a restore of {to.label!r} would delete {labels}, which is newer and protected; back "
            f"it up, make it routine, and then restore: {_routine(lost[0].label)}"
        )


def _routine(label: str) -> str:
    """Return the Python call and the shell command that make a checkpoint a routine checkpoint."""
    in_python = f"store.set_retention({label!r}, 'routine')"
    return f"{in_python}, or embstore set-retention {quote(label)} routine"
