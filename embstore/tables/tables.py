"""The tables of an open store, their pools, and the conditions for creating and removing them.

Tables are identified by id. An id is never reused, so that a handle of a dropped table can never
refer to another table. Each layout (dim, state, optimizer kind) has a pool, which is created with
the first table of the layout and removed with the last table.
"""

from collections.abc import Collection, Iterable
from shlex import quote

import numpy as np

from embstore.arithmetic import SCALARS
from embstore.arrays import TABLE_IDS_MAX
from embstore.cache.arena import Arena, HostCache
from embstore.cache.pool import Pool, PoolName
from embstore.cache.sizes import Sizes, least_bytes
from embstore.choices import Retention
from embstore.config import Constant, Initializer, Limits, Normal, TableConfig, Uniform
from embstore.device.base import Device
from embstore.device.values import TableParameters
from embstore.errors import CapacityError, TableExistsError, TableHeldError, TableNotFoundError
from embstore.options import StoreOptions
from embstore.results import Place, TableEntry
from embstore.row_keys import DENSE, RowKeys
from embstore.storage.labels import retained
from embstore.storage.states import KeptState
from embstore.storage.storage import Storage
from embstore.tables.frame import Frame
from embstore.tables.owners import Ages
from embstore.tables.slices import Slices
from embstore.tables.splitting import Splitting
from embstore.tables.state import TableState

PLACES_MAX = 4096
"""The most resume positions that are kept; `tables.owners` decides which positions are kept."""

_IDS_SKIPPED_MAX = 256


