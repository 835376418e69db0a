"""A store that is one of several: a standby of a leader, or a shard of a cluster."""

from embstore import commands as c
from embstore.commands import Executor
from embstore.results import Boundary
from embstore.sharding import ShardMap


class StoreShards:
    """Verbs of standbys and shards, which a `Store` has."""

    executor: Executor

    def promote(self) -> None:
        """Make the standby that this connection reaches the leader; a leader stays one.

        Raises
        ------
        PermissionDeniedError : it was a leader, and has been replaced.
        StoreClosedError : it has not the first commit of its leader yet.
        """
        self.executor.execute(c.Promote())

    def set_shard_map(self, shard_map: ShardMap, boundary: Boundary | None = None) -> None:
        """Give a shard the next map of its cluster; it is durable when this returns.

        `boundary` is where a shard takes up that has no partition yet.

        Raises
        ------
        InvalidArgumentError : the store is no shard; the map is another cluster's, is not newer,
            gives the shard another number, or has other owners or more shards while writes are not
            paused.
        CapacityError, StorageError : it could not be written; the shard has the map before.
        """
        self.executor.execute(c.SetShardMap(shard_map, boundary))

    def pause_writes(
        self, by: str, until: Boundary | None = None, *, lease_ms: int = 0
    ) -> Boundary:
        """Have a shard apply no command that writes from now on, until it is released or has the
        next map, and return where it stands. It is durable when this returns.

        Clients of the cluster send what is refused again, until their timeouts.

        Parameters
        ----------
        by : the name of who pauses them, 1 to 255 printable characters; it may do so twice
        until : a boundary that other shards have come to: what is before it is applied still
        lease_ms : milliseconds after which writes are taken again, as after a restart; 0: when they
            are resumed

        Raises
        ------
        InvalidArgumentError : the store is no shard.
        WritesPausedError : somebody else has paused them.
        CapacityError, StorageError : it could not be written; nothing is paused.
        """
        return self.executor.execute(c.PauseWrites(by, until, lease_ms))

    def resume_writes(self, by: str = "") -> None:
        """Have a shard take writes again, if they are paused `by` this name; "": by whoever."""
        self.executor.execute(c.ResumeWrites(by))
