"""Starts a cluster, reports its status, and stops it.

The directory of a cluster contains `coordinator.json`, from which the same cluster is started
again. The map, addresses and directories are taken from that file, not from the arguments. Flags
and resources are taken from the arguments.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray

from embstore.checks.arguments import one_of
from embstore.choices import LEVELS, Durability
from embstore.errors import InvalidArgumentError, StoreClosedError
from embstore.sharding import ShardMap
from embstore.storage.files import Files
from embstore.storage.shard import read
from embstore_cluster import local
from embstore_cluster.coordinator import Coordinator, check_directory, kept_plan
from embstore_cluster.looking import NOTHING, look, skew
from embstore_cluster.placing import addresses, at_node, nodes_for
from embstore_cluster.plan import NAMESPACE, Plan, Resources, coordinator_of
from embstore_cluster.shard import Shard

NAME = "embstore"
CACHE_BYTES = 1 << 30
READY_TIMEOUT_S = 600.0
"""The timeout for shards to become ready. It is long, because a shard may have to execute commands
again, and to compile kernels."""
STOP_TIMEOUT_S = 120.0
_STATES_TIMEOUT_S = 20.0
"""Seconds that the actors of all shards together have to answer. The actor of a lost node does not
answer."""
_CALL_TIMEOUT_S = 60.0
_CONCURRENCY = 8
"""The number of concurrent calls to a shard's actor; several are needed, because some calls
wait."""


LASTING: dict[str, Any] = {
    "namespace": NAMESPACE,
    "lifetime": "detached",
    "max_restarts": -1,
    "max_task_retries": -1,
}
"""Options of a cluster's actors. With these options Ray restarts an actor that has ended, and
actors outlive the job that started them."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    name: str
    data: str
    shard_map: ShardMap
    admins: tuple[str, ...]
    """The address of each shard's REST server."""

    @property
    def address(self) -> str:
        """The address for clients: that of the first shard. The address of any other shard works
        too."""
        return self.shard_map.shards[0]


