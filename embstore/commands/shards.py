"""Commands to a store that is a shard of a cluster."""

from embstore import results
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Trait
from embstore.sharding import ShardMap


class SetShardMap(Command[None], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP, join=joins.nothing):
    """Set the next map of the cluster on a shard. The shard then accepts writes again.

    Later commands are split by that map. The map is durable when the command is acknowledged. If
    the new map has other owners of partitions, or other shards, sessions end, as after a restart.
    `barrier` is for a shard that has no partition yet: the shard starts at the position `barrier`,
    with the tables and resume positions of the other shards.
    """

    shard_map: ShardMap
    barrier: results.Barrier | None = None


class PauseWrites(Command[results.Barrier], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP):
    """Make a shard refuse commands that write, and return its position in the order of commands.

    A step that waits for other ranks is not applied either; its ranks send it again. The pause
    survives a restart, and lasts until `ResumeWrites` or the next map. `by` names the client that
    pauses; during the pause, a `PauseWrites` of another client is refused. `until` is a barrier
    that other shards have reached: the shard still applies the commands that it lacks up to that
    position, and the answer is the shard's position at the time of the answer. With `lease_ms` the
    pause ends by itself, after that time or when the process ends. The shard refuses its parts of
    the cluster's commands whose ids are in `given_up` from then on.
    """

    by: str
    until: results.Barrier | None = None
    lease_ms: int = 0
    given_up: tuple[int, ...] = ()


class ResumeWrites(Command[None], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP, join=joins.nothing):
    """Make a shard accept writes again, if the client `by` has paused them.

    An empty name stands for any client. Otherwise, if another client has paused the writes, they
    stay paused. It is no error if writes are not paused. `complete` are the labels of the cluster's
    checkpoints, if the client has just made one: the shard pushes out the oldest ones, unless the
    lease of the client's pause has run out.
    """

    by: str = ""
    complete: tuple[str, ...] = ()
