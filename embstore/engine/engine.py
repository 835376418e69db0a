"""The engine: an executor whose tables are in this process.

The engine composes the packages below it: the tables with their cache and storage (`tables`),
look-ahead sessions (`lookahead`), and the uses of access frequencies (`hotness`). For each type of
command there is a handler, which calls these packages. Handlers acquire the engine, its only lock,
themselves (`Frame`), because some handlers first wait for something else, and some do not need the
engine. A command's **turn** is the time in which its handler has the engine.

`execute` waits until a command is done. A command of a look-ahead step may have to wait for other
ranks or for earlier steps. For such a command, `begin` returns a handle that a server polls, so
that no thread of the server waits.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakMethod

from embstore import commands as c
from embstore.arithmetic.denormals import kept
from embstore.cache.arena import HostCache
from embstore.checks import checked
from embstore.commands import Command, Effect, PartOf, Progress, Retry
from embstore.device.base import Device
from embstore.engine import admin, rows, scans, sharding
from embstore.engine.admin import context
from embstore.engine.backups import Backups
from embstore.engine.commits import OwnCommits
from embstore.engine.digests import Digests
from embstore.engine.recovery import recover
from embstore.engine.replication_role import ReplicationRole
from embstore.engine.scans import Scans
from embstore.engine.scrubbing import Scrubber
from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.hotness.frequencies import Frequencies
from embstore.hotness.pins import HotPins
from embstore.hotness.ranking import Ranking
from embstore.hotness.warming import Warming
from embstore.lookahead import sessions
from embstore.lookahead.handles import StepLookup, StepOutcome
from embstore.lookahead.sessions import Sessions
from embstore.options import StoreOptions
from embstore.results import RowsRead
from embstore.storage.command_records import remove_segments
from embstore.storage.file_errors import removed
from embstore.storage.shard import ShardPlace
from embstore.storage.storage import Storage
from embstore.tables.answers import ClusterCommands
from embstore.tables.callers import on_host
from embstore.tables.command_log import CommandLog
from embstore.tables.lent import Lent
from embstore.tables.logged import Codec
from embstore.tables.tables import Tables

R = TypeVar("R")


def _of_sessions(handler: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    return lambda engine, command, _: handler(engine.sessions, command)


HANDLERS: dict[type[Command[Any]], Callable[[Any, Any, Any], Any]] = {
    **admin.HANDLERS,
    **rows.HANDLERS,
    **sharding.HANDLERS,
    **scans.HANDLERS,
    **{kind: _of_sessions(handler) for kind, handler in sessions.HANDLERS.items()},
    # Access frequencies
    c.ExportProfile: lambda engine, command, progress: engine.ranking.export_profile(
        command.source, progress
    ),
    c.ImportProfile: lambda engine, command, _: engine.ranking.import_profile(
        command.profile, command.rename
    ),
    c.SetPolicy: lambda engine, command, _: engine.ranking.set_policy(command.policy),
    c.GetHotSet: lambda engine, command, _: engine.hot_pins.wanted,
    c.PinHotSet: lambda engine, command, _: engine.hot_pins.pin(command.hot_set),
    c.UnpinHotSet: lambda engine, command, _: engine.hot_pins.pin(None),
    c.WarmCache: lambda engine, command, progress: engine.warming.warm(command.share, progress),
}
"""The function handler(engine, command, into) of each command; `into` is the argument `out` or
`progress` of `execute`.

