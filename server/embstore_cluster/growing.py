"""Grows or shrinks a cluster while clients read and write.

New shards are started first, each on an empty directory. Then the coordinator makes them join, and
partitions move (`changing`). Shards that leave give away all their partitions first; their servers
are ended last. The shards that join or leave are always those with the highest numbers.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import ray

from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore_cluster import clusters
from embstore_cluster.changing import Progress
from embstore_cluster.clusters import NAME, READY_TIMEOUT_S, STOP_TIMEOUT_S, Cluster
from embstore_cluster.placing import addresses, nodes_for
from embstore_cluster.plan import Plan

_ASK_S = 0.5
_CALL_TIMEOUT_S = 60.0


def grow(
    *,
    shards: int,
    data: str | os.PathLike[str],
    name: str = NAME,
    address: str | None = None,
    timeout_s: float = READY_TIMEOUT_S,
    report: Callable[[Progress], Any] = lambda progress: None,
    **connecting: Any,
) -> Cluster:
    """Add shards, and return when they have their share of the partitions.

    Parameters
    ----------
    shards : number of shards that the cluster will have
    timeout_s : timeout for new shards to become ready; moving partitions has no timeout
    report : function that is called with the progress about every half second
    connecting : arguments of `embstore.connect`, for the coordinator

    Raises
    ------
    InvalidArgumentError : the cluster already has more shards; or a change is in progress.
    StoreClosedError : no cluster of that name runs; or a new shard did not become ready.
    EmbstoreError : partitions were not moved, for the reason in the message; the call can be
        repeated.
    """
    plan, coordinator = clusters.running(Path(data).absolute(), name, address)
    _check_logged(plan)
    count = len(plan.shard_map.shards)
    if shards < count:
        raise InvalidArgumentError(
            f"expected at least the {count} shards that there are: to have fewer, call embstore "
            "cluster drain"
        )
    if shards > count:
        joining = _joining(plan, shards, coordinator)
        clusters.started(joining, range(count, shards), timeout_s)
    return _changed(shards, coordinator, connecting, report)


def drain(
    *,
    shards: int,
    data: str | os.PathLike[str],
    name: str = NAME,
    address: str | None = None,
    timeout_s: float = STOP_TIMEOUT_S,
    report: Callable[[Progress], Any] = lambda progress: None,
    **connecting: Any,
) -> Cluster:
    """Remove shards: the last shards give their partitions to the other shards, and end. The
    directories of the removed shards stay, but contain no rows of the cluster any more.

    Parameters
    ----------
    shards : number of shards that the cluster will have
    timeout_s : timeout for leaving shards to end

    The other parameters and the errors are as in `grow`.
    """
    plan, coordinator = clusters.running(Path(data).absolute(), name, address)
    _check_logged(plan)
    count = len(plan.shard_map.shards)
    if not 1 <= shards <= count:
        raise InvalidArgumentError(f"expected 1 to {count} shards to stay, found {shards}")
    left = _changed(shards, coordinator, connecting, report)
    clusters.ended(plan, range(shards, count), timeout_s)
    return left


def _check_logged(plan: Plan) -> None:
    """Refuse to move rows if one shard might lose commands that the other shards keep."""
    if plan.durability != "commands":
        raise InvalidArgumentError(
            f"cluster {plan.name!r} has durability {plan.durability!r}: partitions can only be "
            'moved with a command log; stop the cluster, and start it with durability "commands"'
        )


def _joining(plan: Plan, shards: int, coordinator: Any) -> Plan:
    """Return the plan that includes the shards that are about to join: a recorded plan, or a new
    one."""
    more = shards - len(plan.shard_map.shards)
    nodes = nodes_for(more, plan.resources)
    listens, admins = addresses(nodes)
    shard_map = replace(plan.shard_map.joined_by(listens), version=plan.shard_map.version)
    asked = replace(
        plan,
        shard_map=shard_map,
        admins=(*plan.admins, *admins),
        nodes=(*plan.nodes, *nodes),
    )
    found: Plan = ray.get(coordinator.joining.remote(asked), timeout=_CALL_TIMEOUT_S)
    if len(found.nodes) != shards:
        raise InvalidArgumentError(
            f"a growth to {len(found.nodes)} shards was begun: expected that number, found {shards}"
        )
    return found


def _changed(
    shards: int, coordinator: Any, connecting: dict[str, Any], report: Callable[[Progress], Any]
) -> Cluster:
    """Make the coordinator change the cluster, and wait for it."""
    begin = coordinator.change.remote(shards, connecting)
    try:
        ray.get(begin, timeout=_CALL_TIMEOUT_S)
    except ray.exceptions.RayTaskError as exc:
        raise InvalidArgumentError(str(exc.cause)) from None
    is_running = True
    while is_running:
        sleep(_ASK_S)
        is_running, progress = ray.get(coordinator.progress.remote(), timeout=_CALL_TIMEOUT_S)
        report(progress)
    plan: Plan = ray.get(coordinator.plan.remote(), timeout=_CALL_TIMEOUT_S)
    if progress.error or len(plan.shard_map.shards) != shards:
        raise EmbstoreError(
            f"the cluster has {len(plan.shard_map.shards)} shards, and was to have {shards}: "
            f"{progress.error or 'the coordinator was restarted'}; give the command again"
        )
    return Cluster(plan.name, plan.data, plan.shard_map, plan.admins)
