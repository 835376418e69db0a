"""A store: its tables, sessions and checkpoints."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from embstore import commands as c
from embstore.arrays import Rows
from embstore.checks.arguments import mapping
from embstore.commands import Executor, OnNonfinite, Pooling, Progress
from embstore.config import Initializer, Limits, Optimizer, TableConfig
from embstore.durability import Retention
from embstore.handles import parts
from embstore.handles.patience import patiently
from embstore.handles.run_options import RunOptions
from embstore.handles.sessions import Sessions
from embstore.handles.table import Table
from embstore.options import describing
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.results import (
    AcknowledgedUpdate,
    BackupFacts,
    Boundary,
    HotSetFacts,
    KeptCheckpoint,
    ServerInfo,
    TableFacts,
)
from embstore.sharding import ShardMap

if TYPE_CHECKING:
    from embstore_training.run import Run


class Store:
    """A store: its tables, sessions and checkpoints. A context manager that closes it.

    Closing an embedded store commits it; closing a server's ends the connection. One class, because
    it is what users see: a method for each verb that is not of one `Table` alone.
    """

    def __init__(self, executor: Executor, *, timeout_s: float | None = None) -> None:
        """Have commands executed by `executor`, which shall answer within `timeout_s`."""
        self.executor = executor
        """What executes commands; of an embedded store the engine."""
        self.sessions = Sessions(executor)
        """Look-ahead sessions by their verbs; `session` is the way for a trainer."""
        info = executor.execute(c.GetServerInfo(), timeout_s=timeout_s)
        self.store_id = info.context.store_id
        """The directory's own name, made with it and never changed."""
        self.limits: Limits = info.limits
        """The named bounds that calls are held to; of a server as it said when connected to."""
        self.unsent: list[Callable[[], str]] = []
        """Each returns what was trained elsewhere and is not here yet, or an empty text."""

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<embstore.Store {self.executor!r}>"

    def close(self) -> None:
        """Commit an embedded store and give memory and directory back; end the connection to a
        server, whose calls that run are cut off. Closing twice is harmless."""
        self.executor.close()

    # Tables

    def create_table(
        self,
        name: str,
        *,
        dim: int,
        rows: int,
        optimizer: Optimizer,
        initializer: Initializer,
        seed: int | None = None,
    ) -> Table:
        """Make a table, or return the one that was made so before.

        A table that was made before keeps its learning rate; a warning says so where another one is
        given. `Table.learning_rate` changes it.

        Parameters
        ----------
        name : parts of [A-Za-z0-9_.-] joined by '/'
        dim : elements of a row, 1 to 4096
        rows : keys are in [0, rows), up to 2**40; a row takes no space until it is written
        seed : of the initial rows, 0 to 2**64 - 1; None: derived from the name

        Raises
        ------
        TableExistsError : the name has another identity, or other rows; the error names what
            differs (for more rows see `Table.grow`).
        InvalidArgumentError, CapacityError : nothing has changed.
        """
        config = TableConfig.checked(
            name, dim=dim, rows=rows, optimizer=optimizer, initializer=initializer, seed=seed
        )
        described = self.executor.execute(c.CreateTable(config))
        _warn_of_rate(name, described.config.optimizer.learning_rate, optimizer.learning_rate)
        return Table(self.executor, described)

    def table(self, name: str) -> Table:
        """Return a table by name, or raise TableNotFoundError."""
        return Table(self.executor, self.executor.execute(c.GetTable(name)))

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return [table.config.name for table in self.executor.execute(c.ListTables())]

    def table_facts(self) -> dict[str, TableFacts]:
        """Return rows, t and learning rate of all tables, by name, as one call."""
        return {
            table.config.name: TableFacts(
                table.config.rows, table.t, table.config.optimizer.learning_rate
            )
            for table in self.executor.execute(c.ListTables())
        }

    def drop_table(self, name: str) -> int:
        """Forget a table and its rows; return the command number.

        Kept checkpoints still have it.
        """
        return self.executor.execute(c.DropTable(name)).command

    # Several tables in one call

    def lookup(
        self,
        keys: Mapping[str, ArrayLike],
        *,
        admit: bool = True,
        out: Mapping[str, Any] | None = None,
        counts: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Rows]:
        """Return the rows of several tables, {name: (n, dim) float32}, for what one call costs.

        Parameters
        ----------
        keys : {name: (n,) int64}
        admit, out, counts : as in `Table.lookup`; `out` and `counts` may name some of the tables
        """
        named = mapping(keys, "keys")
        given, counted = parts.some_of(out, "out", named), parts.some_of(counts, "counts", named)
        named_parts = tuple(
            [c.TableKeys(name, None, of, counted.get(name)) for name, of in named.items()]
        )
        outs = [given.get(name) for name in named] if given else None
        read = self.executor.execute(c.Lookup(named_parts, admit), out=outs)
        return parts.filled(read, given)

    def lookup_pooled(
        self,
        bags: Mapping[str, tuple[ArrayLike, ArrayLike]],
        mode: Pooling = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
        *,
        admit: bool = True,
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, Rows]:
        """Return the pooled rows of several tables, {name: (bags, dim) float32}, by one call.

        Parameters
        ----------
        bags : {name: (keys (n,), offsets (bags + 1,))}
        mode, weights, admit, out : as in `Table.lookup_pooled`; `weights` and `out` may name some
            of the tables
        """
        named = parts.bags(bags, mode, weights)
        given = parts.some_of(out, "out", named)
        outs = [given.get(name) for name in named] if given else None
        tables = tuple(c.PooledKeys(name, None, keys, of) for name, (keys, of) in named.items())
        read = self.executor.execute(c.LookupPooled(tables, admit), out=outs)
        return parts.filled(read, given)

    def update_pooled(
        self,
        bags: Mapping[str, tuple[ArrayLike, ArrayLike]],
        gradients: Mapping[str, ArrayLike],
        mode: Pooling = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
        *,
        learning_rate: c.LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply the gradients of bags to several tables, all or none: what `lookup_pooled` was
        given, and {name: gradients (bags, dim)} of these tables.

        The options are those of `update`.
        """
        named, given = parts.bags(bags, mode, weights), mapping(gradients, "gradients")
        parts.check_same(given, named, "gradients")
        tables = tuple(
            c.PooledGradients(name, None, keys, given[name], of)
            for name, (keys, of) in named.items()
        )
        options = parts.options(learning_rate, gradient_scale, on_nonfinite)
        return self.executor.execute(c.UpdatePooled(tables, options))

    def update(
        self,
        gradients: Mapping[str, tuple[ArrayLike, ArrayLike]],
        *,
        learning_rate: c.LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply one update to several tables, all or none: {name: (keys (n,), gradients (n, dim))}.

        The options are those of `Table.update`; learning rates may be given by table, {name: rate}:
        others have their own, and those of tables without gradients say nothing.
        """
        options = parts.options(learning_rate, gradient_scale, on_nonfinite)
        return self.executor.execute(c.Update(parts.gradients(gradients), options))

    def update_ranks(
        self,
        ranks: Sequence[Mapping[str, tuple[ArrayLike, ArrayLike]]],
        *,
        learning_rate: c.LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply one update from several ranks, each as in `update`, added in rank order.

        t grows for every table that any rank names.
        """
        options = parts.options(learning_rate, gradient_scale, on_nonfinite)
        named_parts = tuple(c.Rank(parts.gradients(rank)) for rank in parts.ranks(ranks))
        return self.executor.execute(c.UpdateRanks(named_parts, options))

    # Look-ahead

    @describing(RunOptions)
    def session(
        self,
        tables: Sequence[str],
        *,
        lookahead: int = RunOptions.lookahead,
        name: str | None = RunOptions.name,
        rank: int = RunOptions.rank,
        world_size: int = RunOptions.world_size,
        planner: str = RunOptions.planner,
        shared: bool = RunOptions.shared,
        lease_ms: int = RunOptions.lease_ms,
        rank_timeout_ms: int = RunOptions.rank_timeout_ms,
        wait_s: float | None = RunOptions.wait_s,
        waits: c.Waits = RunOptions.waits,
        depth: int | None = RunOptions.depth,
        all_gather: Any = RunOptions.all_gather,
        resume: bool | None = RunOptions.resume,
        rows: c.RowsWhere = RunOptions.rows,
    ) -> "Run":
        """Return a run: training that tells the store which rows its coming steps will use.

            with store.session(tables=["ads"], lookahead=16) as run:
                for step in run.steps(batches, keys=lambda batch: {"ads": batch.ads}):
                    rows = step.lookup()["ads"]
                    ...
                    step.update({"ads": gradients})

        Every lookup of a step hits the cache, and no bit of the tables depends on it. Over a
        network, the rows of a step come while the step before computes. When a server has
        restarted, the run's next call raises SessionExpiredError or OutcomeUnknownError: with a
        `name`, another run goes on after the `last_step` of the server's last commit.

        Parameters
        ----------
        tables : that steps may name; while the run is open it is their only writer; the options are
            those of `embstore.handles.run_options.RunOptions`

        Raises
        ------
        InvalidArgumentError : at once; what the store has to say comes when the run is entered.
        """
        given = {n: value for n, value in locals().items() if n not in ("self", "tables")}
        from embstore_training.run import Run  # a loop over any store: nothing here needs it

        return Run(self.sessions, tables, **given)

    # The cache, and how often rows are used

    def resize_cache(self, cache_bytes: int) -> None:
        """Change the cache's budget at run time. Where rows are may change, no bit of them does.

        The cache is then as if it had been opened with that budget, the sizes of its slabs too. A
        larger one fills as rows are used. For a smaller one, rows leave until the rest fits, those
        of the last slabs and not the coldest; dirty ones go to the log first, and the memory goes
        back to the system. No command is counted, and a store opened read-only takes it too.

        Parameters
        ----------
        cache_bytes : memory for resident rows, their index and staging

        Raises
        ------
        InvalidArgumentError : no integer >= 1.
        CapacityError : too little for the layouts there are (the message names the least that is
            enough), more address space than the system gives, or no disk space for the dirty rows
            that must leave. The budget stays; in the last case some rows have left the cache.
        """
        self.executor.execute(c.ResizeCache(cache_bytes))

    def set_policy(self, policy: str) -> None:
        """Have rows leave the cache by another policy, until the store is opened again.

        Rows stay where they are, and begin anew: what was counted of each under the old policy says
        nothing under the new one. Imported profiles count as if the store had been opened with it.
        Other calls go on in between, sessions too; a store opened read-only takes it as well.

        Parameters
        ----------
        policy : as of `embstore.open`

        Raises
        ------
        InvalidArgumentError : there is no such policy. Nothing has changed.
        """
        self.executor.execute(c.SetPolicy(policy))

    def export_profile(self, *, source: c.ProfileSource = "counted") -> Profile:
        """Return how often the rows of each table are accessed.

        Parameters
        ----------
        source : "counted" by this store, of the share `count_rate` of its lookups (exact up to a
            million rows of a table, see `TableProfile.error`), with a recording of the order of
            calls; or "imported"
        """
        return self.executor.execute(c.ExportProfile(source))

    def import_profile(self, profile: Profile, *, rename: Mapping[str, str] | None = None) -> None:
        """Have the store go by a profile, from now on and when it is opened again.

        Under the rank policy it decides which rows leave the cache; warming goes by it under every
        policy; under LFU, rows that are in the cache start with counts in its proportion. No row,
        t or digest changes.

        Parameters
        ----------
        rename : the names of tables here by their names in the profile, where they differ

        Raises
        ------
        TableNotFoundError : the profile has a table that is not here.
        InvalidArgumentError : it has rows beyond a table's. Nothing has changed.
        PermissionDeniedError : the store was opened read-only.
        """
        renamed: Any = {} if rename is None else rename
        self.executor.execute(c.ImportProfile(profile, renamed))

    def clear_counts(self) -> None:
        """Count accesses anew; what was counted before does not come back with a restart either."""
        self.executor.execute(c.ClearCounts())

    def warm_cache(
        self,
        share: float = c.WARM_SHARE,
        *,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Bring the rows of highest profiled frequency into the cache; return how many.

        Other calls go on in between. A server goes on when this call has ended, by `timeout_s` or
        by an error that `progress` raises; the same call again joins it.

        Parameters
        ----------
        share : of the slots to fill, above 0 and at most 1
        progress : called with how many rows have been done, and of how many
        """
        command = c.WarmCache(share)
        return self.executor.execute(command, progress=progress, timeout_s=timeout_s).rows

    def pin_hot_set(
        self,
        hot_set: HotSet | Mapping[str, ArrayLike] | None,
        *,
        timeout_s: float | None = None,
    ) -> HotSetFacts:
        """Bring a hot set into the cache and keep it there, in place of the one before; None: none.

        A row that both sets have stays in the cache throughout; other calls go on in between. The
        set is pinned again when the store is opened. A server goes on when `timeout_s` has passed.
        Keys by table are a set of version 1, see `HotSet.of`.

        Raises
        ------
        InvalidArgumentError : its version is not above that of the pinned one, or a key is beyond
            its table.
        TableNotFoundError, CapacityError : a table is not there; more rows than three quarters of
            the slots. Nothing has changed.
        """
        if hot_set is None:
            return self.executor.execute(c.UnpinHotSet(), timeout_s=timeout_s)
        return self.executor.execute(c.PinHotSet(HotSet.of(hot_set)), timeout_s=timeout_s)

    def hot_set(self) -> HotSet | None:
        """Return the hot set that is pinned, or is to be."""
        return self.executor.execute(c.GetHotSet())

    # Durability

    def checkpoint(
        self,
        label: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> KeptCheckpoint:
        """Make everything durable and keep it under `label`, with `metadata` (a small JSON object).

        The `checkpoints_keep` newest labels can be restored, and those that `set_retention` has
        protected. A label is used once while it is kept.
        Warns if a hot/cold run over this store has trained rows since its last exchange.

        Raises
        ------
        CheckpointExistsError, InvalidArgumentError, CapacityError : the store goes on as it was.
        StorageError : the disk failed; the store must be opened again.
        """
        for missing in filter(None, [says() for says in self.unsent]):
            warnings.warn(f"checkpoint {label!r} is without {missing}", stacklevel=2)
        noted: Any = {} if metadata is None else metadata
        return self.executor.execute(c.Checkpoint(label, noted), timeout_s=timeout_s)

    def checkpoints(self) -> list[KeptCheckpoint]:
        """Return the kept checkpoints, oldest first: label, metadata, and the state they hold."""
        return list(self.executor.execute(c.ListCheckpoints()))

    def set_retention(self, label: str, retention: Retention) -> KeptCheckpoint:
        """Protect a kept checkpoint, have it be a routine one again, or drop it; return it as it is
        then, or was.

        Sessions, scans, backups and a restore that has ended need no label that is kept: any may be
        dropped, the newest too. What files only it needs goes at once, or with the next merge.

        Parameters
        ----------
        retention : "protected": newer ones do not push it out, and it cannot be dropped; "routine",
            as it was made: the last `checkpoints_keep` ones of its folder are kept, beside those
            that are protected; "dropped": it is not kept any more

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        CheckpointProtectedError : one that is protected was to be dropped.
        CapacityError : 64 others are protected.
        PermissionDeniedError : the store was opened read-only, or is a standby's.
        """
        return self.executor.execute(c.SetRetention(label, retention))

    def restore(self, label: str, *, wait_s: float = 0.0, force: bool = False) -> int:
        """Go back to a kept checkpoint; return the command number. Table handles stay valid.

        What is newer than the checkpoint is gone, for all clients of a server.

        Parameters
        ----------
        wait_s : how long to wait for open sessions to end, at most. That of a trainer that was
            killed ends when its lease has run out
        force : end open sessions, for all their ranks, who are told so

        Raises
        ------
        CheckpointNotFoundError : the label is not kept. Nothing has changed.
        CheckpointProtectedError : a newer one, which would be gone, is protected. Nothing has
            changed.
        TableHeldError : a session is open, still or again. Nothing has changed.
        """
        command = c.Restore(label, bool(force))
        return patiently(lambda: self.executor.execute(command), wait_s).command

    def backup(
        self, destination: str, label: str | None = None, *, timeout_s: float | None = None
    ) -> BackupFacts:
        """Copy a kept checkpoint to a directory or URL; other calls go on.

        A backup is of one label; several may be in one directory, which has each file once: another
        backup takes what is new. `embstore restore-from` makes a store of it. A server goes on when
        `timeout_s` has passed.

        Parameters
        ----------
        destination : of a server, the name of a folder below its `--backup-within`; of an embedded
            store a path, or a URL where fsspec is installed. It has nothing yet, or backups of this
            store. On the store's own file system files get a second name there, and take no space.
        label : a kept checkpoint; None: the store commits, and the backup is called "command-N"; no
            checkpoint is made or given up for it

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        InvalidArgumentError : there is something else, which has not changed.
        PermissionDeniedError : the server lets no client have backups written there.
        CapacityError, StorageError : no room, or no access; earlier backups are as they were.
        """
        return self.executor.execute(c.Backup(destination, label), timeout_s=timeout_s)

    def promote(self) -> None:
        """Make the standby that this connection reaches the leader; a leader stays one.

        Raises
        ------
        PermissionDeniedError : it was a leader, and has been replaced.
        StoreClosedError : it has not the first commit of its leader yet.
        """
        self.executor.execute(c.Promote())

    def set_shard_map(self, shard_map: ShardMap, boundary: Boundary | None = None) -> None:
        """Give a shard the next map of its cluster; it is durable when this returns.

        `boundary` is where a shard takes up that has no partition yet.

        Raises
        ------
        InvalidArgumentError : the store is no shard; the map is another cluster's, is not newer,
            gives the shard another number, or has other owners or more shards while writes are not
            paused.
        CapacityError, StorageError : it could not be written; the shard has the map before.
        """
        self.executor.execute(c.SetShardMap(shard_map, boundary))

    def pause_writes(
        self, by: str, until: Boundary | None = None, *, lease_ms: int = 0
    ) -> Boundary:
        """Have a shard apply no command that writes from now on, until it is released or has the
        next map, and return where it stands. It is durable when this returns.

        Clients of the cluster send what is refused again, until their timeouts.

        Parameters
        ----------
        by : the name of who pauses them, 1 to 255 printable characters; it may do so twice
        until : a boundary that other shards have come to: what is before it is applied still
        lease_ms : milliseconds after which writes are taken again, as after a restart; 0: when they
            are resumed

        Raises
        ------
        InvalidArgumentError : the store is no shard.
        WritesPausedError : somebody else has paused them.
        CapacityError, StorageError : it could not be written; nothing is paused.
        """
        return self.executor.execute(c.PauseWrites(by, until, lease_ms))

    def resume_writes(self, by: str = "") -> None:
        """Have a shard take writes again, if they are paused `by` this name; "": by whoever."""
        self.executor.execute(c.ResumeWrites(by))

    def flush(self) -> int:
        """Write all dirty rows to the log and return how many.

        A checkpoint or a clean close makes them durable.
        """
        return self.executor.execute(c.Flush())

    # Looking

    def server_info(self) -> ServerInfo:
        """Return what the store, or the server, says of itself: version, device, limits."""
        return self.executor.execute(c.GetServerInfo())

    @property
    def command(self) -> int:
        """The number of the last acknowledged mutating command, of any client."""
        return self.server_info().context.command

    @property
    def epoch(self) -> int:
        """Grows whenever acknowledged commands were undone, by a restore or by a crash: what was
        known of rows and t before is void."""
        return self.server_info().context.epoch

    @property
    def device(self) -> str:
        """What keeps and computes the rows: "cpu" or "cuda:N"."""
        return self.server_info().device

    @property
    def device_facts(self) -> dict[str, Any]:
        """The device's model, memory and versions, as opening, `warm_up` or `stats` last found
        them.

        "model", "memory_bytes" and "memory_free_bytes"; of the CPU also "threads"; of a GPU also
        "driver_version", "runtime_version", "multiprocessors", "compile_seconds" (of `warm_up`) and
        "scratch_bytes" (memory for calls, beside the cache). Waits for no call: a device is asked
        by calls alone.
        """
        return self.server_info().device_info

    @property
    def cache_bytes(self) -> int:
        """The budget of the cache."""
        return self.server_info().cache_bytes

    def stats(self) -> dict[str, Any]:
        """Return what the store is and did.

        The names and their meaning are declared in `embstore.engine.stats.StoreStats`: "tables" by
        name, "cache" with its "pools", "storage", "stages", "sessions" and "frequency".
        """
        return self.executor.execute(c.GetStats())

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of cache or storage does not hold.

        For tests and idle times.
        """
        violation = self.executor.execute(c.CheckIntegrity())
        assert not violation, violation

    def warm_up(self) -> None:
        """Compile every kernel now, or load it from the cache of an earlier process.

        A kernel that was not warmed up is compiled at its first use, which takes seconds. A server
        has done so before it said that it is ready.
        """
        self.executor.warm_up()


def _warn_of_rate(name: str, kept: float, given: float) -> None:
    """Warn that a table keeps its learning rate, where another one was given."""
    if given != kept:
        warnings.warn(
            f"table {name!r} is there already and keeps its learning rate {kept:g}; the one given, "
            f"{given:g}, has no effect: store.table({name!r}).learning_rate = {given:g} changes it",
            stacklevel=3,
        )
