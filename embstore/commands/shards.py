"""A store as a shard of a cluster."""

from embstore import results
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Trait
from embstore.sharding import ShardMap


class SetShardMap(Command[None], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP, join=joins.nothing):
    """Give a shard the next map of its cluster; later commands are split by that map, and it takes
    writes again. It is durable when it is acknowledged. Where the map has other owners or shards,
    sessions end, as with a restart. `barrier` is for a shard that has no partition yet: it starts
    there, with the tables and places of the other shards."""

    shard_map: ShardMap
    barrier: results.Barrier | None = None


class PauseWrites(Command[results.Barrier], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP):
    """Have a shard refuse commands that write, and return its position. A step that waits for other
    ranks is not applied either, and is sent again. The pause lasts until `ResumeWrites`, or the
    next map, also over a restart. `by` names the client: another name is refused. `until` is a
    barrier that other shards have reached: the shard still applies the commands up to there that
    it has not yet received; the answer is its position now. With `lease_ms` the pause ends by
    itself when that time is over, and with the process."""

    by: str
    until: results.Barrier | None = None
    lease_ms: int = 0


class ResumeWrites(Command[None], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP, join=joins.nothing):
    """Have a shard take writes again, if they are paused `by` this name; "": by any name. It is no
    error if they are not paused."""

    by: str = ""
