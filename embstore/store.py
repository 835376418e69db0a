"""The store: a directory of tables, opened by one writer or by any number of readers."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from types import TracebackType
from typing import Any

from numpy.typing import ArrayLike

from embstore import reads, writes
from embstore.arguments import (
    check_call_bytes,
    checked_options,
    gradient_share,
    lookup_share,
    output,
)
from embstore.arrays import Rows, as_pair, as_ranks
from embstore.cache.policy import POLICIES
from embstore.config import Initializer, Limits, Optimizer, TableConfig
from embstore.device.base import Device
from embstore.device.choice import open_device
from embstore.device.workers import COPY_THREADS_MAX
from embstore.engine import Engine
from embstore.errors import InvalidArgumentError
from embstore.feed.run import Run
from embstore.figures import store_figures
from embstore.frequency.hotset import HotSet
from embstore.frequency.profile import Profile
from embstore.hotpins import HotPins
from embstore.lookahead.sessions import Sessions
from embstore.popularity import export_profile, frequency_figures, import_profile
from embstore.results import AcknowledgedUpdate, Checkpoint, HotSetFacts, TableFacts
from embstore.storage.files import Files
from embstore.storage.storage import Storage
from embstore.table import Table
from embstore.tablestate import Share
from embstore.warming import Warming
from embstore.writes import OnNonfinite

DEFAULT_CACHE_BYTES = 1 << 30
"""Room for two million rows of 128 fp32 with row-wise state; a trainer's host has this to spare."""


def open(
    path: str | os.PathLike[str],
    *,
    device: str | Device = "auto",
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    policy: str = "lru",
    warm_up: float = 0.0,
    count_rate: float = 0.0,
    checkpoints_keep: int = 3,
    read_only: bool = False,
    threads: int | None = None,
    limits: Limits | None = None,
    files: Files | None = None,
) -> "Store":
    """Open the store in directory `path`, made if need be, at its last commit.

    Parameters
    ----------
    device : "cpu"; "cuda:N", GPU number N ("cuda": the first); "auto": the first GPU if there is
        one and CuPy is installed, else the CPU; or a device, which the store closes
    cache_bytes : memory of the device for resident rows, their index and staging
    policy : which rows leave first: "lru"; "lfu", which ages; or "rank", by the profile that
        `Store.import_profile` was given
    warm_up : share of the cache, 0 to 1, that is filled by the profile once the store is open, in
        the background
    count_rate : share of lookups, 0 to 1, whose accesses are counted, for `Store.export_profile`
    checkpoints_keep : labels that can be restored; older ones are folded into the base
    read_only : share the directory with other readers; nothing can be written
    threads : of the CPU device; on a GPU, those that copy between host and device; None: one a
        core, at most 4, or 8
    limits : named bounds, see `embstore.config.Limits`
    files : the file operations; tests inject faults here

    Raises
    ------
    StoreInUseError : another process, or this one, holds the directory.
    TableMismatchError : another format, version or byte order.
    CorruptTableError : a file is missing or not what was written.
    CapacityError : the device has no memory for the cache.
    InvalidArgumentError : a bad option, a device that is not there, or a directory that is no
        store.
    """
    if policy not in POLICIES:
        raise InvalidArgumentError(
            f"expected policy to be one of {', '.join(POLICIES)}, found {policy!r}"
        )
    _check_positive(cache_bytes, "cache_bytes")
    _check_positive(checkpoints_keep, "checkpoints_keep")
    _check_share(warm_up, "warm_up")
    _check_share(count_rate, "count_rate")
    if threads is not None:
        _check_positive(threads, "threads")
    limits = Limits() if limits is None else limits
    if not isinstance(limits, Limits):
        raise InvalidArgumentError(f"expected limits to be Limits, found {limits!r}")
    if "\0" in os.fsdecode(path):
        raise InvalidArgumentError(f"expected a path that a file can have, found {path!r}")
    made = open_device(device, threads)
    try:
        made.check_budget(cache_bytes, 0)
        storage = Storage(
            files or Files(path),
            read_only=read_only,
            checkpoints_keep=checkpoints_keep,
            limits=limits,
            threads=threads or min(COPY_THREADS_MAX, os.cpu_count() or 1),
        )
    except BaseException:
        made.close()
        raise
    try:
        engine = Engine(
            storage,
            made,
            cache_bytes=cache_bytes,
            policy=policy,
            limits=limits,
            count_rate=count_rate,
        )
        store = Store(engine)
    except BaseException:
        storage.close()
        made.close()
        raise
    store._warming.start(warm_up)
    return store


