"""The router: an executor over the executors of a cluster's shards, by one shard map.

A router never changes its map. `following` makes a new router for a new map, and both routers use
the same `Shared` state. So a command is split, sent and joined by one map, even if another thread
receives a newer map meanwhile.
"""

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from embstore import commands as c
from embstore.arrays import Keys, check_on_host, outside
from embstore.checks import checked
from embstore.commands import Command, Effect, Executor, PartOf, Progress, Retry, Trait
from embstore.commands.joins import Join
from embstore.config import Limits
from embstore.errors import (
    InvalidArgumentError,
    MovedError,
    OutcomeUnknownError,
    PermissionDeniedError,
    StoreClosedError,
    WritesPausedError,
)
from embstore.results import ServerInfo, TableDescription
from embstore.sharding import ShardMap
from embstore_client.device_calls import are_on_device
from embstore_client.known_tables import KnownTables
from embstore_client.shards import (
    checkpoints,
    digests,
    finishing,
    frequencies,
    halves,
    rows,
    sessions,
    steps,
    whole,
)
from embstore_client.shards.command_ids import CommandIds
from embstore_client.shards.places import Places
from embstore_client.shards.split import Owners, Split
from embstore_client.shards.write_pauses import TIMEOUT_S, check_newest, retry_while_paused

R = TypeVar("R")

_THREADS_MAX = 1 << 20
"""No bound: threads are started as needed, since calls of ranks wait for one another."""

_LOOK_S, _LOOK_MAX_S = 1.0, 16.0
"""Seconds without an answer after which the router checks whether a shard has left the cluster.
Each further wait is twice as long, up to `_LOOK_MAX_S`."""

HANDLERS: dict[type[Command[Any]], Any] = (
    rows.HANDLERS
    | sessions.HANDLERS
    | steps.HANDLERS
    | finishing.HANDLERS
    | whole.HANDLERS
    | checkpoints.HANDLERS
    | digests.HANDLERS
    | frequencies.HANDLERS
)
"""The function handler(router, command, call) for each command whose class does not declare how
answers are joined."""


@dataclass(frozen=True)
class Call:
    """How a command is to be executed; see `embstore.commands.Executor`."""

    out: Any = None
    timeout_s: float | None = None
    progress: Progress | None = None