class Tables:
    """The tables of one store. Used inside a call, except methods documented for any thread."""

    def __init__(
        self,
        storage: Storage,
        device: Device,
        options: StoreOptions,
        cache_bytes: int,
        host_cache: HostCache,
    ) -> None:
        self.frame = Frame(storage, device)
        self.storage = storage
        self.device = device
        self.limits = options.limits or Limits()
        self.policy, self.host_cache = options.policy, host_cache
        self.arena = Arena(cache_bytes)
        below = host_cache.budget_bytes
        self.host_arena = Arena(below, "host_cache_bytes") if below else None
        self.reading, self.writing = self.frame.reading, self.frame.writing
        self.background = self.frame.background
        self.stages = self.frame.stages
        self.by_id: dict[int, TableState] = {}
        self.pools: dict[PoolName, Pool] = {}
        self.splitting = Splitting(self.arena, self.pools, options.cache_split)
        self.places: dict[str, Place] = {}
        """The last finished step of each look-ahead session that can be resumed. The session that
        was used longest ago is first."""
        self._place_ages = Ages()
        self._ids: dict[str, int] = {}  # by name
        self.open_head()

    # Finding

    def find(self, name: str, table_id: int | None = None) -> TableState:
        """Return the table of a name (and id, if given), or raise TableNotFoundError."""
        found = self._ids.get(name)
        if found is None or (table_id is not None and table_id != found):
            raise self._not_found(name, table_id)
        return self.by_id[found]

    def has(self, name: str) -> bool:
        """Return whether a table of this name exists. Any thread."""
        return name in self._ids

    def config_of(self, name: str, table_id: int | None = None) -> TableConfig:
        """Return the configuration of the table that `find` returns."""
        return self.find(name, table_id).config

    def _not_found(self, name: str, table_id: int | None) -> TableNotFoundError:
        if table_id is not None:
            return TableNotFoundError(f"table {name!r} no longer exists")
        return TableNotFoundError(f"no table {name!r}; list the tables to see their names")

    def sorted(self) -> list[TableState]:
        """Return all tables, by name."""
        return [self.by_id[self._ids[name]] for name in sorted(self._ids)]

    # Creating and removing

    def create(self, config: TableConfig, first_id: int = 0) -> tuple[TableState, bool]:
        """Create a table, or find the existing table; return the table and whether it is new.

        Raises
        ------
        TableExistsError : the name has another identity, or another number of rows.
        CapacityError : the file system, the cache or a limit has no room. Nothing has changed.
        """
        if config.name in self._ids:
            return self._same(config), False
        self._check_room_for_table(config)
        entry = TableEntry(
            _new_id(self.storage.next_table_id, first_id),
            config.identity(),
            config.rows,
            float(config.optimizer.learning_rate),
            t=0,
            written=self.frame.command_number + 1,
        )
        pool = self._pool(config, entry.table_id)
        try:
            self.storage.create_table(entry)
        except BaseException:
            self._leave_if_empty(pool)
            raise
        return self._add(entry, config, pool), True

    def _same(self, config: TableConfig) -> TableState:
        table = self.by_id[self._ids[config.name]]
        _check_same(table, config)
        return table

    def _check_room_for_table(self, config: TableConfig) -> None:
        if len(self.by_id) >= self.limits.tables_max:
            raise CapacityError(
                f"table {config.name!r}: the store has {len(self.by_id)} tables, and "
                f"limits.tables_max is {self.limits.tables_max}: drop one, or raise the limit"
            )
        if self.storage.next_table_id >= TABLE_IDS_MAX:
            raise CapacityError(
                f"table {config.name!r}: all {TABLE_IDS_MAX} table ids have been used"
            )

    def least_bytes_of(self, config: TableConfig) -> int:
        """Return the bytes of the cache that a new table takes before it has a row: those of the
        first slab of its pool if the pool has no other table, else 0."""
        name = _pool_name(config, self.storage.next_table_id)
        if name in self.pools:
            return 0
        below_bytes, budget_bytes = self.host_cache.budget_bytes, self.arena.budget_bytes
        sizes = Sizes.of(name.layout, budget_bytes, self.device, below_bytes, name.row_keys)
        return sizes.least_bytes

    def _pool(self, config: TableConfig, table_id: int) -> Pool:
        name = _pool_name(config, table_id)
        if name not in self.pools:
            try:
                self.pools[name] = Pool(
                    self.device, self.storage.of_pool(name.row_keys), self.arena, name.layout,
                    self.policy, self.stages, self.host_arena, name.row_keys,
                )  # fmt: skip
            except CapacityError as exc:
                raise CapacityError(f"table {config.name!r}: {exc}") from exc
        return self.pools[name]

    def _add(self, entry: TableEntry, config: TableConfig, pool: Pool) -> TableState:
        table = TableState(entry, config, pool, self.frame)
        pool.add_table(entry.table_id, _parameters(config))
        self.by_id[entry.table_id] = table
        self._ids[config.name] = entry.table_id
        return table

    def _leave_if_empty(self, pool: Pool) -> None:
        if not pool.tables:
            del self.pools[pool.name]
            self.splitting.forget()
            pool.close()

    def remove(self, table: TableState) -> None:
        """Remove a table and its rows from memory. None of the rows may be pinned."""
        table.pool.remove_table(table.table_id)
        self._leave_if_empty(table.pool)
        del self.by_id[table.table_id], self._ids[table.name]

    def remove_all(self) -> None:
        """Remove all tables and their rows from memory. None of the rows may be pinned."""
        for pool in list(self.pools.values()):
            pool.tables.clear()
            self._leave_if_empty(pool)
        self.by_id.clear()
        self._ids.clear()

    def open_head(self) -> None:
        """Load the tables and resume positions of the last commit."""
        head = self.storage.catalogue.head
        for entry in head.tables:
            config = entry.config()
            self._add(entry, config, self._pool(config, entry.table_id))
        self.places = dict(head.places)
        self._place_ages = Ages(self.places)

    # Conditions

    def last_step(self, session: str, tables: Collection[TableState]) -> int:
        """Return the step after which a session resumes. It is 0 if one of the tables was created
        again since this step, or if the session's resume position belongs to other tables."""
        place = self.places.get(session, Place(0))
        bound = {t.name: place.table_ids.get(t.name) for t in tables}
        is_void = any(bound[t.name] not in (None, t.table_id) for t in tables)
        is_of_others = bool(place.table_ids) and all(one is None for one in bound.values())
        return 0 if is_void or is_of_others else place.step

    def note_place(self, session: str, place: Place) -> None:
        """Record the resume position of a session."""
        self.places.pop(session, None)
        self.places[session] = place
        self._place_ages.renew(session)
        while len(self.places) > PLACES_MAX:
            self.drop_place(next(self._place_ages.to_forget()))

    def drop_place(self, session: str) -> None:
        """Drop a resume position if it exists. The command log states or implies this drop."""
        self.places.pop(session, None)
        self._place_ages.drop(session)

    def check_can_forget(self) -> None:
        """Raise CapacityError if the command log has no space to record a forgotten resume
        position, and WritesPausedError while writes are paused."""
        self.frame.check_paused()
        if self.frame.log is not None:
            self.frame.log.reserve_forgotten()

    def forget_place(self, session: str) -> None:
        """Forget the resume position of a session, so that it begins with step 1 again."""
        if session in self.places and self.frame.log is not None:
            self.frame.log.append_forgotten(session, self.frame.command_number)
        self.drop_place(session)

    def check_unheld(self, what: str, tables: Iterable[TableState]) -> None:
        """Refuse the action `what` while look-ahead sessions are open on the tables."""
        for table in tables:
            if table.sessions:
                names = ", ".join(map(repr, sorted(table.sessions)))
                one = min(table.sessions)
                raise TableHeldError(
                    f"table {table.name!r} is in use by look-ahead session {names}; close it, then "
                    f"{what}: leave its loop or its with block; if its trainer has gone, "
                    f"store.sessions.end({one!r}), or embstore sessions close {quote(one)}"
                )

    def check_room_for(self, checkpoint: KeptState) -> None:
        """Refuse to restore a checkpoint whose tables have no room in a level of the cache."""
        below_bytes = self.host_cache.budget_bytes
        self._check_arena_for(checkpoint, self.arena, self.device, below_bytes)
        if self.host_arena is not None and (levels := self.device.levels) is not None:
            self._check_arena_for(checkpoint, self.host_arena, levels.below)

    def _check_arena_for(
        self, checkpoint: KeptState, arena: Arena, device: Device, below_bytes: int = 0
    ) -> None:
        pools: dict[PoolName, Sizes] = {}
        for entry in checkpoint.state.tables:
            name = _pool_name(entry.config(), entry.table_id)
            pools[name] = Sizes.of(
                name.layout, arena.budget_bytes, device, below_bytes, name.row_keys
            )
            needed = least_bytes(pools.values())
            if needed > arena.budget_bytes:
                raise CapacityError(
                    f"table {entry.identity['name']!r} of checkpoint {checkpoint.label!r}: "
                    f"{arena.option} is {arena.budget_bytes}, the tables up to this one need "
                    f"{needed}; open the store with a larger {arena.option}"
                )

    # Rows

    def commit(self, label: str | None = None, metadata: dict[str, object] | None = None) -> None:
        """Make everything durable. If a label is given, keep the state under this label."""
        for pool in self.pools.values():
            pool.writer.flush()
        log, number = self.frame.log, self.frame.command_number
        made = None
        if label is not None:
            made = {"label": label, "metadata": metadata or {}, "keep": self.storage.keep}
        commands = None if log is None else log.before_commit(number, made, self.places)
        entries = [table.entry() for table in self.by_id.values()]
        self.storage.commit(
            entries,
            number,
            lives=self.frame.lives,
            places=self.places,
            commands=commands,
            label=label,
            metadata=metadata,
        )
        if log is not None:
            log.after_commit(number, made, self.places)

    def set_retention(self, label: str, retention: Retention) -> KeptState:
        """Protect, drop or make routine a checkpoint; return it after the change, or before a drop.

        Raises CheckpointNotFoundError, CheckpointProtectedError, CapacityError: no change was made.
        """
        kept = self.storage.kept(label)
        self.keep_labels(retained(self.storage.catalogue.checkpoints, kept, retention))
        return self.storage.catalogue.checkpoint(label) or kept

    def keep_labels(self, checkpoints: tuple[KeptState, ...]) -> None:
        """Keep only the given checkpoints, here and at standbys. Raises CapacityError."""
        log = self.frame.log
        if log is not None:
            log.reserve_labels(checkpoints)
        self.storage.keep_only(checkpoints)
        if log is not None:
            log.append_labels(checkpoints, self.frame.command_number)

    @property
    def is_committed(self) -> bool:
        """Whether the last commit contains everything."""
        head = self.storage.catalogue.head
        return self.frame.command_number == head.command and self.places == head.places

    @property
    def cache_bytes_used(self) -> int:
        """Bytes of all pools, in both levels."""
        host = self.host_arena
        return self.arena.memory_bytes + (0 if host is None else host.memory_bytes)

    def check_integrity(self, slices: Slices) -> None:
        """Raise AssertionError if an invariant of cache or storage does not hold."""
        with slices.one():
            pools = list(self.pools.values())
            self.storage.check_integrity()
        for pool in pools:
            checks = pool.checks()
            is_done = False
            while not is_done:
                with slices.one():
                    is_here = self.pools.get(pool.name) is pool
                    is_done = not is_here or next(checks, None) is None


