"""`embstore flush`, `resize-cache`, `set-policy`, `check-integrity`, `clear-counts`, `promote`,
`set-shard-map`: commands that change how a running store works, but no bit of its rows.
"""

from pathlib import Path
from typing import Annotated

import typer

from embstore.cache.policies import POLICIES
from embstore.errors import CorruptTableError
from embstore_server.cli import output, parameters
from embstore_server.cli.connection import LONG_TIMEOUT_S, Connect, on_server
from embstore_server.cli.flags import YES
from embstore_server.cli.output import Shown
from embstore_server.setup.parsing import bytes_text


@on_server(LONG_TIMEOUT_S, of_one=True)
def flush(
    connect: Connect,
    table: Annotated[str, typer.Argument(metavar="[TABLE]", help="Default: all.")] = "",
) -> Shown:
    """Write dirty rows to the log; they stay in the cache.

    A checkpoint makes them durable.
    """
    with connect() as store, output.progress("flush"):
        rows = store.table(table).flush() if table else store.flush()
    return {"table": table or None, "rows": rows}, f"{rows:,} rows were written to the log"


@on_server(of_one=True)
def resize_cache(
    connect: Connect,
    to: Annotated[str, typer.Argument(metavar="BYTES", help="As 4GiB, or 1073741824.")],
) -> Shown:
    """Change the size of the cache until the server is restarted."""
    cache_bytes = parameters.byte_count("BYTES", to)
    assert cache_bytes is not None
    with connect() as store, output.progress("resize"):
        store.resize_cache(cache_bytes)
    return {"cache_bytes": cache_bytes}, f"the cache has {bytes_text(cache_bytes)}"


@on_server(LONG_TIMEOUT_S, of_one=True)
def set_policy(
    connect: Connect,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help=f"{', '.join(POLICIES)}.")],
) -> Shown:
    """Evict rows from the cache by another policy until the server is restarted."""
    with connect() as store, output.progress("policy"):
        store.set_policy(policy)
    return {"policy": policy}, f"rows leave by {policy}"


@on_server(LONG_TIMEOUT_S, of_one=True)
def check_integrity(connect: Connect) -> Shown:
    """Check the invariants of cache and storage while the store is used.

    Status 1: an invariant is violated. This checks the server's memory; `embstore verify` reads the
    files of a store that no server has open.
    """
    from embstore.commands import CheckIntegrity

    with connect() as store, output.progress("check"):
        violation = store.executor.execute(CheckIntegrity())
    if violation:
        raise CorruptTableError(f"an invariant does not hold: {violation}")
    return {"violation": None}, "every invariant holds"


@on_server(of_one=True)
def clear_counts(connect: Connect, *, yes: Annotated[bool, YES] = False) -> Shown:
    """Start the counts of accesses to rows again from zero."""
    with connect() as store:
        if not yes:
            output.ask("Lose the counts of accesses?", "the counts", "cleared")
        store.clear_counts()
    return {"cleared": True}, "accesses are counted from nothing again"


@on_server(of_one=True)
def promote(connect: Connect, *, yes: Annotated[bool, YES] = False) -> Shown:
    """Make a standby the leader: it takes writes, and the old leader refuses them.

    --address is the address of the standby.
    """
    with connect() as store:
        if not yes:
            output.ask("Have its leader take no writes any more?", "the server", "promoted")
        store.promote()
        role = store.stats()["replication"]["role"]
    return {"role": role}, f"the server is the {role}"


@on_server(of_one=True)
def set_shard_map(
    connect: Connect,
    path: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The map, as JSON.")
    ],
) -> Shown:
    """Give one shard the next map of its cluster, from a file.

    The map assigns partitions of rows to shards. The cluster's coordinator writes it; do not write
    one by hand. --address is the address of the shard; each shard must get the same map.
    """
    from embstore.sharding import ShardMap

    shard_map = ShardMap.from_json(path.read_text(encoding="utf-8"))
    with connect() as store:
        store.set_shard_map(shard_map)
        shard = store.server_info().shard
    shown = {"shard": shard, "cluster": shard_map.cluster, "version": shard_map.version}
    return shown, f"shard {shard} has version {shard_map.version} of the map"
