"""Going back: if a shard has lost commands, all shards restore one checkpoint before any shard
serves.

With durability "checkpoint" or "interval" a shard that died restarts at its last commit, and the
other shards are ahead of this shard. No trainer has ever seen this combination of states. So the
whole cluster goes back to the last checkpoint that all shards have:

1. A shard's server checks its directory before opening it (`prepare`). It takes the directory's
   lock, so that no earlier server can write any more. If the catalogue's flag `tail` shows that
   there were commands after the last commit, they are lost: the process ends with LOST.
2. The shard's actor notifies the coordinator, which asks all actors for the checkpoints on their
   disks, and chooses the newest checkpoint that all shards have. The coordinator records in its
   file the label of this checkpoint and n, the number of times that the cluster has gone back. It
   ends the servers of all other shards, and only then answers the actor.
3. Each server, of any shard, that starts afterwards gets n and the label. It restores the
   checkpoint once for each n: a file next to its directory contains the last n for which the shard
   has restored a checkpoint.

**No step is acknowledged in between**: a step needs all shards, and the shard that had lost
commands serves only when every earlier server has ended. A process that dies meanwhile can resume:
the choice is in the coordinator's file, and the last restored n is in the shard's file.

**A first checkpoint.** A directory without any checkpoint gets one at its first start, so there is
always a state to go back to.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import embstore
from embstore.choices import Durability
from embstore.cluster_checkpoints import identity_of, marked
from embstore.errors import CheckpointNotFoundError
from embstore.storage import catalogue as catalogues
from embstore.storage import shard as shards
from embstore.storage.files import Files
from embstore_cluster.plan import Plan
from embstore_server.host.shards import committed

LOST = 79
"""The exit status of a server whose directory has lost commands."""
FIRST_LABEL = "cluster/start"


def words(plan: Plan, shard: int) -> list[str]:
    """Return the arguments for `prepare` on the command line of a shard's server."""
    if plan.durability == "commands":
        return []
    back = plan.back
    return [str(plan.directory(shard)), plan.durability, plan.life, str(back.number), back.label]


def prepare(given: Sequence[str]) -> int:
    """Bring a shard's directory to the cluster's state before it is served; `given` contains the
    arguments from `words`.

    Returns
    -------
    0, or LOST: the directory has lost commands, and is unchanged.

    Raises
    ------
    StoreInUseError : another server uses the directory.
    EmbstoreError : the checkpoint cannot be restored.
    """
    path, level, life, wanted, label = given
    directory, durability = Path(path), cast(Durability, level)
    own = Files(str(directory.parent))
    noted = f"{directory.name}.back.json"
    number = json.loads(own.read_all(noted))["number"] if own.exists(noted) else 0
    kept = committed(directory)
    if number < int(wanted):
        with embstore.open(directory, device="cpu", durability=durability) as store:
            store.restore(label, force=True)
        own.replace(noted, json.dumps({"number": int(wanted)}).encode() + b"\n")
    elif kept is not None and kept.tail:
        return LOST
    elif kept is None or not kept.checkpoints:
        with embstore.open(directory, device="cpu", durability=durability) as store:
            store.checkpoint(FIRST_LABEL, marked({}, life))
    return 0


def labels(directory: Path) -> dict[str, str]:
    """Return the identity of each checkpoint on a shard's disk, by label, oldest first. A
    checkpoint that was made by the whole cluster has the same identity on all shards. A checkpoint
    that only one shard has made has an identity that no other shard has. A server may have the
    directory open during this call."""
    files = Files(str(directory))
    if not files.exists(catalogues.PATH):
        return {}
    kept, place = catalogues.decode(files.read_all(catalogues.PATH)).checkpoints, shards.read(files)
    found = {}
    for one in kept:
        with suppress(CheckpointNotFoundError):  # with rows of partitions that moved away
            if place is not None:
                place.check_label(one.label, one.state.commit)
            found[one.label] = identity_of(one.described()) or directory.name
    return found


def newest(of_shards: Sequence[Mapping[str, str]]) -> str:
    """Return the newest label whose checkpoints on all shards were made at one barrier.

    Raises
    ------
    CheckpointNotFoundError : there is no such label.
    """
    first, *others = of_shards
    for label, identity in reversed([*first.items()]):
        if all(other.get(label) == identity for other in others):
            return label
    raise CheckpointNotFoundError(
        "a shard has lost commands: expected a checkpoint that all shards have, kept since "
        "partitions were moved, to go back to; found none: restore backups of all shards"
    )
