"""The file SHARD: the cluster, shard number and map of a directory.

A row that a shard does not have counts as a row that was never written, and the initializer
computes it. Therefore, if a directory were opened as the wrong shard, no call would fail, and the
model would be wrong. To prevent this, a directory that was once opened as a shard records its shard
number and map. It is never served as a shard of another number or cluster, as an unsharded store,
or with a map older than its recorded map. A store that has executed commands of its own cannot
become a shard either, because its rows are not limited to a shard's partitions.

**Paused writes.** A map that gives partitions to other shards is adopted by all shards at one
barrier, or by no shard: the client that moves the partitions first makes every shard pause its
writes, and then decides. Therefore a pause outlives the process, like a prepared transaction of a
database. A shard that is started again takes no writes until it receives the client's decision,
which is a release or a newer map. Only a shard whose writes are paused adopts a map that moves
partitions, because the moved rows are copied only during a pause.

SHARD is replaced as a whole, and has a checksum. It is durable before a map is acknowledged, so a
shard that has acknowledged a map still has that map after a crash. A store that is no shard has no
such file.
"""

import json
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import partitions
from embstore.arrays import Keys
from embstore.config import TableConfig
from embstore.errors import (
    CheckpointNotFoundError,
    CorruptTableError,
    InvalidArgumentError,
    WritesPausedError,
)
from embstore.sharding import ShardMap
from embstore.storage.files import Files
from embstore.storage.format import seal, unseal

PATH = "SHARD"
_FORMAT = 1


@dataclass(frozen=True)
class ShardPlace:
    """A shard's number, and the cluster's map in which it has that number.

    Raises
    ------
    InvalidArgumentError : on construction, if the map has no shard of that number.
    """

    shard: int
    shard_map: ShardMap
    paused_by: str = ""
    """The client that has paused the shard's writes since the shard adopted this map; "" if writes
    are not paused."""
    since: int = 0
    """The lowest version of the map that splits commands as this map does; 0: the version of this
    map."""
    moved_commit: int = 0
    """The last commit before partitions were moved: the labels of commits up to this one belong to
    an older map."""

    def __post_init__(self) -> None:
        count = len(self.shard_map.shards)
        if type(self.shard) is not int or not 0 <= self.shard < count:
            raise InvalidArgumentError(
                f"expected a shard from 0 to {count - 1}, as cluster {self.shard_map.cluster!r} "
                f"has, found {self.shard!r}"
            )

    @property
    def name(self) -> str:
        """A description of the shard, for messages."""
        return f"shard {self.shard} of cluster {self.shard_map.cluster!r}"

    @property
    def partitions(self) -> int:
        """The number of partitions of each table that the shard owns."""
        return self.shard_map.owners.count(self.shard)

    def owns(self, config: TableConfig, keys: Keys) -> NDArray[np.bool_]:
        """Return whether the shard owns each key of a table, (n,) bool."""
        owners = np.array(self.shard_map.owners, np.int32)
        of = partitions(config.seed, keys, config.key_space)
        mine: NDArray[np.bool_] = (owners == self.shard)[of]
        return mine

    @property
    def refusal(self) -> str:
        """The reason why the shard takes no writes; "" if it takes writes."""
        if not self.paused_by:
            return ""
        who = self.paused_by
        return f"{self.name} takes no writes now: {who} has paused them; send the call again"

    def paused(self, by: str) -> "ShardPlace":
        """Return a copy of this ShardPlace in which the client `by` has paused the shard's writes.

        Raises
        ------
        WritesPausedError : another client has paused the writes.
        """
        if self.paused_by not in ("", by):
            raise WritesPausedError(self.refusal)
        return replace(self, paused_by=by)

    def resumed(self, by: str) -> "ShardPlace":
        """Return a copy of this ShardPlace in which the shard's writes are resumed. Writes stay
        paused if a client other than `by` has paused them; "" stands for any client."""
        return replace(self, paused_by="") if by in ("", self.paused_by) else self

    def check_label(self, label: str, commit: int) -> None:
        """Raise CheckpointNotFoundError if partitions were moved after a label was kept. `commit`
        is the commit of the label's state."""
        if commit <= self.moved_commit:
            raise CheckpointNotFoundError(
                f"{self.name}: checkpoint {label!r} was kept before partitions were "
                "moved, and has rows of partitions that are elsewhere now: restore one that was "
                "kept after that"
            )

    def is_split_as(self, version: int) -> bool:
        """Return whether version `version` of the map splits commands in the same way as the
        present map."""
        return (self.since or self.shard_map.version) <= version <= self.shard_map.version

    def with_map(self, shard_map: ShardMap, commit: int) -> "ShardPlace":
        """Return a copy of this ShardPlace with the next map, in which writes are not paused.
        `commit` is the store's last commit.

        Raises
        ------
        InvalidArgumentError : the map belongs to another cluster or is not newer; or it gives this
            shard's address another number; or it moves a partition or has another number of shards,
            although writes are not paused: rows that were not copied would then count as never
            written.
        """
        own = self.shard_map
        if shard_map.cluster != own.cluster:
            raise InvalidArgumentError(
                f"this is {self.name}: expected a map of that cluster, found one of "
                f"{shard_map.cluster!r}"
            )
        if shard_map.version <= own.version:
            raise InvalidArgumentError(
                f"{self.name} has version {own.version} of the map: expected a higher version, "
                f"found {shard_map.version}"
            )
        moves = shard_map.owners != own.owners
        is_same = not moves and len(shard_map.shards) == len(own.shards)
        since = self.since or own.version
        place = ShardPlace(
            self.shard,
            shard_map,
            since=since if is_same else shard_map.version,
            moved_commit=commit if moves else self.moved_commit,
        )
        if not is_same and self.partitions and not self.paused_by:
            raise InvalidArgumentError(
                f"{self.name}: expected a map that leaves every partition where it is, and has as "
                "many shards, because its writes are not paused; only addresses may change. To "
                "move partitions, call embstore cluster grow or drain"
            )
        address = own.shards[self.shard]
        if address in shard_map.shards and shard_map.shards.index(address) != self.shard:
            raise InvalidArgumentError(
                f"{self.name} is at {address}: expected a map that gives it the same number, "
                f"found {shard_map.shards.index(address)}"
            )
        return place