The handler of a command that may have to wait returns a handle.
"""


class Engine:
    """The executor of an embedded store. Any thread; commands are executed one at a time."""

    rounds_rows = False
    is_embedded = True

    def __init__(
        self,
        storage: Storage,
        device: Device,
        options: StoreOptions,
        cache_bytes: int,
        host_cache: HostCache,
        codec: Callable[[], Codec],
    ) -> None:
        self.tables = Tables(storage, device, options, cache_bytes, host_cache)
        self.storage = storage
        self.device = device
        self.device_facts = device.facts()
        """The device's facts as of the opening of the store, or of the last call for stats."""
        self.frequencies = Frequencies(
            storage.files,
            device,
            count_rate=options.count_rate,
            read_only=storage.read_only,
            looked_up=self.tables.splitting.note,
        )
        for table in self.tables.by_id.values():
            self.frequencies.load(table)
        self.frequencies.kept.forget_others(storage.catalogue.table_ids())
        self.sessions = Sessions(self.tables, self.frequencies.note)
        self.ranking = Ranking(self.tables, self.frequencies)
        self.hot_pins = HotPins(self.tables, self.frequencies.kept)
        self.warming = Warming(self.tables, self.frequencies.kept)
        self.commits = OwnCommits(self.tables, options)
        self.replication = ReplicationRole()
        self.shard: ShardPlace | None = None
        """The store's shard number and cluster map; the module `sharding` replaces them as one
        object. None: the store is no shard."""
        self.cluster_commands = ClusterCommands()
        self._is_abandoned = self.is_left_to_log = False
        """Whether `close` makes no commit, because the command log contains the changes."""
        self.scans = Scans(self.tables, self.commits)
        # These objects refer to the frame, so the frame holds only weak references to them.
        hear = self.commits.consider, self.scans.expire
        self.tables.frame.after_writes += map(WeakMethod, hear)
        self.digests = Digests(self.tables)
        self.backups = Backups(self.tables, self.commits)
        self.scrubber = Scrubber(storage, options.scrub_bytes_per_s)
        self.recovered_commands, self.recovered_s = 0, 0.0
        self.lost = ""
        """Why acknowledged commands may be lost (the command log was cut short), or ""."""
        if not storage.read_only:
            self._recover(codec, options)

    def _recover(self, codec: Callable[[], Codec], options: StoreOptions) -> None:
        """Execute the logged, uncommitted commands again. If `options` ask for a command log, new
        commands are logged from then on."""
        memory, read, self.recovered_commands, self.recovered_s = recover(self, codec)
        self.lost = "; ".join(read.cut.values())
        if self.lost:  # begin it now: CommandLog restores the segment's length, which hides the cut
            self.storage.begin_epoch(self.storage.catalogue.epoch + 1)
        frame = self.tables.frame
        if options.durability == "checkpoint":
            if not self.tables.is_committed:
                self.tables.commit()
            self.storage.name_commands(None)
            remove_segments(self.storage.files)
            return
        frame.log = CommandLog(
            self.storage,
            codec(),
            options.durability,
            memory,
            read,
            number=frame.command_number,
            sync_every_s=options.sync_every_s,
            on_host=on_host(self.device),
        )
        frame.log.replay_s = self.recovered_s if self.recovered_commands else 0.0
        frame.is_covered = frame.log.is_durable

    def __repr__(self) -> str:
        return f"in {self.storage.files.root}"

    @kept
    def execute(
        self,
        command: Command[R],
        *,
        out: Any = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        part_of: PartOf | None = None,
    ) -> R:
        """Execute a command and return its result; see `embstore.commands.Executor`.

        `timeout_s` bounds waits for other ranks or steps; all other work runs to its end.
        """
        if type(command) in admin.PREPARATIONS:
            self.prepare(command, progress)
        out = self._empty_rows if out is c.ON_DEVICE else out
        if hasattr(command, "members"):  # in an embedded store, the caller owns all sessions
            own: Any = command
            command = cast(Command[R], replace(own, members=self.sessions.members_on(own.table)))
        try:
            finishes = command.retry is Retry.STEP
            if finishes:
                command = checked(command)
                self.sessions.wait_for_turn(cast(Any, command), timeout_s)
            result = self._begin(
                command, out=out, progress=progress, part_of=part_of, is_checked=finishes
            )
            if isinstance(result, StepOutcome):
                result = self.sessions.wait_for_ranks(result, timeout_s)
            elif isinstance(result, StepLookup):
                result = self.sessions.wait_for_rows(result, out, timeout_s)
            if command.effect in (Effect.WRITES, Effect.TUNES) and self.log is not None:
                self.log.wait()
        except BaseException:
            if self.log is not None:
                self.log.files.let_read()  # the caller may change its arrays now
            raise
        return cast(R, result)

    def prepare(self, command: Command[Any], progress: Progress | None = None) -> None:
        """Do a command's long work in slices, before the command acquires the engine. An error of
        `progress` ends the work."""
        if self.is_prepared(command):
            self.replication.check(checked(command))
            admin.PREPARATIONS[type(command)](self, command, progress)

    def is_prepared(self, command: Command[Any]) -> bool:
        """Whether `prepare` does anything for a command."""
        return type(command) in admin.PREPARATIONS

    def _begin(
        self,
        command: Command[Any],
        *,
        out: Any = None,
        progress: Progress | None = None,
        origin: Any = None,
        part_of: PartOf | None = None,
        is_checked: bool = False,
    ) -> Any | StepOutcome | StepLookup:
        """Execute a command; return a handle if the command waits for ranks or steps.

        The command can be acknowledged once the command log is durable up to its present `mark`.
        `origin` names the client and the call; it is given if the server remembers the answer.
        `is_checked` is true if the command is in normal form.
        """
        if not is_checked:
            command = checked(command)
        into = out if progress is None else progress
        self.replication.check(command, is_part=part_of is not None)
        if self.tables.splitting.is_due:
            self._go_on_splitting()
        if self.commits.write_back.owed_bytes and command.effect is Effect.WRITES:
            self.commits.write_back.pay()
        if part_of is not None:
            work = partial(self._begun, command, into, origin)
            return sharding.by_map(self, command, part_of, work)
        if origin is None or self.log is None:
            return HANDLERS[type(command)](self, command, into)
        return self._begun(command, into, origin)

    begin = kept(_begin)

    def _begun(self, command: Command[Any], into: Any, origin: Any) -> Any:
        if origin is None or self.log is None:
            return self.execute_here(command, into)
        with self.tables.frame.having(origin):
            result = self.execute_here(command, into)
            self.log.answered(command, result, context(self, self.log.memory.instance))
            return result

    def look_up_resident(
        self, commands: Sequence[c.Lookup], outs: Sequence[Any], map_versions: Collection[int] = ()
    ) -> list[RowsRead] | None:
        """Execute several lookups of the same `admit` at once. Return their results, or None if a
        row is not cached, because the lookups would then wait. The caller has the engine."""
        for version in map_versions:
            sharding.check_version(self, version)
        for command in commands:
            self.replication.check(command, is_part=bool(map_versions))
        return rows.lookup_resident(self, list(map(checked, commands)), outs)

    def execute_here(self, command: Command[Any], into: Any = None) -> Any:
        """Execute a command in normal form. The replication role is not checked."""
        return HANDLERS[type(command)](self, command, into)

    def _go_on_splitting(self) -> None:
        """Move pools nearer to their target sizes. The running command does not depend on these
        moves; but if an error during a move fails the store, the command raises that error."""
        with suppress(EmbstoreError), self.tables.reading():
            if self.tables.splitting.decide():
                self.storage.begin_change()
                self.tables.splitting.move()

    @property
    def log(self) -> CommandLog | None:
        """The command log; None: commands are not logged."""
        return self.tables.frame.log

    def prefetch(self, command: c.LookupStep) -> None:
        """Do nothing: rows are read in this process, so a request in advance would gain nothing."""

    def check_device(self, name: str | None = None) -> None:
        """Refuse every device but this engine's: lookups return rows in that device's memory."""
        if name not in (None, self.device.name):
            raise InvalidArgumentError(
                f"expected a request for rows on {self.device.name}, found one for rows on {name}"
            )

    def lend_device(self) -> Lent:
        """Return the device, for a trainer in this process that keeps rows in device memory."""
        return Lent(self.device, self.tables.reading)

    def _empty_rows(self, tables: list[str], shapes: list[tuple[int, int]]) -> list[Any]:
        return [self.device.memory.empty(*shape) for shape in shapes]

    def warm_up(self) -> None:
        """Compile every kernel, or load it from the cache of an earlier process."""
        with self.tables.reading():
            self.device.warm_up()
            self.device_facts = self.device.facts()

    @property
    def failure(self) -> BaseException | None:
        """The error that failed the store; only `close` is then allowed. None: it has not
        failed."""
        return self.storage.failure

    @property
    def is_merging(self) -> bool:
        """Whether a fold or compaction is running, or waits for the next call to install it."""
        return self.storage.merges.running

    @property
    def is_prompt(self) -> bool:
        """Whether a call of a few keys will run at once, without waiting for a merge, for a commit
        that the store makes by itself, for a GPU, or for the disk of the command log."""
        is_busy = self.is_merging or self.commits.is_running or self.device.is_queued
        return not is_busy and (self.log is None or self.log.files.is_prompt)

    def look_for_files(self) -> None:
        """Fail the store if a file that it needs has been removed. Any thread."""
        log = "" if self.log is None else self.log.files.segments.missing()
        if (missing := self.storage.missing() or log) and not self.tables.frame.is_closed:
            self.storage.fail(removed(missing))

    def close(self) -> None:
        """Commit uncommitted changes, unless the command log contains them; release all resources.

        Closing twice is harmless.

        Raises
        ------
        CapacityError, StorageError, DeviceError : not all changes could be committed; the store is
            closed nevertheless, and opens at its last commit.
        """
        background = (self.commits, self.backups, self.scrubber)
        parts = (self.sessions, self.warming, self.hot_pins, *background)
        for part in parts:
            part.stop()
        self.scans.end_all()
        self.tables.frame.close(self._commit_and_free)
        if self.tables.frame.is_closed:  # else a call of this thread runs, and closes at its end
            for part in parts:
                part.join_threads()

    def abandon(self) -> None:
        """Close the store without a commit, because its changes are no longer needed."""
        self._is_abandoned = True
        self.close()

    def _commit_and_free(self) -> None:
        is_kept = self.failure is None and not self._is_abandoned
        try:
            if is_kept and not self.storage.read_only and not self.tables.is_committed:
                if self.log is not None and self.is_left_to_log:
                    self.log.files.sync()
                    self.storage.end_tail()
                else:
                    self.tables.commit()
            if is_kept:
                self.frequencies.keep_counts(self.tables.by_id.values())
        finally:
            self._free()

    def _free(self) -> None:
        with ExitStack() as stack:  # each resource is closed, even if closing another one fails
            stack.callback(self.device.close)
            for pool in self.tables.pools.values():
                stack.callback(pool.close)
            stack.callback(self.storage.close)
            if self.log is not None:
                stack.callback(self.log.close)
            stack.callback(self.frequencies.kept.close)  # before the directory is unlocked
