"""The engine: the tables of an open store, their pools, and the life of both.

Every public call runs under one lock, one after the other: the engine is single-threaded, and calls
from several threads wait for each other. Before a call the store is checked to be usable, and a
finished merge is installed; after each acknowledged mutating command the **command number** grows
by one.

Tables are known by id, which is never reused, so a handle of a dropped table can never mean
another. Pools are by layout (dim, state, optimizer kind), made when the first table of a layout
comes and removed with the last.
"""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep
from typing import Any

import numpy as np

from embstore.arrays import TABLE_IDS_MAX, fp32_scalar
from embstore.cache.arena import Arena
from embstore.cache.pool import Pool
from embstore.cache.sizes import Layout, Sizes
from embstore.config import Constant, Initializer, Limits, Normal, TableConfig, Uniform, check_rows
from embstore.device.base import Device, TableParameters
from embstore.errors import (
    CapacityError,
    CheckpointExistsError,
    DeviceError,
    InvalidArgumentError,
    StorageError,
    StoreClosedError,
    TableExistsError,
    TableHeldError,
    TableNotFoundError,
)
from embstore.frequencies import Frequencies
from embstore.results import Checkpoint, TableEntry
from embstore.stages import Stages
from embstore.storage.storage import Storage
from embstore.tablestate import TableState

_LABEL_CHARACTERS_MAX = 255
_PATIENCE_S, _PAUSE_S = 2e-3, 5e-5
_METADATA_DEPTH_MAX = 32
"""The catalogue is read with whatever recursion limit a process has."""