def _pool_name(config: TableConfig, table_id: int) -> PoolName:
    return PoolName(config.layout, RowKeys(table_id) if config.is_sparse else DENSE)


def _check_same(table: TableState, asked: TableConfig) -> None:
    """Raise TableExistsError if a table differs from the requested configuration."""
    name = asked.name
    if table.identity_json != asked.identity_json():
        differences = ", ".join(
            f"{what} {here} where {wanted} was asked for"
            for what, here, wanted in table.config.differences(asked)
        )
        raise TableExistsError(
            f"table {name!r} exists with {differences}; ask for it as it is, or "
            f"store.drop_table({name!r}), or embstore table drop {name}, removes it and its rows"
        )
    if table.rows != asked.rows:
        grow = (
            f", or store.table({name!r}).grow({asked.rows}), or embstore table grow {name} "
            f"{asked.rows}, grows it"
        )
        raise TableExistsError(
            f"table {name!r} exists with {table.rows} rows where {asked.rows} were asked for; ask "
            f"for {table.rows}{grow if asked.rows > table.rows else ''}"
        )


def _parameters(config: TableConfig) -> TableParameters:
    """Return the parameters of one table in the form that kernels use."""
    kind, first, second = _initializer_values(config.initializer)
    return TableParameters(
        scalars=np.zeros((1, SCALARS), np.float32),
        initializer_kinds=np.array([kind], np.int8),
        initializer_values=np.array([[first, second]], np.float32),
        seeds=np.array([config.seed], np.uint64),
        initial_state=np.array([config.optimizer.initial_state], np.float32),
    )


def _initializer_values(initializer: Initializer) -> tuple[int, float, float]:
    match initializer:
        case Constant(value):
            return 0, value, 0.0
        case Uniform(low, high):
            return 1, low, float(np.float32(high) - np.float32(low))
        case Normal(mean, std):
            return 2, mean, std


def _new_id(next_id: int, first_id: int) -> int:
    """Return the id of a new table: `first_id` or more, unless that would skip too many ids, of
    which a store has only so many."""
    return max(next_id, min(first_id, next_id + _IDS_SKIPPED_MAX, TABLE_IDS_MAX - 1))