def start(
    *,
    shards: int | None = None,
    data: str | os.PathLike[str],
    name: str = NAME,
    cache_bytes: int = CACHE_BYTES,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    durability: Durability = "commands",
    flags: Sequence[str] = (),
    address: str | None = None,
    timeout_s: float = READY_TIMEOUT_S,
) -> Cluster:
    """Start a cluster on Ray, and return when every shard is ready. If an earlier start was
    interrupted, finish it, with the arguments of that start.

    Parameters
    ----------
    shards : number of shards. None: as many as the cluster in `data` has
    data : directory of the coordinator's file and, on each node, of the node's shards
    name : name of the cluster's actors; clusters on the same Ray need different names
    cache_bytes : bytes of the cache of each shard
    num_cpus, num_gpus : processors and GPUs that Ray reserves for each shard
    durability : durability of every shard. If it is weaker than "commands", a shard that dies may
        lose commands, and the cluster then goes back to its last checkpoint (`rollback`)
    flags : further flags of `embstore serve`, for every shard
    address : address of Ray. None: the address of the job, of RAY_ADDRESS or of this machine's Ray;
        if there is no Ray, one is started

    Raises
    ------
    InvalidArgumentError : a cluster of that name runs; the cluster in `data` has another number of
        shards; or `data` contains files that belong to no cluster.
    CapacityError : Ray has too few resources for the shards.
    StoreClosedError : a shard did not become ready. The message contains its error; no actor is
        left.
    """
    one_of(durability, "durability", LEVELS)
    path = Path(data).absolute()
    kept = kept_plan(str(path))
    if kept is None:
        check_directory(str(path))
    known = kept.shard_map if kept is not None else _restored_map(path)
    count = _count(path, shards, known)
    resources = Resources(num_cpus, num_gpus, 0 if num_gpus else cache_bytes)
    cpus = max(os.cpu_count() or 1, -int(-count * num_cpus // 1))
    local.attach(path, address=address, cpus=cpus)
    if (coordinator := _actor(coordinator_of(name))) is not None:
        return _finished(coordinator, path, timeout_s)
    plan = replace(
        kept or _new(name, str(path), count, resources, known),
        name=name,
        data=str(path),
        resources=resources,
        flags=("--cache-bytes", str(cache_bytes), *flags),
        life=uuid4().hex,
        durability=durability,
    )
    _begin(plan, path, timeout_s)
    return Cluster(name, str(path), plan.shard_map, plan.admins)


def _finished(coordinator: Any, path: Path, timeout_s: float) -> Cluster:
    """Finish an interrupted start: start the actors of shards that have none, and wait for all
    shards.

    Raises
    ------
    InvalidArgumentError : the cluster runs, or belongs to another directory.
    StoreClosedError : a shard did not become ready.
    """
    plan: Plan = ray.get(coordinator.plan.remote(), timeout=timeout_s)
    if plan.data != str(path) or all(state["ready"] for state in _states(plan)):
        raise InvalidArgumentError(
            f"a cluster {plan.name!r} runs: see embstore cluster status, or give another --name"
        )
    started(plan, range(len(plan.nodes)), timeout_s)
    return Cluster(plan.name, plan.data, plan.shard_map, plan.admins)


def _count(path: Path, shards: int | None, known: ShardMap | None) -> int:
    """Return the number of shards for a start of a new or an existing cluster."""
    count = shards if shards is not None else len(known.shards) if known else 0
    if count < 1:
        raise InvalidArgumentError(
            f"expected the number of shards for a new cluster in {path}, found none: give --shards"
        )
    if known is not None and count != len(known.shards):
        raise InvalidArgumentError(
            f"{path} has a cluster of {len(known.shards)} shards: expected as many, found {count}"
        )
    return count


def _restored_map(path: Path) -> ShardMap | None:
    """Return the map of shards whose directories exist although there is no coordinator's file, for
    example after the restore of a backup. None: the first shard has no record of a map."""
    place = read(Files(path / "shard-0"))
    return None if place is None else place.shard_map


def _new(name: str, data: str, count: int, resources: Resources, known: ShardMap | None) -> Plan:
    """Return the plan of a cluster at new addresses, with existing or new shards."""
    nodes = nodes_for(count, resources)
    listens, admins = addresses(nodes)
    if known is None:
        shard_map = ShardMap.even(f"{name}-{uuid4().hex[:12]}", listens)
    else:
        shard_map = replace(known, version=known.version + 1, shards=tuple(listens))
    return Plan(name, data, shard_map, tuple(admins), tuple(nodes))


def _begin(plan: Plan, path: Path, timeout_s: float) -> None:
    """Start all actors of a plan. If an error is raised, no actor is left."""
    try:
        here = at_node(ray.util.get_node_ip_address())
        coordinator = (
            ray.remote(Coordinator)
            .options(name=plan.coordinator, num_cpus=0, resources=here, **LASTING)
            .remote(plan)
        )
        ray.get(coordinator.plan.remote(), timeout=timeout_s)
        started(plan, range(len(plan.nodes)), timeout_s)
    except BaseException:
        _end(plan, STOP_TIMEOUT_S)
        local.end(path)
        raise


def started(plan: Plan, numbers: Iterable[int], timeout_s: float) -> None:
    """Start the actors of some shards, and return when each shard is ready.

    Raises
    ------
    StoreClosedError : a shard did not become ready.
    """
    calls = {}
    for shard in numbers:
        actor = _actor(plan.actor(shard)) or (
            ray.remote(Shard)
            .options(
                name=plan.actor(shard),
                max_concurrency=_CONCURRENCY,
                resources=at_node(plan.nodes[shard]),
                **plan.resources.options(),
                **LASTING,
            )
            .remote(plan.name, shard)
        )
        calls[shard] = actor.wait_ready.remote(timeout_s)
    for shard, state in zip(calls, ray.get(list(calls.values()), timeout=timeout_s), strict=True):
        if not state["ready"]:
            raise StoreClosedError(
                f"shard {shard} of cluster {plan.name!r} did not get ready"
                f"{': ' if state['error'] else f' within {timeout_s:g} s'}{state['error']}"
            )


def status(
    *,
    data: str | os.PathLike[str],
    name: str = NAME,
    address: str | None = None,
    **connecting: Any,
) -> dict[str, Any]:
    """Return the partitions, address and statistics of each shard of a running cluster.

    `connecting` has the arguments of `embstore.connect` for the connections to the shards, over
    which the shards are asked for their statistics (`looking`).

    Raises
    ------
    StoreClosedError : no cluster of that name runs.
    """
    plan, coordinator = running(Path(data).absolute(), name, address)
    starts = ray.get(coordinator.starts.remote(), timeout=_CALL_TIMEOUT_S)
    owners, listens = plan.shard_map.owners, plan.shard_map.shards
    states = _states(plan)
    asked = {n: listens[n] for n, state in enumerate(states) if state["ready"]}
    seen = look(asked, connecting)
    found = [
        {
            "shard": shard,
            "address": listen,
            "admin": plan.admins[shard],
            "node": plan.nodes[shard],
            "partitions": owners.count(shard),
            "restarts": max(starts[shard] - 1, 0),
            **states[shard],
            **seen.get(shard, NOTHING),
        }
        for shard, listen in enumerate(listens)
    ]
    is_changing, progress = ray.get(coordinator.progress.remote(), timeout=_CALL_TIMEOUT_S)
    return {
        "name": plan.name,
        "change": {"is_running": is_changing, **asdict(progress)},
        "cluster": plan.shard_map.cluster,
        "map_version": plan.shard_map.version,
        "data": plan.data,
        "durability": plan.durability,
        "went_back": {"times": plan.back.number, "label": plan.back.label or None},
        "skew": skew(found),
        "shards": found,
    }


def _states(plan: Plan) -> list[dict[str, Any]]:
    """Return the states that the shards' actors report; all actors are asked concurrently."""
    actors = [_actor(plan.actor(shard)) for shard in range(len(plan.nodes))]
    calls = [None if actor is None else actor.state.remote() for actor in actors]
    asked = [call for call in calls if call is not None]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=_STATES_TIMEOUT_S)
    return [_state(call) for call in calls]


def _state(call: Any) -> dict[str, Any]:
    away = {"ready": False, "pid": None, "error": "its actor cannot be reached"}
    if call is None:
        return away
    try:
        state: dict[str, Any] = ray.get(call, timeout=0)
    except ray.exceptions.RayActorError:
        return away
    except ray.exceptions.GetTimeoutError:
        return away | {"error": "its actor does not answer: it is starting, or waits for its node"}
    return state


def stop(
    *,
    data: str | os.PathLike[str],
    name: str = NAME,
    address: str | None = None,
    timeout_s: float = STOP_TIMEOUT_S,
) -> None:
    """Stop a cluster: every shard commits and ends. The cluster's directories stay, for the next
    `start`. If `start` has started Ray, Ray is ended, too.

    Raises
    ------
    StoreClosedError : no cluster of that name runs; or a shard did not end properly. In the latter
        case the other shards have ended, and the commands of this shard are in its log.
    """
    path = Path(data).absolute()
    plan, coordinator = running(path, name, address)
    joining = ray.get(coordinator.joining.remote(None), timeout=_CALL_TIMEOUT_S)
    problems = _end(joining or plan, timeout_s)
    local.end(path)
    if problems:
        raise StoreClosedError("\n".join(problems))


def _end(plan: Plan, timeout_s: float) -> list[str]:
    """End all actors, those of shards first; return descriptions of problems."""
    problems = ended(plan, range(len(plan.nodes)), timeout_s)
    coordinator = _actor(plan.coordinator)
    if coordinator is not None:
        ray.kill(coordinator, no_restart=True)
    return problems


def ended(plan: Plan, numbers: Iterable[int], timeout_s: float) -> list[str]:
    """End the actors of some shards; return descriptions of problems."""
    actors = {shard: _actor(plan.actor(shard)) for shard in numbers}
    there = {shard: actor for shard, actor in actors.items() if actor is not None}
    calls = {shard: actor.stop.remote(timeout_s) for shard, actor in there.items()}
    problems = []
    for shard, call in calls.items():
        try:
            status = ray.get(call, timeout=timeout_s)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as exc:
            status = str(exc)
        if status != 0:
            problems.append(f"shard {shard} of cluster {plan.name!r} ended with {status}")
        ray.kill(there[shard], no_restart=True)
    return problems


def running(data: Path, name: str, address: str | None) -> tuple[Plan, Any]:
    """Return the plan of a running cluster, and its coordinator."""
    local.attach(data, address=address, cpus=None)
    coordinator = _actor(coordinator_of(name))
    if coordinator is None:
        raise StoreClosedError(f"no cluster {name!r} runs on this Ray: embstore cluster start")
    plan: Plan = ray.get(coordinator.plan.remote(), timeout=_CALL_TIMEOUT_S)
    return plan, coordinator


def _actor(name: str) -> Any:
    """Return the actor of this name, or None."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None