def _check_share(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidArgumentError(f"expected {name} to be a number of 0 to 1, found {value!r}")


def _check_positive(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgumentError(f"expected {name} to be an integer >= 1, found {value!r}")


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"expected {what} to be a mapping by table name, found {type(value).__name__}"
        )
    return value


def _some_of(value: Any, what: str, names: Iterable[str]) -> Mapping[str, Any]:
    given = _mapping({} if value is None else value, what)
    unknown = sorted(given.keys() - set(names))
    if unknown:
        raise InvalidArgumentError(f"expected {what} to name tables of the call, found {unknown}")
    return given


class Store:
    """An open store. Any thread; calls wait for each other. A context manager that closes it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sessions = Sessions(engine)
        """Look-ahead sessions by their verbs; `session` is the way for a trainer."""
        self._hot_pins = HotPins(engine)
        self._warming = Warming(engine, self._hot_pins)
        self._device_facts = engine.device.facts()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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

        Parameters
        ----------
        name : parts of [a-z0-9_.-] joined by '/'
        dim : elements of a row, 1 to 4096
        rows : keys are in [0, rows), up to 2**40; a row takes no space until it is written
        seed : of the initial rows, 0 to 2**64 - 1; None: derived from the name

        Raises
        ------
        TableExistsError : the name has another identity, or other rows (then see `Table.grow`).
        InvalidArgumentError, CapacityError : nothing has changed.
        """
        config = TableConfig.checked(
            name, dim=dim, rows=rows, optimizer=optimizer, initializer=initializer, seed=seed
        )
        return Table(self._engine, self._engine.create_table(config))

    def table(self, name: str) -> Table:
        """Return a table by name, or raise TableNotFoundError."""
        return Table(self._engine, self._engine.find(name))

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return self._engine.names()

    def table_facts(self) -> dict[str, TableFacts]:
        """Return rows, t and learning rate of all tables, by name, as one call."""
        with self._engine.reading():
            tables = sorted(self._engine.tables.values(), key=lambda table: table.name)
            return {t.name: TableFacts(t.rows, t.t, t.learning_rate) for t in tables}

    def drop_table(self, name: str) -> int:
        """Forget a table and its rows; return the command number.

        Kept checkpoints still have it.
        """
        return self._engine.drop_table(name)

    # Several tables in one call

    def lookup(
        self,
        keys: Mapping[str, ArrayLike],
        *,
        admit: bool = True,
        out: Mapping[str, Rows] | None = None,
        counts: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Rows]:
        """Return the rows of several tables, {name: (n, dim) float32}, for what one call costs.

        Parameters
        ----------
        keys : {name: (n,) int64}
        admit, out, counts : as in `Table.lookup`; `out` and `counts` may name some of the tables
        """
        with self._engine.reading():
            tables = {n: self._engine.find(n) for n in _mapping(keys, "keys")}
            given, counted = _some_of(out, "out", tables), _some_of(counts, "counts", tables)
            shares = [lookup_share(t, keys[n], counted.get(n)) for n, t in tables.items()]
            check_call_bytes(self._engine, shares)
            outs = {s.table.name: output(s, given.get(s.table.name)) for s in shares}
            reads.lookup(shares, list(outs.values()), admit=admit, stages=self._engine.stages)
            if admit:
                self._engine.frequencies.note(shares)
            return outs | dict(given)

    def update(
        self,
        gradients: Mapping[str, tuple[ArrayLike, ArrayLike]],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply one update to several tables, all or none: {name: (keys (n,), gradients (n, dim))}.

        The options are those of `Table.update`.
        """
        with self._engine.writing():
            shares = self._gradient_shares(gradients)
            check_call_bytes(self._engine, shares)
            applied = writes.update(
                shares,
                **checked_options(learning_rate, gradient_scale, on_nonfinite),
                stages=self._engine.stages,
            )
            return self._acknowledged(shares, applied)

    def update_ranks(
        self,
        ranks: Sequence[Mapping[str, tuple[ArrayLike, ArrayLike]]],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply one update from several ranks, each as in `update`, added in rank order.

        t grows for every table that any rank names.
        """
        with self._engine.writing():
            shares = [self._gradient_shares(rank) for rank in as_ranks(ranks)]
            check_call_bytes(self._engine, [share for rank in shares for share in rank])
            applied = writes.update_ranks(
                shares,
                **checked_options(learning_rate, gradient_scale, on_nonfinite),
                stages=self._engine.stages,
            )
            return self._acknowledged([s for rank in shares for s in rank], applied)

    def _gradient_shares(self, gradients: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> list[Share]:
        shares = []
        for name, pair in _mapping(gradients, "gradients").items():
            table = self._engine.find(name)
            shares.append(gradient_share(table, *as_pair(pair, name)))
        return shares

    def _acknowledged(self, shares: Sequence[Share], applied: bool) -> AcknowledgedUpdate:
        t = {share.table.name: share.table.t for share in shares}
        return AcknowledgedUpdate(self._engine.command_number + 1, t, not applied)

    # Look-ahead

    def session(
        self,
        tables: Sequence[str],
        *,
        lookahead: int = 16,
        name: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        planner: str = "per_step",
        shared: bool = False,
        lease_ms: int = 10_000,
        rank_timeout_ms: int = 60_000,
        wait_s: float | None = None,
    ) -> Run:
        """Return a run: training that tells the store which rows its coming steps will use.

            with store.session(tables=["ads"], lookahead=16) as run:
                for step in run.steps(batches, keys=lambda batch: {"ads": batch.ads}):
                    rows = step.lookup()["ads"]
                    ...
                    step.update({"ads": gradients})

        Every lookup of a step hits the cache, and no bit of the tables depends on it.

        Parameters
        ----------
        tables : that steps may name; while the run is open it is their only writer
        lookahead : steps that are announced ahead
        name : by which the run can be resumed, and its ranks find each other; None: neither
        rank, world_size : of several trainers that share each step
        planner : "per_step", "group:N" or "window", see `embstore.lookahead.sessions.Sessions.open`
        shared : let others write to the tables too
        lease_ms : a trainer that is silent for longer loses its place
        rank_timeout_ms : how long ranks wait for one another before the session fails
        wait_s : how long entering a named run waits for a place that a trainer has which was
            killed, at most: until its lease runs out; None: one and a half leases

        Raises
        ------
        InvalidArgumentError : at once; what the store has to say comes when the run is entered.
        """
        return Run(
            self.sessions,
            tables,
            lookahead=lookahead,
            name=name,
            rank=rank,
            world_size=world_size,
            planner=planner,
            shared=shared,
            lease_ms=lease_ms,
            rank_timeout_ms=rank_timeout_ms,
            wait_s=wait_s,
        )

    def resize_cache(self, cache_bytes: int) -> None:
        """Change the cache's budget at run time. Where rows are may change, no bit of them does.

        The cache is then as if it had been opened with that budget, the sizes of its slabs too. A
        larger one fills as rows are used. For a smaller one, rows leave until the rest fits, those
        of the last slabs and not the coldest; dirty ones go to the log first, and the memory goes
        back to the system. No command is counted, and a store opened read-only takes it too. Any
        thread; it is a call like others.

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
        _check_positive(cache_bytes, "cache_bytes")
        self._engine.resize_cache(cache_bytes)
        self._hot_pins.pin_wanted()

    # How often rows are used

    def export_profile(self, *, source: str = "counted") -> Profile:
        """Return how often the rows of each table are accessed.

        Parameters
        ----------
        source : "counted" by this store, of the share `count_rate` of its lookups (exact up to a
            million rows of a table, see `TableProfile.error`), with a recording of the order of
            calls; or "imported"
        """
        return export_profile(self._engine, source)

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
        import_profile(self._engine, profile, rename)

    def clear_counts(self) -> None:
        """Count accesses anew; what was counted before does not come back with a restart either."""
        with self._engine.reading():
            self._engine.frequencies.clear_counts()

    def warm_cache(
        self, share: float = 0.7, *, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Bring the rows of highest profiled frequency into the cache; return how many.

        Other calls go on in between.

        Parameters
        ----------
        share : of the slots to fill, above 0 and at most 1
        progress : is told how many rows have been done, and of how many
        """
        return self._warming.warm(share, progress)

    def pin_hot_set(self, hot_set: HotSet | None) -> HotSetFacts:
        """Bring a hot set into the cache and keep it there, in place of the one before; None: none.

        A row that both sets have stays in the cache throughout; other calls go on in between. The
        set is pinned again when the store is opened.

        Raises
        ------
        InvalidArgumentError : its version is not above that of the pinned one, or a key is beyond
            its table.
        TableNotFoundError, CapacityError : a table is not there; more rows than three quarters of
            the slots. Nothing has changed.
        """
        return self._hot_pins.pin(hot_set)

    def hot_set(self) -> HotSet | None:
        """Return the hot set that is pinned, or is to be."""
        return self._hot_pins.wanted

    # Durability

    def checkpoint(self, label: str, metadata: Mapping[str, Any] | None = None) -> Checkpoint:
        """Make everything durable and keep it under `label`, with `metadata` (a small JSON object).

        The `checkpoints_keep` newest labels can be restored. A label is used once while it is kept.

        Raises
        ------
        CheckpointExistsError, InvalidArgumentError, CapacityError : the store goes on as it was.
        StorageError : the disk failed; the store must be opened again.
        """
        return deepcopy(self._engine.checkpoint(label, {} if metadata is None else metadata))

    def checkpoints(self) -> list[Checkpoint]:
        """Return the kept checkpoints, oldest first: label, metadata, and the state they hold."""
        with self._engine.reading():
            return deepcopy(list(self._engine.storage.catalogue.checkpoints))

    def restore(self, label: str) -> int:
        """Go back to a kept checkpoint; return the command number. Table handles stay valid.

        What is newer than the checkpoint is gone.

        Raises
        ------
        CheckpointNotFoundError : the label is not kept. Nothing has changed.
        """
        try:
            return self._engine.restore(label)
        finally:
            self._hot_pins.pin_wanted()

    def flush(self) -> int:
        """Write all dirty rows to the log and return how many; durable is only a checkpoint."""
        with self._engine.reading():
            return self._engine.flush()

    def warm_up(self) -> None:
        """Compile every kernel now, or load it from the cache of an earlier process.

        A kernel that was not warmed up is compiled at its first use, which takes seconds.
        """
        with self._engine.reading():
            self._engine.device.warm_up()
            self._device_facts = self._engine.device.facts()

    def close(self) -> None:
        """Commit without a label, and give memory and directory back. Closing twice is harmless."""
        self.sessions.stop()
        self._warming.stop()
        self._engine.close()
        if self._engine.is_closed:  # else a call of this thread is still running, and ends it
            self.sessions.join_threads()
            self._warming.join()

    # Looking

    @property
    def command(self) -> int:
        """The number of the last acknowledged mutating command."""
        return self._engine.command_number

    @property
    def store_id(self) -> str:
        """The directory's own name, made with it and never changed."""
        return self._engine.storage.catalogue.store_id

    @property
    def epoch(self) -> int:
        """Grows whenever acknowledged commands were undone, by a restore or by a crash: what was
        known of rows and t before is void."""
        return self._engine.storage.catalogue.epoch

    @property
    def device(self) -> str:
        """What keeps and computes the rows: "cpu" or "cuda:N"."""
        return self._engine.device.name

    @property
    def device_facts(self) -> dict[str, Any]:
        """The device's model, memory and versions, as `open`, `warm_up` or `stats` last found them.

        "model", "memory_bytes" and "memory_free_bytes"; of the CPU also "threads"; of a GPU also
        "driver_version", "runtime_version", "multiprocessors", "compile_seconds" (of `warm_up`) and
        "scratch_bytes" (memory for calls, beside the cache). Waits for no call: a device is asked
        by calls alone.
        """
        return dict(self._device_facts)

    @property
    def cache_bytes(self) -> int:
        """The budget of the cache."""
        return self._engine.arena.budget_bytes

    @property
    def is_merging(self) -> bool:
        """Whether a fold or compaction runs, or waits for the next call to install it."""
        return self._engine.storage.merges.running

    @property
    def failure(self) -> BaseException | None:
        """What failed the store, so that every call but close is refused; None: it is well."""
        return self._engine.storage.failure

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds that calls spent in each stage since the store was opened."""
        return self._engine.stages.seconds()

    @property
    def limits(self) -> Limits:
        """The named bounds that calls are held to."""
        return self._engine.limits

    def stats(self) -> dict[str, Any]:
        """Return what the store is and did.

        "tables" by name; "cache" with its pools (slots, hits by unique key and by access, misses by
        origin, evictions, calls in parts); "storage" (log, base, merges, bytes); "stages" (seconds
        and laps since opening); "sessions" with those that are "open" (a list: what each is, how
        far it is, its hits, early rows and stalls) and the "planning" of all together (seconds by
        stage, rows pinned and under way); "frequency" (accesses counted, by table too; how far
        warming is; which hot set is pinned).
        """
        with self._engine.reading():
            self._device_facts = self._engine.device.facts()
            return store_figures(self._engine) | {
                "sessions": {"open": self.sessions.facts(), "planning": self.sessions.planning()},
                "frequency": frequency_figures(self._engine)
                | {"warming": self._warming.facts(), "hot_set": asdict(self._hot_pins.facts())},
            }

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of cache or storage does not hold.

        For tests and idle times.
        """
        with self._engine.reading():
            self._engine.check_integrity()
