"""A store as a shard of a cluster."""

from embstore import results
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Trait
from embstore.sharding import ShardMap


class SetShardMap(Command[None], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP, join=joins.nothing):
    """Give a shard the next map of its cluster; commands after it are by that map, and it takes
    writes again. It is durable when it is acknowledged. Where the map has other owners or shards,
    sessions end, as with a restart. `boundary` is for a shard that has no partition yet: it takes
    up there, with the tables and places of the others."""

    shard_map: ShardMap
    boundary: results.Boundary | None = None


class PauseWrites(Command[results.Boundary], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP):
    """Have a shard apply no command that writes from the answer on, which says where it stands. A
    step that waits for other ranks is not applied either, and is sent again. It lasts until
    `ResumeWrites`, or the next map; also over a restart. `by` says who: another one is
    refused. `until` is a boundary that others have come to: what the shard has still to hear of up
    to there is applied; the answer says where it stands now. With `lease_ms` the pause ends by
    itself when that is over, and with the process."""

    by: str
    until: results.Boundary | None = None
    lease_ms: int = 0


class ResumeWrites(Command[None], effect=Effect.TUNES, traits=Trait.OF_ANY_MAP, join=joins.nothing):
    """Have a shard take writes again, if they are paused `by` this name; "": by whoever. It is no
    error that nobody has."""

    by: str = ""