class Router:
    """Executes commands on all shards of a cluster. Any thread may use it."""

    is_embedded = False

    def __init__(
        self,
        executors: Sequence[Executor],
        shard_map: ShardMap,
        *,
        timeout_s: float = TIMEOUT_S,
        shared: "Shared | None" = None,
    ) -> None:
        """Route to `executors`, in the order of the map's shards; `close` closes them.

        `timeout_s` is how many seconds a shard may refuse writes, for calls without a timeout of
        their own. `shared` is the state of the previous router, which had another map.
        """
        assert len(executors) == len(shard_map.shards), "one executor a shard"
        self.shards = tuple(executors)
        self.shard_map = shard_map
        self.timeout_s = timeout_s
        self.owners = Owners(shard_map)
        self.tables = KnownTables(self.execute)
        self.shared = shared or Shared()
        self.places = self.shared.places
        self.rounds_rows = executors[0].rounds_rows
        self.connected_by: dict[str, Any] | None = None
        """The arguments of `connect`, except the token, with which another process can connect."""
        self.successor_of: Callable[[int], tuple[Executor, int] | None] = lambda shard: None
        """Returns the executor of a shard by the newest map, and the version of that map, if the
        map has another address for the shard, and no partition has moved."""
        self._limits: Limits | None = None

    def check_device(self, name: str | None = None) -> None:
        """Refuse rows on a device if there are several shards. If there is one shard, call its
        `check_device`."""
        if len(self.shards) > 1:
            raise InvalidArgumentError(
                f"expected rows of steps on the host, where the rows of {len(self.shards)} shards "
                "are joined, found a request for them in a device's memory"
            )
        self.shards[0].check_device(name)

    def execute(
        self,
        command: Command[R],
        *,
        out: Any = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        part_of: PartOf | None = None,
    ) -> R:
        """Execute a command; see `embstore.commands.Executor`.

        Raises MovedError if there is a newer map; in that case nothing has changed.
        """
        command = checked(command)
        call = Call(out, timeout_s, progress)
        if len(self.shards) == 1 and not isinstance(command, c.GetServerInfo):
            return self._at(0, command, call)
        member = "" if Trait.JOINS in command.traits else getattr(command, "member", "")
        if member and are_on_device(out):
            self.check_device()
        with sessions.leaving(self, member):
            if Trait.LEAVES in command.traits:
                self.places.closed(member)
            elif member:
                self.places.check_map(member, self.shard_map.version)
            if command.join is not None:
                return self.joined(command, command.join, call)
            return cast(R, HANDLERS[type(command)](self, command, call))

    def joined(self, command: Command[R], join: Join, call: "Call") -> R:
        """Have every shard execute a command, and join their answers."""
        is_write = command.effect is Effect.WRITES
        if is_write:  # the name may belong to another table afterwards
            self.tables.forget(getattr(command, "table", ""))
        with self.writing() if is_write else nullcontext():
            send = self.agreed if is_write else self.each
            answer: R = join(list(send(self._same(command), call).values()))
        if isinstance(answer, TableDescription):
            self.tables.note(answer)
        return answer

    def prefetch(self, command: c.LookupStep) -> c.Prefetched | None:
        """Ask each shard for its rows of a step. Return None if prefetching would gain nothing."""
        if len(self.shards) == 1:
            return self.shards[0].prefetch(command)
        with sessions.leaving(self, command.member):
            self.places.check_map(command.member, self.shard_map.version)
            return steps.prefetch(self, checked(command))

    def warm_up(self) -> None:
        """Compile every kernel that commands need, if shards are in this process."""
        for shard in self.shards:
            shard.warm_up()

    def close(self) -> None:
        """Close every shard's executor. Later commands raise the error of a closed executor."""
        self.shared.close()
        for shard in self.shards:
            shard.close()

    # Concurrent calls

    def first(
        self, command: Command[R], call: Call | None = None, *, timeout_s: float | None = None
    ) -> R:
        """Return the first shard's answer to a command that all shards answer in the same way."""
        return self._at(0, command, call or Call(timeout_s=timeout_s))

    def _at(
        self,
        shard: int,
        command: Command[R],
        call: Call,
        left: Container[int] = (),
        *,
        command_id: int = 0,
        is_check: bool = False,
    ) -> R:
        """Return one shard's answer; None if the shard is only to check the command, and would
        execute it. Send nothing to the successor of a shard in `left`, which nobody waits for."""
        part_of = None
        if Trait.OF_ANY_MAP not in command.traits:
            part_of = PartOf(self.shard_map.version, command_id, is_check)

        def send(executor: Executor, part_of: PartOf | None) -> R:
            return executor.execute(command, part_of=part_of, **vars(call))

        with suppress(WritesPausedError) if is_check else nullcontext():
            try:
                once = partial(send, self.shards[shard], part_of)
                if is_check:
                    return once()
                check = partial(self.check_newest, {0, shard})
                return retry_while_paused(once, check, call.timeout_s or self.timeout_s)
            except (MovedError, PermissionDeniedError):  # the shard has executed nothing
                successor = None if part_of is None else self.successor_of(shard)
                if successor is None or shard in left:
                    raise
                executor, version = successor
                return send(executor, PartOf(version, command_id, is_check))
        return cast(R, None)

    def infos(self, call: "Call | None" = None) -> list[ServerInfo]:
        """Return the facts of every shard.

        Raises MovedError as soon as one shard has a newer map: shards that left may never answer.
        """
        futures = self._asked(call or Call())
        for future in as_completed(futures):
            if future.exception() is None:
                check_newest(future.result(), self.shard_map)
        found = [future.result() for future in futures]
        for shard, info in zip(self.shards, found, strict=True):
            self.shared.last_epochs[shard] = info.context.epoch
        return found

    def newest_map(self, timeout_s: float | None = None) -> ShardMap:
        """Return a map that is newer than this router's map, from the first shard that has one. If
        no shard has one, return this router's map."""
        for future in as_completed(self._asked(Call(timeout_s=timeout_s))):
            if future.exception() is None:
                found = future.result().shard_map
                if found is not None and found.version > self.shard_map.version:
                    return found
        return self.shard_map

    def _asked(self, call: "Call") -> "list[Future[ServerInfo]]":
        """Ask every shard for its facts, and return the futures of the answers."""
        ask = c.GetServerInfo()
        works = {n: partial(self._at, n, ask, call) for n in range(len(self.shards))}
        return list(self.shared.begin(works).values())

    def check_newest(self, shards: Iterable[int]) -> None:
        """Raise MovedError if one of these shards has a newer map than this router."""
        for shard in shards:
            found = self.shards[shard].execute(c.GetServerInfo())
            check_newest(found, self.shard_map)

    def agreed(self, commands: Mapping[int, Command[R]], call: Call | None = None) -> dict[int, R]:
        """Send each shard its own command, after all shards have checked theirs, so that a command
        which one shard refuses changes nothing on the others (`halves`)."""
        if len(commands) > 1:
            self.each(commands, replace(call or Call(), progress=None), is_check=True)
        return self.each(commands, call)

    def each(
        self,
        commands: Mapping[int, Command[R]],
        call: Call | None = None,
        *,
        is_check: bool = False,
    ) -> dict[int, R]:
        """Send each shard its own command, wait for all answers, and return them by shard. Shards
        that no longer have what the command removes are left out.

        With `is_check`, the shards only check their commands, and the answers are None.

        Raises
        ------
        EmbstoreError : the error of `halves.raise_first`.
        MovedError : a shard has left the cluster, and no longer answers.
        """
        if not commands:
            return {}
        call, first = call or Call(), next(iter(commands.values()))
        done = _Sums(len(commands), call.progress)
        left: dict[int, MovedError | OutcomeUnknownError] = {}
        is_tracked = len(commands) > 1 and not is_check and _needs_id(first)
        command_id = self.shared.command_ids.begin() if is_tracked else 0

        def execute(place: int, shard: int, command: Any) -> Any:
            progress = None if call.progress is None else done.of(place)
            part = Call(None, call.timeout_s, progress)
            return self._at(shard, command, part, left, command_id=command_id, is_check=is_check)

        works = {
            shard: partial(execute, place, shard, command)
            for place, (shard, command) in enumerate(commands.items())
        }
        futures = self.shared.begin(works)
        try:
            self._wait(futures, left, adds=Trait.ADDS in first.traits)
        except BaseException:  # an interrupt: the next command must not overtake this one
            wait(futures.values())
            raise
        errors = {shard: left.get(shard) or future.exception() for shard, future in futures.items()}
        halves.raise_first(first, errors, is_check=is_check)
        self.shared.command_ids.end(command_id)
        return {s: future.result() for s, future in futures.items() if errors[s] is None}

    def _wait(
        self,
        futures: "Mapping[int, Future[Any]]",
        left: dict[int, MovedError | OutcomeUnknownError],
        *,
        adds: bool,
    ) -> None:
        """Wait until all shards have answered. Do not wait for an address that has left the map:
        put an error into `left` instead."""
        out, pause_s = set(futures.values()), _LOOK_S
        while out := wait(out, pause_s).not_done:
            newest = self.newest_map(pause_s)
            for shard, future in futures.items():
                if future in out and self.shard_map.shards[shard] not in newest.shards:
                    left[shard] = halves.of_an_address_that_left(
                        shard, self.shard_map, newest, adds=adds
                    )
                    out.discard(future)
            pause_s = min(2 * pause_s, _LOOK_MAX_S)

    def all(
        self, command: Command[R], call: Call | None = None, *, timeout_s: float | None = None
    ) -> list[R]:
        """Send one command to every shard, and return all answers."""
        return list(self.each(self._same(command), call or Call(timeout_s=timeout_s)).values())

    def _same(self, command: Command[R]) -> dict[int, Command[R]]:
        """Return one command as the command of every shard."""
        return dict.fromkeys(range(len(self.shards)), command)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make commands of other threads of this router wait until the block ends, so that every
        shard gets the commands in the same order."""
        with self.shared.writing:
            yield

    # Tables

    @property
    def limits(self) -> Limits:
        """The limits of the cluster, which are the limits of its first shard."""
        if self._limits is None:
            self._limits = self.first(c.GetServerInfo()).limits
        return self._limits

    def split(self, part: Any) -> Split:
        """Return which keys of a part of a command each shard owns.

        Raises
        ------
        InvalidArgumentError : a key is out of range; keys are not on the host.
        """
        check_on_host(part.keys, f"table {part.table!r}: ")
        return self.split_keys(part.table, part.table_id, part.keys)

    def split_keys(self, table: str, table_id: int | None, keys: Keys) -> Split:
        """Return which keys of a table each shard owns; see `split`."""
        described = self.tables.find(table, table_id)
        if outside(keys, described.config.rows, table) is not None:
            described = self.tables.look_again(table, table_id)  # the table may have grown
            if (error := outside(keys, described.config.rows, table)) is not None:
                raise error
        config = described.config
        return self.owners.split(config.seed, keys, config.key_space)


def _needs_id(command: Command[Any]) -> bool:
    """Return whether a barrier notices only by an id that a command is half executed: it writes,
    and finishes no step, whose number a barrier knows."""
    return command.effect is Effect.WRITES and command.retry is not Retry.STEP


class Shared:
    """The state that routers with different maps of one cluster share. Any thread may use it."""

    def __init__(self) -> None:
        self.places = Places()
        self.command_ids = CommandIds()
        self.scans: dict[str, bool] = {}
        """For each open scan, whether its keys are sparse. This is kept here because the scan's
        table may be dropped."""
        self.writing = threading.RLock()
        """Guards commands that must reach every shard in one order."""
        self.epochs = 0
        """Correction of the cluster's epoch: the epochs of shards that left, minus those of shards
        that joined. The correction is added to the sum of the shards' epochs."""
        self.last_epochs: dict[Executor, int] = {}
        """The last known epoch of each shard: a shard that has left no longer sends it."""
        self._is_closed = False
        self._submitting = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS_MAX, "embstore-shard")

    def begin(self, works: Mapping[int, Callable[[], Any]]) -> "dict[int, Future[Any]]":
        """Run one function per shard, on threads, and return the futures.

        Raises StoreClosedError if this object is closed; in that case no function runs.
        """
        with self._submitting:
            if self._is_closed:
                raise StoreClosedError("the connection is closed; connect again")
            return {shard: self._threads.submit(work) for shard, work in works.items()}

    def close(self) -> None:
        """Begin no further work."""
        with self._submitting:
            self._is_closed = True
        self._threads.shutdown(wait=False)


class _Sums:
    """The progress of all shards together: the sums of the work done and of all work."""

    def __init__(self, count: int, progress: Progress | None) -> None:
        self._done = [(0, 0)] * count
        self._progress = progress
        self._lock = threading.Lock()

    def of(self, place: int) -> Progress:
        """Return the progress function of one shard."""

        def tell(done: int, of: int) -> None:
            with self._lock:
                self._done[place] = done, of
                sums = [sum(part) for part in zip(*self._done, strict=True)]
            assert self._progress is not None
            self._progress(sums[0], sums[1])

        return tell
