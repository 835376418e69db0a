"""The map of a cluster: which shard has which rows, as a value.

A row belongs to a partition, by its table's seed and its key alone (contract.md, rule 12). The map
gives each partition to one of the cluster's shards. Shards are servers, and know the map; a client
asks any of them for it. When partitions move, the map gets the next version.
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
    InvalidArgumentError : on construction, if a value is not as its description says.
    """

    cluster: str
    """The cluster's own name, made with it and never changed."""
    version: int
    """>= 1. The later of two maps of one cluster has the larger one."""
    shards: tuple[str, ...]
    """The gRPC address of each shard, "host:port"; a shard's index in here is its number."""
    owners: tuple[int, ...]
    """(PARTITIONS,): the number of the shard that has each partition."""

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
        """Return the first map of a cluster: every shard has about as many partitions."""
        given = tuple(shards)
        return cls(cluster, 1, given, tuple(p % max(len(given), 1) for p in range(PARTITIONS)))

    # The next maps

    def joined_by(self, shards: "tuple[str, ...] | list[str]") -> "ShardMap":
        """Return the next map, with more shards, that have no partition yet."""
        return replace(self, version=self.version + 1, shards=(*self.shards, *shards))

    def evened(self, count: int) -> "ShardMap":
        """Return the next map, in which the first `count` shards have about as many partitions, and
        the others none. It moves as few partitions as it can."""
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
        """Return the next map, without the last `count` shards, which have no partition.

        Raises
        ------
        InvalidArgumentError : one of them has some.
        """
        return replace(
            self, version=self.version + 1, shards=self.shards[: len(self.shards) - count]
        )

    def to_json(self) -> str:
        """Return the map as the text of a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ShardMap":
        """Return the map of such a text.

        Raises
        ------
        InvalidArgumentError : it is no such text.
        """
        try:
            given: Any = json.loads(text)
            return cls(
                given["cluster"], given["version"], tuple(given["shards"]), tuple(given["owners"])
            )
        except (ValueError, TypeError, KeyError) as exc:
            raise InvalidArgumentError(f"expected the JSON of a shard map: {exc}") from None
