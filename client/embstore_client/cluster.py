"""Makes a store of all shards from a connection to one shard: its map has all addresses.

Before a row is read, every shard is asked for its identity. A wrong shard, or a shard with a
different map, would return initial values for rows that it does not store, and nothing would show
the mistake. Therefore each shard has to confirm the cluster, the shard number and the version of
the map. If one shard cannot be reached, an error that names the shard is raised, because a store
with only some of the rows is of no use.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import cast

from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.handles.store import Store
from embstore.results import ServerInfo
from embstore.sharding import ShardMap
from embstore_client.executor import RemoteExecutor
from embstore_client.shards.following import Following
from embstore_client.shards.router import Router

_THREADS_MAX = 32
"""The maximum number of connections that are made concurrently."""


def whole(store: Store, connect_to: Callable[[str], Store]) -> Store:
    """Return the store of all shards, given a connection to one shard. Closing the returned store
    closes all connections.

    Parameters
    ----------
    connect_to : function that connects to another shard, by its address

    Raises
    ------
    EmbstoreError : a shard was not reached, or differs from the map. In that case `store` is
        closed, too.
    """
    info = _info(store)
    shard_map, own = info.shard_map, info.shard
    assert shard_map is not None and own is not None
    if store.executor.rounds_rows:
        store.close()
        raise InvalidArgumentError(
            'expected wire_dtype="float32" for a cluster, found a narrower one: rows rounded by '
            "several shards would differ from those that one server rounds"
        )
    stores: dict[int, Store] = {own: store}
    others = {n: a for n, a in enumerate(shard_map.shards) if n != own}
    try:
        _check_leads(info, shard_map)
        with ThreadPoolExecutor(min(len(others), _THREADS_MAX) or 1) as threads:
            calls = {n: threads.submit(connect_to, address) for n, address in others.items()}
        stores |= {n: call.result() for n, call in calls.items() if call.exception() is None}
        for number, call in calls.items():
            _check_reached(call, number, shard_map)
        for number in others:
            _check_is(_info(stores[number]), number, shard_map, own)
        own_executor = cast(RemoteExecutor, store.executor)
        executors = [stores[n].executor for n in range(len(shard_map.shards))]
        router = Router(executors, shard_map, timeout_s=own_executor.transport.timeout_s)
        router.connected_by = own_executor.connected_by
        return Store(Following(router, lambda address: connect_to(address).executor))
    except BaseException:
        for one in stores.values():
            with suppress(EmbstoreError):
                one.close()
        raise


def _info(store: Store) -> ServerInfo:
    info = cast(RemoteExecutor, store.executor).info
    assert info is not None, "a store asks for it when it is made"
    return info


def _check_reached(call: "Future[Store]", number: int, shard_map: ShardMap) -> None:
    error = call.exception()
    if isinstance(error, EmbstoreError):
        address = shard_map.shards[number]
        raise type(error)(
            f"shard {number} of cluster {shard_map.cluster!r}, at {address}: {error}"
        ) from error
    if error is not None:
        raise error


def _check_is(info: ServerInfo, number: int, shard_map: ShardMap, asked: int) -> None:
    """Refuse a server that is not the shard that the map names."""
    address, found = shard_map.shards[number], info.shard_map
    named = f"shard {number} of cluster {shard_map.cluster!r}"
    expected = f"expected {named} at {address}, as version {shard_map.version} of the map says"
    if found is None:
        raise InvalidArgumentError(
            f"{expected}, found a store outside of any cluster: serve that shard's directory "
            f"there, with --shard-map and --shard {number}"
        )
    if (found.cluster, info.shard) != (shard_map.cluster, number):
        raise InvalidArgumentError(
            f"{expected}, found shard {info.shard} of cluster {found.cluster!r}: serve the right "
            "directory there, or give all shards a map that names the right address"
        )
    if found != shard_map:
        raise InvalidArgumentError(
            f"{named}, at {address}, has version {found.version} of the map, and shard {asked} has "
            f"version {shard_map.version}{'; they differ' * (found.version == shard_map.version)}: "
            "if the map is just being replaced, connect again; else give all shards the newest, by "
            "embstore set-shard-map"
        )
    _check_leads(info, shard_map)


def _check_leads(info: ServerInfo, shard_map: ShardMap) -> None:
    """Refuse a standby of a shard: its rows may be older than the rows of the other shards, and it
    would refuse its part of an update that the other shards apply."""
    if info.read_only:
        assert info.shard is not None
        raise InvalidArgumentError(
            f"expected shard {info.shard} of cluster {shard_map.cluster!r}, found a standby of it, "
            "or a leader that was replaced: connect to the shard's leader; the map has "
            f"{shard_map.shards[info.shard]}. If another server was promoted, give all shards a "
            "map with its address, by embstore set-shard-map"
        )