def read(files: Files) -> ShardPlace | None:
    """Return the ShardPlace in a directory's file SHARD; None if the directory is no shard."""
    return decode(files.read_all(PATH), PATH) if files.exists(PATH) else None


def decode(content: bytes, path: str) -> ShardPlace:
    """Decode a ShardPlace from the content of its file; `path` is the file's name in errors.

    Raises CorruptTableError, TableMismatchError: the content is damaged, or of another format.
    """
    body = unseal(PATH, _FORMAT, content, path)
    try:
        fields = json.loads(body)
        shard_map = ShardMap.from_json(json.dumps(fields["shard_map"]))
        return ShardPlace(**fields | {"shard_map": shard_map})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise CorruptTableError(f"{path}: unreadable, though its checksum matches") from exc


def encode(place: ShardPlace) -> bytes:
    """Return the content of the file SHARD for a ShardPlace."""
    return seal(PATH, _FORMAT, json.dumps(asdict(place)).encode() + b"\n")


def write(files: Files, place: ShardPlace) -> None:
    """Record which shard a directory is; return once the record is on the disk."""
    files.replace(PATH, encode(place))


def take(
    files: Files, given: ShardPlace | None, *, is_used: bool, commit: int
) -> ShardPlace | None:
    """Record and return the shard number and map of a directory that is being opened. If `given` is
    None, the directory is being opened as an unsharded store.

    Parameters
    ----------
    is_used : whether the store has executed commands
    commit : number of the store's last commit

    Raises
    ------
    InvalidArgumentError : the directory's record, or its use so far, does not allow this; nothing
        has changed.
    """
    noted = read(files)
    if noted is None or given is None:
        if noted is not None:
            raise InvalidArgumentError(
                f"{files.root} is {noted.name}: open it with --shard-map, the file of the "
                f"cluster's map, and --shard {noted.shard}, or give another directory"
            )
        if given is not None:
            if is_used:
                raise InvalidArgumentError(
                    f"{files.root} is a store outside of any cluster, which has executed "
                    f"commands, and cannot become {given.name}: give a new directory, and export "
                    "and import its tables"
                )
            write(files, given)
        return given
    if (noted.shard, noted.shard_map.cluster) != (given.shard, given.shard_map.cluster):
        raise InvalidArgumentError(
            f"{files.root} is {noted.name}, and not {given.name}: give the directory of that shard"
        )
    seen, found = noted.shard_map, given.shard_map
    if found == seen:
        return noted
    if not noted.partitions and not given.partitions:  # the shard has no rows, so any map is right
        write(files, given)
        return given
    if found.version < seen.version:
        raise InvalidArgumentError(
            f"{noted.name} has had version {seen.version} of the map: expected that or a higher "
            f"one, found {found.version}; take the map that the other shards have, or that of "
            f"{files.path(PATH)}"
        )
    if found.version == seen.version:
        raise InvalidArgumentError(
            f"{noted.name} has another map of version {seen.version}, and one of them is wrong; "
            f"take the map that the other shards have, or that of {files.path(PATH)}"
        )
    place = noted.with_map(found, commit)
    write(files, place)
    return place
