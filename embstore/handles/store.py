"""A store as its users see it: a method for each command that concerns more than one `Table`.

    store_tables        tables, and calls that name several tables
    store_cache         the cache, and how often rows are used
    store_checkpoints   checkpoints: made, kept, restored, copied
    store_shards        a store that is one of several: a standby or a shard

`Store.sessions` has the commands of look-ahead sessions; a trainer uses `Store.session`.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from embstore import commands as c
from embstore.commands import Executor
from embstore.config import Limits
from embstore.handles.run_options import RunOptions
from embstore.handles.sessions import Sessions
from embstore.handles.store_cache import StoreCache
from embstore.handles.store_checkpoints import StoreCheckpoints
from embstore.handles.store_shards import StoreShards
from embstore.handles.store_tables import StoreTables
from embstore.options import describing
from embstore.results import ServerInfo

if TYPE_CHECKING:
    from embstore_training.run import Run


class Store(StoreTables, StoreCache, StoreCheckpoints, StoreShards):
    """A store: its tables, sessions and checkpoints. As a context manager, it is closed at the end.

    Closing an embedded store commits it; closing a server's store ends the connection.
    """

    def __init__(self, executor: Executor, *, timeout_s: float | None = None) -> None:
        """Create a store whose commands `executor` executes. The executor must answer the first
        command within `timeout_s`."""
        self.executor = executor
        """The executor of commands; for an embedded store this is the engine."""
        self.sessions = Sessions(executor)
        """Look-ahead sessions by their commands; a trainer uses the method `session`."""
        info = executor.execute(c.GetServerInfo(), timeout_s=timeout_s)
        self.store_id = info.context.store_id
        """The id of the store's directory, made with it and never changed."""
        self.limits: Limits = info.limits
        """The named bounds of calls; a server sends its bounds when a client connects."""
        self.unsent = []

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
        """Close the store. Closing twice is harmless.

        An embedded store is committed, and its memory and directory are released. The connection to
        a server is ended, and running calls are cut off.
        """
        self.executor.close()

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
        """Return a run: a training loop that announces to the store the rows of its coming steps.

            with store.session(tables=["ads"], lookahead=16) as run:
                for step in run.steps(batches, keys=lambda batch: {"ads": batch.ads}):
                    rows = step.lookup()["ads"]
                    ...
                    step.update({"ads": gradients})

        Every lookup of a step hits the cache, and the bits of the tables do not depend on
        look-ahead. Over a network, the rows of a step arrive while the step before it computes.
        After a restart of the server, the run's next call raises SessionExpiredError or
        OutcomeUnknownError; a run with a `name` can then be opened again, and continues after the
        `last_step` of the server's last commit.

        Parameters
        ----------
        tables : tables that steps can name; the run is their only writer while it is open. The
            options are described at `embstore.handles.run_options.RunOptions`

        Raises
        ------
        InvalidArgumentError : an option is wrong. The store's own errors are raised when the run is
            entered.
        """
        given = {n: value for n, value in locals().items() if n not in ("self", "tables")}
        from embstore_training.run import Run  # a loop over any store; only this method needs it

        return Run(self.sessions, tables, **given)

    # Looking

    def server_info(self) -> ServerInfo:
        """Return the properties of the store, or of its server: version, device, limits."""
        return self.executor.execute(c.GetServerInfo())

    @property
    def command(self) -> int:
        """The number of the last acknowledged mutating command, of any client."""
        return self.server_info().context.command

    @property
    def epoch(self) -> int:
        """A number that grows when acknowledged commands are undone, by a restore or by a crash.
        Rows and t that were read in an earlier epoch are void."""
        return self.server_info().context.epoch

    @property
    def device(self) -> str:
        """The device that keeps and computes the rows: "cpu" or "cuda:N"."""
        return self.server_info().device

    @property
    def device_facts(self) -> dict[str, Any]:
        """The device's model, memory and versions. They were read when the store was opened, or by
        the last `warm_up` or `stats`.

        The keys are "model", "memory_bytes" and "memory_free_bytes"; for the CPU also "threads";
        for a GPU also "driver_version", "runtime_version", "multiprocessors", "compile_seconds" (of
        `warm_up`) and "scratch_bytes" (memory for calls, outside the cache). Only calls on the
        engine can query the device. This property does not query it, and therefore waits for no
        call.
        """
        return self.server_info().device_info

    @property
    def cache_bytes(self) -> int:
        """The budget of the cache."""
        return self.server_info().cache_bytes

    def stats(self) -> dict[str, Any]:
        """Return the store's state and its counts.

        The names and their meaning are declared in `embstore.engine.stats.StoreStats`: "tables" by
        name, "cache" with its "pools", "storage", "stages", "sessions" and "frequency".
        """
        return self.executor.execute(c.GetStats())

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of cache or storage does not hold.

        Call this in tests, and at times without other calls.
        """
        violation = self.executor.execute(c.CheckIntegrity())
        assert not violation, violation

    def warm_up(self) -> None:
        """Compile every kernel now, or load it from the kernel cache of an earlier process.

        A kernel that was not warmed up is compiled at its first use, which takes seconds. A server
        does this before it reports that it is ready.
        """
        self.executor.warm_up()
