"""The nodes of Ray on which the shards of a new cluster run, and their ports.

Nodes and ports are chosen once, and stored in the plan, because a shard's rows are on its node's
disk, and its address is in the map. Therefore a shard is tied to the IP of its node (Ray's resource
`node:IP`), and waits for the node if that is away. If Ray has only one node, this is the local
machine, and the shards listen on loopback.
"""

from typing import Any

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group

from embstore.errors import CapacityError
from embstore_cluster.local import free_ports
from embstore_cluster.plan import Resources

_WAIT_S = 30.0
_SHARE = 0.001
"""The amount of the resource `node:IP` that a shard reserves; each node has 1."""


def at_node(ip: str) -> dict[str, float]:
    """Return the resource that only the node with this IP has."""
    return {f"node:{ip}": _SHARE}


def nodes_for(shards: int, resources: Resources) -> list[str]:
    """Return the IP of a node for each shard; shards are spread over as many nodes as possible.

    Raises
    ------
    CapacityError : Ray has too few resources for all shards.
    """
    group = placement_group([resources.bundle()] * shards, strategy="SPREAD")
    try:
        if not group.wait(_WAIT_S):
            free = {n: c for n, c in ray.available_resources().items() if n in resources.bundle()}
            raise CapacityError(
                f"Ray has no room for {shards} shards of {resources.bundle()} each: free are "
                f"{free}; give it more nodes, or ask for less (--cpus, --gpus, --cache-bytes)"
            )
        ip_of = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        places: dict[int, Any] = placement_group_table(group)["bundles_to_node_id"]
        return [ip_of[places[n]] for n in range(shards)]
    finally:
        remove_placement_group(group)


def addresses(nodes: list[str]) -> tuple[list[str], list[str]]:
    """Return the gRPC address and the REST address of each shard, given the shards' nodes."""
    alive = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    counts = {ip: 2 * nodes.count(ip) for ip in nodes}
    if len(alive) == 1:
        hosts = dict.fromkeys(counts, "127.0.0.1")
        ports = {ip: free_ports("127.0.0.1", count) for ip, count in counts.items()}
    else:
        hosts = {ip: ip for ip in counts}
        remote = ray.remote(free_ports)
        ports = {
            ip: ray.get(remote.options(num_cpus=0, resources=at_node(ip)).remote(ip, count))
            for ip, count in counts.items()
        }
    found = [[f"{hosts[ip]}:{ports[ip].pop()}" for ip in nodes] for _ in range(2)]
    return found[0], found[1]
