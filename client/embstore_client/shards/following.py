"""A cluster by its newest map: when partitions have moved, commands are sent again by that map.

A shard that has a newer map refuses a command that was split by an older map, and every shard can
return the map. The client thus notices the change with its next command. It connects to the shards
that it does not know, splits the command by the new map, and sends the command once more. The
command is applied once: maps that move partitions change at a barrier, at which each command that
was sent has been applied by all shards or by no shard (`embstore_client.barrier`).

Sessions end when their map is replaced, as when a server restarts. A loop over a session then
continues in the same way as after a restart (`embstore_training.rank_session`), because it notices
a restart by the name of the server process. For a cluster, this name consists of the map's version
and the process names of all shards. The epoch of the cluster is the sum of the epochs of its
shards, corrected so that it does not change when a shard joins or leaves.

**A shard that was replaced by its standby** has another address in the next map, and its partitions
do not move. The server at the old address, if it runs, is a standby now, and refuses its part of a
command, which the other shards execute. That part is sent to the new address.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from embstore import commands as c
from embstore.commands import Command, Executor, PartOf, Progress
from embstore.errors import EmbstoreError, MovedError, OutcomeUnknownError
from embstore.results import ServerInfo
from embstore.sharding import ShardMap
from embstore_client.shards.router import Router

R = TypeVar("R")

_LOOK_S = 1.0
"""Seconds in which shards answer whether they have a newer map, after an error that may mean it."""
_MAPS_MAX = 100
"""The maximum number of newer maps that one command follows, far more than occur in practice."""


class Following:
    """Executes commands on all shards of a cluster, by its newest map. Any thread may use it."""

    is_embedded = False

    def __init__(self, router: Router, connect_to: Callable[[str], Executor]) -> None:
        """Begin with `router`; `connect_to` returns the executor of the shard at an address."""
        self.router = self._with_successors(router)
        """The router for the newest map that this client knows. A newer map replaces the router."""
        self.rounds_rows = router.rounds_rows
        self._connect_to = connect_to
        self._every = list(router.shards)
        self._looking = threading.Lock()
        self._is_closed = False

    @property
    def shards(self) -> tuple[Executor, ...]:
        """The executor of each shard."""
        return self.router.shards

    @property
    def shard_map(self) -> ShardMap:
        """The newest map that this client knows."""
        return self.router.shard_map

    @property
    def connected_by(self) -> dict[str, Any] | None:
        """The arguments of `connect`, except the token, with which another process can connect."""
        return self.router.connected_by

    def check_device(self, name: str | None = None) -> None:
        """Refuse rows on a device if there are several shards; see `Router.check_device`."""
        self.router.check_device(name)

    def execute(
        self,
        command: Command[R],
        *,
        out: Any = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        part_of: PartOf | None = None,
    ) -> R:
        """Execute a command; see `embstore.commands.Executor`."""
        for _ in range(_MAPS_MAX):
            router = self.router
            try:
                return router.execute(command, out=out, timeout_s=timeout_s, progress=progress)
            except MovedError as moved:
                self._follow(router, moved)
            except OutcomeUnknownError:  # perhaps because a standby has replaced a shard
                with suppress(EmbstoreError):
                    self._follow(router, MovedError("there is no newer map"), _LOOK_S)
                raise
        return self.router.execute(command, out=out, timeout_s=timeout_s, progress=progress)

    def prefetch(self, command: c.LookupStep) -> c.Prefetched | None:
        """Ask each shard for its rows of a step. Return None if prefetching would gain nothing."""
        return self.router.prefetch(command)

    def warm_up(self) -> None:
        """Compile every kernel that commands need, if shards are in this process."""
        self.router.warm_up()

    def close(self) -> None:
        """Close the executors of all shards, also of shards that have left."""
        with self._looking:
            self._is_closed = True
            self.router.close()
            for shard in self._every:
                shard.close()

    def _with_successors(self, router: Router) -> Router:
        router.successor_of = partial(self._successor, router)
        return router

    def _successor(self, router: Router, shard: int) -> tuple[Executor, int] | None:
        """Return `Router.successor_of` of a router."""
        with suppress(MovedError):
            self._follow(router, MovedError("there is no newer map"), _LOOK_S)
        newest, before = self.router.shard_map, router.shard_map
        is_split_the_same = newest.owners == before.owners
        if not is_split_the_same or newest.shards[shard] == before.shards[shard]:
            return None
        return self.router.shards[shard], newest.version

    def _follow(self, router: Router, moved: MovedError, timeout_s: float | None = None) -> None:
        """Use the newest map that a shard has; raise `moved` if no shard has a newer map. The
        shards have `timeout_s` seconds to answer."""
        with self._looking:
            if self.router is not router or self._is_closed:
                return  # another thread has replaced or closed the router already
            newest = router.newest_map(timeout_s)
            if newest.version <= router.shard_map.version:
                raise moved
            known = dict(zip(router.shard_map.shards, router.shards, strict=True))
            executors = [self._at(address, known) for address in newest.shards]
            shared, before = router.shared, router.shards
            left = [shared.last_epochs.get(one, 0) for one in before if one not in executors]
            came = [_info(one).context.epoch for one in executors if one not in before]
            shared.epochs += sum(left) - sum(came)
            after = Router(executors, newest, timeout_s=router.timeout_s, shared=shared)
            after.connected_by = router.connected_by
            self.router = self._with_successors(after)

    def _at(self, address: str, known: dict[str, Executor]) -> Executor:
        if address not in known:
            known[address] = self._connect_to(address)
            self._every.append(known[address])
        return known[address]


def _info(shard: Executor) -> ServerInfo:
    return shard.execute(c.GetServerInfo())
