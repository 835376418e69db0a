"""`embstore cluster start`, `status`, `grow`, `drain` and `stop`."""

import os
from pathlib import Path
from typing import Annotated, Any

from embstore.choices import LEVELS, Durability
from embstore_server.cli import output, parameters
from embstore_server.cli.extras import needing
from embstore_server.cli.flags import flag
from embstore_server.cli.output import AsJson
from embstore_server.setup.parsing import bytes_text

_Data = Annotated[Path, flag("Directory of the cluster.", "DIR", file_okay=False)]
_Name = Annotated[str, flag("By which it is found; clusters on one Ray have different ones.")]
_Ray = Annotated[
    str | None, flag("Address of Ray. Default: that of RAY_ADDRESS or of this machine.", "ADDRESS")
]
_DATA, _NAME = Path("embstore-cluster"), "embstore"


@needing("ray")
def start(
    *,
    shards: Annotated[
        int | None, flag("Number of shards. Default: as many as it has.", "COUNT", min=1)
    ] = None,
    data: _Data = _DATA,
    name: _Name = _NAME,
    cache_bytes: Annotated[str, flag("Cache of each shard.", "BYTES")] = "1GiB",
    cpus: Annotated[float, flag("CPUs that Ray keeps for each shard.", "COUNT", min=0.0)] = 1.0,
    gpus: Annotated[float, flag("GPUs that Ray keeps for each shard.", "COUNT", min=0.0)] = 0.0,
    durability: Annotated[
        Durability,
        flag("What survives the death of a shard: see the guide, Scale out.", "|".join(LEVELS)),
    ] = "commands",
    config: Annotated[
        Path | None,
        flag("TOML file of settings of every shard; on every node.", "FILE", dir_okay=False),
    ] = None,
    ray: _Ray = None,
    as_json: AsJson = False,
) -> None:
    """Start a cluster of shards on Ray, and Ray itself if none is running.

    The shards listen on loopback, unless Ray has several nodes. A cluster that was started in DIR
    before is started again, with the same addresses and rows.
    """
    with output.progress("shards"):
        from embstore_cluster import clusters

        budget = parameters.byte_count("--cache-bytes", cache_bytes)
        assert budget is not None
        cluster = clusters.start(
            shards=shards,
            data=data,
            name=name,
            cache_bytes=budget,
            num_cpus=cpus,
            num_gpus=gpus,
            durability=durability,
            flags=() if config is None else ("--config", str(config.absolute())),
            address=ray,
        )
    document = {
        "name": name,
        "address": cluster.address,
        "shards": list(cluster.shard_map.shards),
        "data": cluster.data,
    }
    text = f"{len(cluster.shard_map.shards)} shards are ready; connect to {cluster.address}"
    output.show(document, text, as_json=as_json)


@needing("ray")
def status(
    *,
    data: _Data = _DATA,
    name: _Name = _NAME,
    ray: _Ray = None,
    tls_ca: Annotated[Path | None, flag("As for other commands.", "FILE")] = None,
    token_file: Annotated[Path | None, flag("As for other commands.", "FILE")] = None,
    insecure: Annotated[bool, flag("As for other commands.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show each shard's partitions, rows, state and number of restarts."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from embstore_cluster import clusters

    token = None if token_file is None else token_file.read_text().strip()
    connecting: dict[str, Any] = {"tls_ca": tls_ca, "token": token, "insecure": insecure}
    found = clusters.status(data=data, name=name, address=ray, **connecting)
    output.show(found, lambda: _table(found), as_json=as_json)


def _table(found: dict[str, Any]) -> Any:
    columns = ("shard", "address", "ready", "partitions", "tables", "rows in cache", "on disk")
    rates = ("commands/s", "keys/s")
    rows = [
        (
            str(one["shard"]),
            one["address"],
            "yes" if one["ready"] else f"no: {one['error']}",
            f"{one['partitions']:,}",
            *("?" if one[n] is None else f"{one[n]:,}" for n in ("tables", "rows_resident")),
            "?" if one["bytes"] is None else bytes_text(one["bytes"]),
            *(
                "?" if one[n] is None else f"{one[n]:,.0f}"
                for n in ("commands_per_s", "keys_per_s")
            ),
            str(one["restarts"]),
        )
        for one in found["shards"]
    ]
    table: Any = output.rows((*columns, *rates, "restarts"), rows)
    change = found["change"]
    if change["is_running"]:
        table.caption = f"changing: {change['what']}, {change['rows']:,} rows copied"
    elif change["error"]:
        table.caption = f"the last change has failed: {change['error']}"
    return table


@needing("ray")
def grow(
    *,
    shards: Annotated[int, flag("How many it is to have.", "COUNT", min=1)],
    data: _Data = _DATA,
    name: _Name = _NAME,
    ray: _Ray = None,
    tls_ca: Annotated[Path | None, flag("As for other commands.", "FILE")] = None,
    token_file: Annotated[Path | None, flag("As for other commands.", "FILE")] = None,
    insecure: Annotated[bool, flag("As for other commands.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add shards, which take their share of partitions while clients continue.

    A failure half way leaves the partitions where they are; give the command again.
    """
    _change("grow", shards, data, name, ray, tls_ca, token_file, insecure, as_json)


@needing("ray")
def drain(
    *,
    shards: Annotated[int, flag("How many are to stay.", "COUNT", min=1)],
    data: _Data = _DATA,
    name: _Name = _NAME,
    ray: _Ray = None,
    tls_ca: Annotated[Path | None, flag("As for other commands.", "FILE")] = None,
    token_file: Annotated[Path | None, flag("As for other commands.", "FILE")] = None,
    insecure: Annotated[bool, flag("As for other commands.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove shards: the last ones give their partitions to the other shards, and end.

    A failure half way leaves the partitions where they are; give the command again.
    """
    _change("drain", shards, data, name, ray, tls_ca, token_file, insecure, as_json)


def _change(
    verb: str,
    shards: int,
    data: Path,
    name: str,
    ray: str | None,
    tls_ca: Path | None,
    token_file: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with output.progress_of("rows copied") as progress:
        from embstore_cluster import growing

        work = growing.grow if verb == "grow" else growing.drain
        token = None if token_file is None else token_file.read_text().strip()
        cluster = work(
            shards=shards,
            data=data,
            name=name,
            address=ray,
            report=lambda found: progress(found.rows, 0),
            tls_ca=None if tls_ca is None else str(tls_ca.absolute()),
            token=token,
            insecure=insecure,
        )
    count = len(cluster.shard_map.shards)
    document = {
        "name": name,
        "shards": list(cluster.shard_map.shards),
        "map_version": cluster.shard_map.version,
    }
    output.show(document, f"the cluster has {count} shards", as_json=as_json)


@needing("ray")
def stop(
    *, data: _Data = _DATA, name: _Name = _NAME, ray: _Ray = None, as_json: AsJson = False
) -> None:
    """Stop a cluster; every shard commits, and its rows stay in DIR."""
    with output.progress("shards"):
        from embstore_cluster import clusters

        clusters.stop(data=data, name=name, address=ray)
    output.show({"name": name, "stopped": True}, "every shard has committed", as_json=as_json)