class Engine:
    """Tables, pools, storage and device of one store. All methods take the lock themselves."""

    def __init__(
        self,
        storage: Storage,
        device: Device,
        *,
        cache_bytes: int,
        policy: str,
        limits: Limits,
        count_rate: float = 0.0,
    ) -> None:
        self.storage = storage
        self.device = device
        self.limits = limits
        self.policy = policy
        self.arena = Arena(cache_bytes)
        self.stages = Stages()
        self.tables: dict[int, TableState] = {}
        self.pools: dict[Layout, Pool] = {}
        self.frequencies = Frequencies(
            storage.files, device, count_rate=count_rate, read_only=storage.read_only
        )
        self.command_number = storage.catalogue.head.command
        self._names: dict[str, int] = {}
        self._lock = threading.RLock()
        self._waiting: set[object] = set()  # a token for each call that waits for the lock
        self.places: dict[str, int] = dict(storage.catalogue.head.places)
        """Of each look-ahead session that may be resumed, its last finished step."""
        self._closed = False
        self._busy = False  # a call is running
        self._close_asked = False  # and close() was called inside it
        self._process = os.getpid()
        self.before_change: Callable[[], None] = _nothing
        """Has look-ahead take back what ended sessions hold, before tables or slabs go."""
        self.before_going: Callable[[Sequence[TableState], bool], None] = _nothing_of
        """Takes the pins of a hot set back, before its tables go; says whether they are dropped."""
        self._open_tables(storage.catalogue.head.tables)
        self.frequencies.kept.forget_others(storage.catalogue.table_ids())

    # The frame of every call

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the engine for a call that changes no row.

        Raises
        ------
        StoreClosedError : after close() or a failure.
        """
        with self._frame():
            self.storage.check_usable()
            self.storage.tend()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the engine for a mutating command, which counts if it does not raise.

        Raises
        ------
        StoreClosedError, PermissionDeniedError : the latter for a store opened read-only.
        """
        with self._frame():
            self.storage.check_usable(write=True)
            self.storage.tend()
            self.storage.begin_tail()
            yield
            self.command_number += 1

    @contextmanager
    def background(self) -> Iterator[None]:
        """As `reading`, for work that can wait: calls that wait for the engine go first, for a
        while."""
        patience = monotonic() + _PATIENCE_S
        while self._waiting and monotonic() < patience:
            sleep(_PAUSE_S)
        with self.reading():
            yield

    @contextmanager
    def _frame(self) -> Iterator[None]:
        """One call at a time, and none inside another: a signal handler may try.

        An interrupt can strike between any two lines, and memory may then be half changed; so it
        fails the store, which opens again at its last commit.
        """
        self._check_process()
        with self._turn():
            self._check_open()
            if self._busy:
                raise InvalidArgumentError(
                    "a call of this thread is still running (is this a signal handler?); "
                    "only close() may be called now, and waits for its end"
                )
            self._busy = True
            self.stages.start()
            try:
                yield
            except (KeyboardInterrupt, SystemExit, MemoryError) as exc:
                self.storage.fail(StorageError(errno.EINTR, f"a call was cut off by {exc!r}"))
                raise
            except DeviceError as exc:
                if self.device.is_lost:
                    self.storage.fail(exc)  # what it holds is logged no more
                raise
            finally:
                self._busy = False
                if self._close_asked:
                    self.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock; while it is waited for, that can be seen."""
        token = object()
        self._waiting.add(token)
        try:
            with self._lock:  # whatever interrupts this leaves it free
                self._waiting.discard(token)
                yield
        finally:
            self._waiting.discard(token)

    def check_open(self) -> None:
        """Raise StoreClosedError if the store is closed, or another process's. Takes no lock."""
        self._check_process()
        self._check_open()

    def _check_process(self) -> None:
        """Before any lock: a fork has those that other threads held, and nobody to release them."""
        if os.getpid() != self._process:
            raise StoreClosedError("the store belongs to the process that opened it, not to a fork")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed; open it again")

    def table(self, table_id: int, name: str) -> TableState:
        """Return a table by id; `name` is for the message.

        Raises
        ------
        TableNotFoundError : it has been dropped, or the restored checkpoint did not have it.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            table = self.tables.get(table_id)
            if table is None:
                raise TableNotFoundError(f"table {name!r} no longer exists")
            return table

    def find(self, name: str) -> TableState:
        """Return a table by name.

        Raises
        ------
        TableNotFoundError : there is none.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            table_id = self._names.get(name) if isinstance(name, str) else None
            if table_id is None:
                have = ", ".join(repr(n) for n in sorted(self._names)[:10]) or "none"
                raise TableNotFoundError(f"no table {name!r}; tables are: {have}")
            return self.tables[table_id]

    def names(self) -> list[str]:
        """Return the names of all tables, sorted."""
        self._check_process()
        with self._lock:
            self._check_open()
            return sorted(self._names)

    # Tables

    def create_table(self, config: TableConfig) -> TableState:
        """Make a table, or return the one that has this identity already.

        Raises
        ------
        TableExistsError : the name has another identity, or another number of rows.
        CapacityError : the file system, the cache or a limit cannot take it. Nothing has changed.
        """
        with self.writing():
            if config.name in self._names:
                return self._same_table(config)
            self._check_room_for_table(config)
            entry = TableEntry(
                self.storage.next_table_id,
                config.identity(),
                config.rows,
                float(config.optimizer.learning_rate),
                0,
            )
            pool = self._pool(config)
            try:
                self.storage.create_table(entry)
            except BaseException:
                self._leave_if_empty(pool)
                raise
            return self._add_table(entry, config, pool)

    def _same_table(self, config: TableConfig) -> TableState:
        table = self.tables[self._names[config.name]]
        if table.identity_json != config.identity_json():
            raise TableExistsError(
                f"table {config.name!r} exists as {table.identity_json.decode()}, "
                f"asked for was {config.identity_json().decode()}"
            )
        if table.rows != config.rows:
            raise TableExistsError(
                f"table {config.name!r} exists with {table.rows} rows, asked for were "
                f"{config.rows}; "
                f"use grow({config.rows}) to have more"
            )
        return table

    def _check_room_for_table(self, config: TableConfig) -> None:
        if len(self.tables) >= self.limits.tables_max:
            raise CapacityError(
                f"table {config.name!r}: the store has {len(self.tables)} tables, "
                f"limits.tables_max is {self.limits.tables_max}"
            )
        if self.storage.next_table_id >= TABLE_IDS_MAX:
            raise CapacityError(
                f"table {config.name!r}: all {TABLE_IDS_MAX} table ids have been used"
            )

    def _pool(self, config: TableConfig) -> Pool:
        layout = _layout(config)
        if layout not in self.pools:
            try:
                self.pools[layout] = Pool(
                    self.device, self.storage, self.arena, layout, self.policy, self.stages
                )
            except CapacityError as exc:
                raise CapacityError(f"table {config.name!r}: {exc}") from exc
        return self.pools[layout]

    def _add_table(self, entry: TableEntry, config: TableConfig, pool: Pool) -> TableState:
        table = TableState(entry.table_id, config, pool, entry.rows, entry.learning_rate, entry.t)
        pool.add_table(entry.table_id, _parameters(config))
        self.frequencies.take_up(table)
        self.tables[entry.table_id] = table
        self._names[config.name] = entry.table_id
        return table

    def _leave_if_empty(self, pool: Pool) -> None:
        if not pool.tables:
            del self.pools[pool.layout]
            self.arena.leave(pool)
            pool.close()

    def drop_table(self, name: str) -> int:
        """Forget a table and its rows; return the command number. Kept checkpoints still have it.

        Raises
        ------
        TableNotFoundError
        """
        with self.writing():
            table = self.find(name)
            self._check_unheld("drop it", [table])
            self.storage.drop_table(table.table_id)
            self.before_going([table], True)
            table.pool.remove_table(table.table_id)
            self._leave_if_empty(table.pool)
            del self.tables[table.table_id], self._names[name]
            self.frequencies.forget(table)
        return self.command_number

    def _check_unheld(self, what: str, tables: Iterable[TableState]) -> None:
        self.before_change()
        for table in tables:
            if table.sessions:
                names = ", ".join(map(repr, sorted(table.sessions)))
                raise TableHeldError(
                    f"table {table.name!r} is in use by look-ahead session {names}; close it, then "
                    f"{what}"
                )

    def grow(self, table: TableState, rows: Any) -> None:
        """Let a table have more rows.

        Raises
        ------
        InvalidArgumentError : fewer rows than now.
        """
        if check_rows(rows, table.name) < table.rows:
            raise InvalidArgumentError(
                f"table {table.name!r}: expected at least the present {table.rows} rows, found "
                f"{rows}"
            )
        table.rows = int(rows)

    def set_learning_rate(self, table: TableState, learning_rate: Any) -> None:
        """Set the rate of updates that give none.

        Raises
        ------
        InvalidArgumentError : not finite in fp32, or negative.
        """
        table.learning_rate = fp32_scalar(learning_rate, f"table {table.name!r}: learning_rate")

    def resize_cache(self, cache_bytes: int) -> None:
        """Change the cache's budget; see `Store.resize_cache`. No command: no row changes.

        Raises
        ------
        CapacityError : the budget stays.
        """
        with self.reading():
            self._check_unheld("resize the cache", self.tables.values())
            self.device.check_budget(cache_bytes, self.arena.memory_bytes)
            self.arena.resize(cache_bytes)

    # Durability

    def flush(self, table: TableState | None = None) -> int:
        """Log the dirty rows of a table, or of all; return how many."""
        pools = list(self.pools.values()) if table is None else [table.pool]
        return sum(pool.flush(table.table_id if table else None) for pool in pools)

    def checkpoint(self, label: Any, metadata: Any) -> Checkpoint:
        """Make everything durable and keep it under `label`.

        Raises
        ------
        InvalidArgumentError : the label is no short string, or the metadata no small JSON object.
        CheckpointExistsError, CapacityError : the store goes on as it was.
        """
        with self.reading():
            self.storage.check_usable(write=True)
            _check_label(label)
            metadata = self._checked_metadata(metadata)
            if self.storage.catalogue.checkpoint(label) is not None:
                raise CheckpointExistsError(
                    f"a checkpoint {label!r} is kept already; a label is used once while it is kept"
                )
            self.flush()
            self._commit(label, metadata)
            return self.storage.catalogue.checkpoints[-1]

    def _checked_metadata(self, metadata: Any) -> dict[str, Any]:
        if not isinstance(metadata, dict) or not all(isinstance(k, str) for k in metadata):
            raise InvalidArgumentError(
                f"expected metadata to be a dict with string keys, found {metadata!r}"
            )
        if not _is_shallow(metadata, _METADATA_DEPTH_MAX):
            raise InvalidArgumentError(
                f"expected metadata nested at most {_METADATA_DEPTH_MAX} deep"
            )
        try:
            text = json.dumps(metadata, allow_nan=False)
            json.dumps(metadata, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidArgumentError(f"expected metadata that JSON can hold: {exc}") from exc
        if len(text) > self.limits.metadata_bytes_max:
            raise InvalidArgumentError(
                f"expected at most {self.limits.metadata_bytes_max} bytes of metadata "
                f"(limits.metadata_bytes_max), found {len(text)}"
            )
        copy: dict[str, Any] = json.loads(text)
        return copy

    def _commit(self, label: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        entries = [table.entry() for table in self.tables.values()]
        self.storage.commit(
            entries, self.command_number, places=self.places, label=label, metadata=metadata
        )

    def restore(self, label: Any) -> int:
        """Go back to a kept checkpoint: tables, rows, t. What is newer is gone; handles stay valid.

        Raises
        ------
        CheckpointNotFoundError : the label is not kept. Nothing has changed.
        """
        with self.writing():
            self._check_unheld("restore", self.tables.values())
            self._check_room_for(label)
            self.before_going(list(self.tables.values()), False)
            for pool in self.pools.values():
                pool.finish_arriving()
            head = self.storage.restore(label, self.command_number + 1)
            with self.storage.no_way_back():
                for pool in list(self.pools.values()):
                    pool.tables.clear()
                    self._leave_if_empty(pool)
                rows = {entry.table_id: entry.rows for entry in head.tables}
                self.frequencies.go_back(self.tables.values(), rows)
                self.tables.clear()
                self._names.clear()
                self._open_tables(head.tables)
                self.places = dict(head.places)
        return self.command_number

    def _check_room_for(self, label: Any) -> None:
        checkpoint = self.storage.catalogue.checkpoint(label)
        needed, layouts = 0, set()
        for entry in checkpoint.state.tables if checkpoint else ():
            layout = _layout(entry.config())
            if layout in layouts:
                continue
            layouts.add(layout)
            needed += Sizes.of(layout, self.arena.budget_bytes, self.device).least_bytes
            if needed > self.arena.budget_bytes:
                raise CapacityError(
                    f"table {entry.identity['name']!r} of checkpoint {label!r}: cache_bytes is "
                    f"{self.arena.budget_bytes}, the tables up to this one need {needed}; open "
                    "the store with a larger cache_bytes"
                )

    def _open_tables(self, entries: tuple[TableEntry, ...]) -> None:
        for entry in entries:
            config = entry.config()
            self._add_table(entry, config, self._pool(config))

    def close(self) -> None:
        """Commit what is not yet, and give everything back. Closing twice is harmless.

        Raises
        ------
        CapacityError, StorageError, DeviceError : not everything could be committed; the store is
            closed all the same, and opens at its last commit.
        """
        if os.getpid() != self._process:
            self._closed = True
            return  # a forked child: all that is open is its parent's
        with self._lock:
            if self._closed:
                return
            if self._busy:
                self._close_asked = True
                return
            self._closed = True
            try:
                if not self.storage.read_only and self.storage.failure is None and self._changed():
                    self.flush()
                    self._commit()
                if self.storage.failure is None:
                    self.frequencies.keep_counts(self.tables.values())
            finally:
                self._give_back()

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    def _give_back(self) -> None:
        self.before_change, self.before_going = _nothing, _nothing_of  # no circle keeps it
        with ExitStack() as stack:  # each, whatever becomes of the others
            stack.callback(self.device.close)
            stack.callback(self.arena.pools.clear)  # pools know it: no memory waits for a collector
            for pool in self.pools.values():
                stack.callback(pool.close)
            stack.callback(self.storage.close)
            stack.callback(self.frequencies.kept.close)  # before the directory is another's

    def _changed(self) -> bool:
        head = self.storage.catalogue.head
        return self.command_number != head.command or self.places != head.places

    # Looking

    def digest(self, table: TableState) -> str:
        """Return a table's digest."""
        return table.digest.compute(
            table.pool, table.table_id, table.rows, table.identity_json, table.t
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of cache or storage does not hold."""
        for pool in self.pools.values():
            pool.check_integrity()
        self.storage.check_integrity()


def _nothing() -> None:
    """Take nothing back: there are no sessions."""


def _nothing_of(tables: Sequence[TableState], are_dropped: bool) -> None:
    """Take no pins of a table back: there is no hot set."""


def _layout(config: TableConfig) -> Layout:
    return Layout(config.dim, config.state_dim, config.optimizer.kind)


def _is_shallow(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallow(part, depth - 1) for part in parts)


def _check_label(label: Any) -> None:
    if (
        not isinstance(label, str)
        or not 0 < len(label) <= _LABEL_CHARACTERS_MAX
        or not label.isprintable()
    ):
        raise InvalidArgumentError(
            f"expected a label of 1 to {_LABEL_CHARACTERS_MAX} printable characters, found "
            f"{label!r}"
        )


def _parameters(config: TableConfig) -> TableParameters:
    """Return the arrays of one table, as kernels want them."""
    kind, first, second = _initializer_values(config.initializer)
    return TableParameters(
        scalars=np.zeros((1, 8), np.float32),
        initializer_kinds=np.array([kind], np.int8),
        initializer_values=np.array([[first, second]], np.float32),
        seeds=np.array([config.seed], np.uint64),
        initial_state=np.array([getattr(config.optimizer, "initial_accumulator", 0.0)], np.float32),
    )


def _initializer_values(initializer: Initializer) -> tuple[int, float, float]:
    match initializer:
        case Constant(value):
            return 0, value, 0.0
        case Uniform(low, high):
            return 1, low, float(np.float32(high) - np.float32(low))
        case Normal(mean, std):
            return 2, mean, std
