"""A store that is one of several: a standby of a leader, or a shard of a cluster."""

from embstore import commands as c
from embstore.commands import Executor
from embstore.results import Barrier
from embstore.sharding import ShardMap


class StoreShards:
    """Verbs of standbys and shards, which a `Store` has."""

    executor: Executor

    def promote(self) -> None:
        """Make the standby that this connection reaches the leader; a leader stays one.

        Raises
        ------
        PermissionDeniedError : it was a leader, and has been replaced.
        StoreClosedError : it does not have the first commit of its leader yet.
        """
        self.executor.execute(c.Promote())

    def set_shard_map(self, shard_map: ShardMap, barrier: Barrier | None = None) -> None:
        """Give a shard the next map of its cluster; it is durable when this returns.

        `barrier` is the position at which a shard without a partition takes over.

        Raises
        ------
        InvalidArgumentError : the store is no shard; the map is another cluster's, is not newer,
            InvalidArgumentError : the store is no shard; the map belongs to another cluster, is not
                newer, gives the shard another number, or has other owners or more shards while
                writes are not paused.
        CapacityError, StorageError : it could not be written; the shard keeps its previous map.
        """
        self.executor.execute(c.SetShardMap(shard_map, barrier))

    def pause_writes(self, by: str, until: Barrier | None = None, *, lease_ms: int = 0) -> Barrier:
        """Have a shard refuse all commands that write, until its writes are resumed or it has the
        next map, and return its position. The pause is durable when this returns.

        Clients of the cluster repeat refused commands until their timeouts.

        Parameters
        ----------
        by : the name of the client that pauses them, 1 to 255 printable characters; it may do so
            twice
        until : a barrier that other shards have reached: commands before it are still applied
        lease_ms : milliseconds after which writes are taken again, as after a restart; 0: when they
            are resumed

        Raises
        ------
        InvalidArgumentError : the store is no shard.
        WritesPausedError : another name has paused them.
        CapacityError, StorageError : it could not be written; nothing is paused.
        """
        return self.executor.execute(c.PauseWrites(by, until, lease_ms))

    def resume_writes(self, by: str = "") -> None:
        """Have a shard take writes again, if they are paused `by` this name; "": by any name."""
        self.executor.execute(c.ResumeWrites(by))
