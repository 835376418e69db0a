"""The plan of a cluster, as a value: the map, the node of each shard, and the arguments of its
server."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embstore.choices import Durability
from embstore.errors import CorruptTableError
from embstore.sharding import ShardMap

NAMESPACE = "embstore"
"""The namespace of Ray that contains the actors of all clusters."""


@dataclass(frozen=True)
class Resources:
    """The resources that Ray reserves for each shard."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory_bytes: int = 0
    """Bytes of memory for the cache, if the cache is in host memory."""

    def options(self) -> dict[str, Any]:
        """Return the resources as Ray's options of an actor."""
        found: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        return found | ({"memory": self.memory_bytes} if self.memory_bytes else {})

    def bundle(self) -> dict[str, float]:
        """Return the resources as a bundle of a placement group."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory_bytes)}
        return {name: count for name, count in wanted.items() if count}


@dataclass(frozen=True)
class RollbackPoint:
    """The checkpoint to which the shards of a cluster went back last (`rollback`)."""

    number: int = 0
    """The number of times that the cluster has gone back."""
    label: str = ""


@dataclass(frozen=True)
class Plan:
    """The plan of a cluster. Each tuple has an entry per shard, in the order of the shards'
    numbers."""

    name: str
    """The name by which the cluster's actors are found."""
    data: str
    """The absolute path, on every node, of the directory that contains the shards' directories."""
    shard_map: ShardMap
    admins: tuple[str, ...]
    """The address of each shard's REST server."""
    nodes: tuple[str, ...]
    """For each shard, the IP of the node that has the shard's directory, as Ray reports it."""
    resources: Resources = Resources()
    flags: tuple[str, ...] = ()
    """Further flags of `embstore serve`, for every shard."""
    life: str = ""
    """The id of one start of the cluster; each start has a new id."""
    durability: Durability = "commands"
    """Durability of every shard."""
    back: RollbackPoint = RollbackPoint()
    """The checkpoint to which the shards went back last."""

    @property
    def coordinator(self) -> str:
        """The name of the coordinator's actor."""
        return coordinator_of(self.name)

    def actor(self, shard: int) -> str:
        """Return the name of a shard's actor."""
        return f"{self.name}-shard-{shard}"

    def directory(self, shard: int) -> Path:
        """Return the directory of a shard's store."""
        return Path(self.data) / f"shard-{shard}"

    def words(self, shard: int, shard_map: Path) -> list[str]:
        """Return the arguments of `embstore` to serve a shard; `shard_map` is the map's file."""
        return [
            "serve",
            *self.flags,
            *("--data", str(self.directory(shard))),
            *("--listen", self.shard_map.shards[shard], "--admin", self.admins[shard]),
            *("--shard-map", str(shard_map), "--shard", str(shard)),
            *("--durability", self.durability, "--log-format", "json"),
        ]

    def to_json(self) -> str:
        """Return the plan as the text of a file."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, place: str) -> "Plan":
        """Return the plan from the text of a file; `place` is the file's name in error messages.

        Raises
        ------
        CorruptTableError : the text is not a plan.
        """
        try:
            given: Any = json.loads(text)
            given |= {name: tuple(given[name]) for name in ("admins", "nodes", "flags")}
            given["shard_map"] = ShardMap.from_json(json.dumps(given["shard_map"]))
            given["resources"] = Resources(**given["resources"])
            given["back"] = RollbackPoint(**given.get("back", {}))
            return cls(**given)
        except (ValueError, TypeError, KeyError) as exc:
            raise CorruptTableError(f"{place}: expected the plan of a cluster: {exc}") from None


def coordinator_of(name: str) -> str:
    """Return the name of the coordinator's actor of a cluster."""
    return f"{name}-coordinator"
