"""A store as its users see it: a method for each verb that concerns more than one `Table`.

    store_tables        tables, and calls that name several
    store_cache         the cache, and how often rows are used
    store_checkpoints   the checkpoints: durable, kept and restored states
    store_shards        a store that is one of several

Sessions are `sessions`, and for a trainer `session`.
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
    """A store: its tables, sessions and checkpoints. A context manager that closes it.

    Closing an embedded store commits it; closing a server's ends the connection.
    """

    def __init__(self, executor: Executor, *, timeout_s: float | None = None) -> None:
        """Execute commands by `executor`, which shall answer within `timeout_s`."""
        self.executor = executor
        """The executor of commands; for an embedded store the engine."""
        self.sessions = Sessions(executor)
        """Look-ahead sessions by their verbs; `session` is the way for a trainer."""
        info = executor.execute(c.GetServerInfo(), timeout_s=timeout_s)
        self.store_id = info.context.store_id
        """The directory's own name, made with it and never changed."""
        self.limits: Limits = info.limits
        """The named bounds of calls; a server sends its own when a client connects."""
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
        """Commit an embedded store and release its memory and directory; end the connection to a
        server and cut off the calls that run. Closing twice is harmless."""
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
        """Return a run: training that announces to the store which rows its coming steps will use.

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
        tables : tables that steps may name; while the run is open it is their only writer; the
            options are described at `embstore.handles.run_options.RunOptions`

        Raises
        ------
        InvalidArgumentError : at once; the store's own errors come when the run is entered.
        """
        given = {n: value for n, value in locals().items() if n not in ("self", "tables")}
        from embstore_training.run import Run  # a loop over any store: nothing here needs it

        return Run(self.sessions, tables, **given)

    # Looking

    def server_info(self) -> ServerInfo:
        """Return the facts of the store, or of the server: version, device, limits."""
        return self.executor.execute(c.GetServerInfo())

    @property
    def command(self) -> int:
        """The number of the last acknowledged mutating command, of any client."""
        return self.server_info().context.command

    @property
    def epoch(self) -> int:
        """A number that grows when acknowledged commands are undone, by a restore or by a crash:
        rows and t read before are void."""
        return self.server_info().context.epoch

    @property
    def device(self) -> str:
        """The device that keeps and computes the rows: "cpu" or "cuda:N"."""
        return self.server_info().device

    @property
    def device_facts(self) -> dict[str, Any]:
        """The device's model, memory and versions, as opening, `warm_up` or `stats` last found
        them.

        "model", "memory_bytes" and "memory_free_bytes"; of the CPU also "threads"; of a GPU also
        "driver_version", "runtime_version", "multiprocessors", "compile_seconds" (of `warm_up`) and
        "scratch_bytes" (memory for calls, outside the cache). Waits for no call: a device is asked
        by calls alone.
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

        For tests and idle times.
        """
        violation = self.executor.execute(c.CheckIntegrity())
        assert not violation, violation

    def warm_up(self) -> None:
        """Compile every kernel now, or load it from the cache of an earlier process.

        A kernel that was not warmed up is compiled at its first use, which takes seconds. A server
        does this before it reports that it is ready.
        """
        self.executor.warm_up()
