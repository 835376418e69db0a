"""A cluster of shards on Ray: their placement, and their restart after a crash.

    import embstore_cluster
    cluster = embstore_cluster.start(shards=2, data="/data/ads")
    with embstore.connect(cluster.address) as store:
        ...
    embstore_cluster.stop(data="/data/ads")

Or on the command line: `embstore cluster start|status|grow|drain|stop`.

    plan          a cluster's description as a value: the map, the shards' nodes and flags
    coordinator   the actor that owns the plan, and keeps it in a file
    shard         the actor of a shard, which keeps its server running
    process       the server's process: `embstore serve`, which ends with its actor
    rollback      the return of all shards to one checkpoint after a shard has lost commands
    local         Ray on this machine, started if none is running
    placing       the nodes and ports of shards
    looking       the statistics that shards report
    clusters      start, status, stop
    growing       grow, drain
    changing      the coordinator's part of growing and draining

**Recovery.** A shard's actor restarts its server if the server ends by itself. If an actor ends,
its server ends with it, and Ray restarts the actor. The coordinator is an actor, too; when it is
restarted, it reads its file again. Addresses are in the map, and do not change. Acknowledged writes
are in the shards' command logs, or, with a weaker durability, in a checkpoint of the cluster. If
one shard has lost commands that the other shards have, its rows are older than the rows of the
other shards. Therefore all shards then restore the same checkpoint.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embstore_cluster.clusters import Cluster, start, status, stop
    from embstore_cluster.growing import drain, grow

__all__ = ["Cluster", "drain", "grow", "start", "status", "stop"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from embstore_cluster import clusters, growing

        return getattr(growing if name in ("drain", "grow") else clusters, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
