"""A store that is one of several: a standby of a leader, or a shard of a cluster."""

from embstore import commands as c
from embstore.commands import Executor
from embstore.results import Barrier
from embstore.sharding import ShardMap


class StoreShards:
    """Methods of a `Store` for standbys and shards."""

    executor: Executor

    def promote(self) -> None:
        """Promote the standby at the other end of this connection to a leader; a leader stays a
        leader.

        Raises
        ------
        PermissionDeniedError : the store was a leader, and has been replaced.
        StoreClosedError : the standby does not have the first commit of its leader yet.
        """
        self.executor.execute(c.Promote())

    def set_shard_map(self, shard_map: ShardMap, barrier: Barrier | None = None) -> None:
        """Give a shard the next map of its cluster; the map is durable when this returns.

        `barrier` is the position between two commands at which a shard without partitions starts.

        Raises
        ------
        InvalidArgumentError : the store is no shard; the map belongs to another cluster, is not
            newer, gives the shard another number, or has other owners or more shards while writes
            are not paused.
        CapacityError, StorageError : the map could not be written; the shard keeps its previous
            map.
        """
        self.executor.execute(c.SetShardMap(shard_map, barrier))

    def pause_writes(self, by: str, until: Barrier | None = None, *, lease_ms: int = 0) -> Barrier:
        """Make a shard refuse all commands that write, and return the shard's position.

        The pause ends when writes are resumed, or when the shard gets the next map. Without a lease
        the pause is durable when this call returns; with a lease it also ends when the lease has
        run out, or with a restart. Clients of the cluster repeat refused commands until their
        timeouts.

        Parameters
        ----------
        by : name of the client that pauses writes, 1 to 255 printable characters; the client can
            repeat the call
        until : barrier (a position between two commands) that other shards have reached; the shard
            still applies the commands before this barrier
        lease_ms : duration of the lease in milliseconds; 0: the pause has no lease

        Raises
        ------
        InvalidArgumentError : the store is no shard.
        WritesPausedError : another client has paused writes.
        CapacityError, StorageError : the pause could not be written; nothing is paused.
        """
        return self.executor.execute(c.PauseWrites(by, until, lease_ms))

    def resume_writes(self, by: str = "") -> None:
        """Make a shard take writes again, if the client `by` paused them; "": any client."""
        self.executor.execute(c.ResumeWrites(by))
