"""The map of a cluster: which shard has which rows, as a value.

Each row belongs to a partition, determined by its table's seed and its key alone (contract.md, rule
12). The map assigns each partition to one of the cluster's shards. The shards are servers and know
the map; a client asks any shard for it. When partitions move, the map gets the next version.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from embstore.errors import InvalidArgumentError

PARTITIONS = 1024
"""The number of partitions of every table."""
SHARDS_MAX = PARTITIONS


@dataclass(frozen=True)
class ShardMap:
    """The map of a cluster.

    Raises
    ------
    InvalidArgumentError : on construction, if a value does not match its description.
    """

    cluster: str
    """The id of the cluster, made with it and never changed."""
    version: int
    """Version, >= 1. The newer of two maps of one cluster has the larger version."""
    shards: tuple[str, ...]
    """The gRPC address of each shard, "host:port". The index of an address is the shard's
    number."""
    owners: tuple[int, ...]
    """The number of the shard that owns each partition, shape (PARTITIONS,)."""

    def __post_init__(self) -> None:
        def refuse(what: str, found: object) -> InvalidArgumentError:
            return InvalidArgumentError(f"shard map: expected {what}, found {found!r}")

        if not isinstance(self.cluster, str) or not self.cluster:
            raise refuse("the cluster's name", self.cluster)
        if type(self.version) is not int or self.version < 1:
            raise refuse("a version >= 1", self.version)
        if not 1 <= len(self.shards) <= SHARDS_MAX:
            raise refuse(f"1 to {SHARDS_MAX} shards", len(self.shards))
        if not all(isinstance(address, str) for address in self.shards):
            raise refuse("the shards' addresses", self.shards)
        if len(self.owners) != PARTITIONS:
            raise refuse(f"an owner of each of {PARTITIONS} partitions", len(self.owners))
        for owner in self.owners:
            if type(owner) is not int or not 0 <= owner < len(self.shards):
                raise refuse(f"owners in [0, {len(self.shards)})", owner)

    @classmethod
    def even(cls, cluster: str, shards: "tuple[str, ...] | list[str]") -> "ShardMap":
        """Return the first map of a cluster, with partitions distributed evenly over all shards."""
        given = tuple(shards)
        return cls(cluster, 1, given, tuple(p % max(len(given), 1) for p in range(PARTITIONS)))

    # The next maps

    def joined_by(self, shards: "tuple[str, ...] | list[str]") -> "ShardMap":
        """Return the next map, with additional shards that own no partition yet."""
        return replace(self, version=self.version + 1, shards=(*self.shards, *shards))

    def evened(self, count: int) -> "ShardMap":
        """Return the next map, in which the first `count` shards own equal numbers of partitions,
        or numbers that differ by one, and the other shards own none. As few partitions as possible
        move."""
        if not 1 <= count <= len(self.shards):
            raise InvalidArgumentError(
                f"shard map: expected 1 to {len(self.shards)} shards to have partitions, found "
                f"{count}"
            )
        has = [self.owners.count(shard) for shard in range(len(self.shards))]
        least, more = divmod(PARTITIONS, count)
        fullest = sorted(range(count), key=lambda shard: -has[shard])[:more]
        is_to_have = [
            least + (shard in fullest) if shard < count else 0 for shard in range(len(has))
        ]
        wanting = [n for n in range(count) for _ in range(is_to_have[n] - has[n])]
        owners, left = (
            list(self.owners),
            [max(h - t, 0) for h, t in zip(has, is_to_have, strict=True)],
        )
        for partition in reversed(range(PARTITIONS)):
            owner = owners[partition]
            if left[owner]:
                left[owner] -= 1
                owners[partition] = wanting.pop()
        return replace(self, version=self.version + 1, owners=tuple(owners))

    def left_by(self, count: int) -> "ShardMap":
        """Return the next map, without the last `count` shards, which must own no partition.

        Raises
        ------
        InvalidArgumentError : one of these shards owns a partition.
        """
        return replace(
            self, version=self.version + 1, shards=self.shards[: len(self.shards) - count]
        )

    def to_json(self) -> str:
        """Return the map as JSON, for a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ShardMap":
        """Return the map from the JSON that `to_json` returned.

        Raises
        ------
        InvalidArgumentError : the text is not the JSON of a map.
        """
        try:
            given: Any = json.loads(text)
            return cls(
                given["cluster"], given["version"], tuple(given["shards"]), tuple(given["owners"])
            )
        except (ValueError, TypeError, KeyError) as exc:
            raise InvalidArgumentError(f"expected the JSON of a shard map: {exc}") from None
