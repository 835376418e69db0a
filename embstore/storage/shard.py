"""Which shard of which cluster a directory is: the file SHARD.

Rows that are in the wrong place look like rows that were never written, and what is missing is made
by the initializer: nothing would fail, and the model would be wrong. So a directory that was opened
as a shard once says which one it is, and with which map, and is never served as anything else: not
as a shard of another number or cluster, not as a store of its own, not with a map that is older
than one that it has had. Nor does a store that has had commands of its own become a shard: its rows
are not those of a shard's partitions.

**Held writes.** A map that gives partitions to other shards is taken by all shards or by none, at
one boundary: whoever moves them has every shard hold its writes first (`Hold`), and then decides.
So a hold outlives the process, like what a database has prepared: a shard that is started again
takes no writes until it is told what was decided, by a release or by a newer map. Only a shard
whose writes are held takes a map that moves partitions: its rows have been copied.

SHARD is replaced whole, and durable before anybody is told: a shard that has acknowledged a map
still has it after a crash. A store that is no shard has no such file.
"""

import json
from dataclasses import asdict, dataclass, replace

from embstore.errors import CorruptTableError, InvalidArgumentError, WritesHeldError
from embstore.sharding import ShardMap
from embstore.storage.files import Files

PATH = "SHARD"


@dataclass(frozen=True)
class ShardPlace:
    """A shard's number, and the map in which it has it.

    Raises
    ------
    InvalidArgumentError : on construction, if the map has no shard of that number.
    """

    shard: int
    shard_map: ShardMap
    holder: str = ""
    """Who holds its writes since it has had this map; "": nobody."""

    def __post_init__(self) -> None:
        count = len(self.shard_map.shards)
        if type(self.shard) is not int or not 0 <= self.shard < count:
            raise InvalidArgumentError(
                f"expected a shard from 0 to {count - 1}, as cluster {self.shard_map.cluster!r} "
                f"has, found {self.shard!r}"
            )

    @property
    def name(self) -> str:
        """In words, for messages."""
        return f"shard {self.shard} of cluster {self.shard_map.cluster!r}"

    @property
    def partitions(self) -> int:
        """How many partitions of each table the shard has."""
        return self.shard_map.owners.count(self.shard)

    @property
    def held(self) -> str:
        """Why it takes no writes; "": it does."""
        if not self.holder:
            return ""
        return f"{self.name} takes no writes now: {self.holder} holds them; send the call again"

    def held_by(self, holder: str) -> "ShardPlace":
        """Return the place with its writes held.

        Raises
        ------
        WritesHeldError : somebody else holds them.
        """
        if self.holder not in ("", holder):
            raise WritesHeldError(self.held)
        return replace(self, holder=holder)

    def released_by(self, holder: str) -> "ShardPlace":
        """Return the place without the hold of a holder; of "" without any."""
        return replace(self, holder="") if holder in ("", self.holder) else self

    def with_map(self, shard_map: ShardMap) -> "ShardPlace":
        """Return the place with the next map, and nobody who holds writes.

        Raises
        ------
        InvalidArgumentError : it is another cluster's, is not newer, gives this shard's address
            another number, or a partition another shard while writes are not held: its rows would
            be taken for unwritten.
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
        place = ShardPlace(self.shard, shard_map)
        if shard_map.owners != own.owners and not self.holder:
            raise InvalidArgumentError(
                f"{self.name}: expected a map that leaves every partition where it is, as its "
                "writes are not held; only addresses may change. Partitions are moved by "
                "embstore cluster grow and drain"
            )
        address = own.shards[self.shard]
        if address in shard_map.shards and shard_map.shards.index(address) != self.shard:
            raise InvalidArgumentError(
                f"{self.name} is at {address}: expected a map that gives it the same number, "
                f"found {shard_map.shards.index(address)}"
            )
        return place


def read(files: Files) -> ShardPlace | None:
    """Return which shard a directory is; None: it is none."""
    if not files.exists(PATH):
        return None
    try:
        fields = json.loads(files.read_all(PATH))
        shard_map = ShardMap.from_json(json.dumps(fields["shard_map"]))
        return ShardPlace(fields["shard"], shard_map, str(fields.get("holder", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise CorruptTableError(f"{PATH}: unreadable") from exc


def write(files: Files, place: ShardPlace) -> None:
    """Note which shard a directory is; returns once it is on the disk."""
    files.replace(PATH, json.dumps(asdict(place)).encode() + b"\n")


def take(files: Files, given: ShardPlace | None, *, is_used: bool) -> ShardPlace | None:
    """Return the place of a directory that is opened as a shard, or, with None, as none; note it.

    Parameters
    ----------
    is_used : the store has had commands

    Raises
    ------
    InvalidArgumentError : the directory is something else; nothing has changed.
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
                    f"{files.root} is a store of its own, which has had commands, and cannot "
                    f"become {given.name}: give a new directory, and export and import its tables"
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
    if found.version < seen.version:
        raise InvalidArgumentError(
            f"{noted.name} has had version {seen.version} of the map: expected that or a higher "
            f"one, found {found.version}; take the map that the other shards have, or that of "
            f"{files.path(PATH)}"
        )
    if found.version == seen.version:
        raise InvalidArgumentError(
            f"{noted.name} has another map of version {seen.version}: two maps of one version are "
            "a mistake; take the map that the other shards have, or that of "
            f"{files.path(PATH)}"
        )
    place = noted.with_map(found)
    write(files, place)
    return place
