"""The results of commands, as plain data. An embedded store and a server give equal results."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Inverse, Keys, Rows
from embstore.config import Limits, TableConfig
from embstore.sharding import ShardMap

Waits = Literal["late", "none", "mixed"]
"""The wait of a trainer between two steps of a session. "late": it waits for late rows; "none": it
does not wait, and applies updates itself; "mixed": it waits for late rows of mixed batches, and
applies updates of hot batches itself."""


EPOCH_STEP = 1 << 20
"""A promotion adds a random multiple of this number to the epoch. The old leader may meanwhile have
begun further epochs, one for each crash in which it lost commands, and another standby may be
promoted too. Clients must not mistake an epoch of one of them for an epoch of another."""


@dataclass(frozen=True)
class Context:
    """The store that answered, and its state."""

    store_id: str
    """The id of the store's directory, made with it and never changed."""
    epoch: int
    """A number that grows when acknowledged commands are undone, by a restore or by a crash."""
    command: int
    """The number of the last acknowledged command; after a mutating command, the number of that
    command."""
    instance: str = ""
    """The id of the server's instance, which remembers recent calls in a deduplication window. A
    restart begins another instance, unless commands are logged."""


@dataclass(frozen=True)
class ServerLimits:
    """Named bounds of a server, in addition to the bounds of its store."""

    unary_bytes_max: int
    """The most bytes of a unary message; larger messages are streamed."""
    chunk_bytes_max: int
    """The most bytes of a piece of a stream."""
    queue_calls_max: int
    """The most calls that can wait for the engine at a time."""
    inflight_bytes_max: int
    """The most bytes of all requests and replies in memory at a time."""
    remembered_calls_max: int
    """The most answers that the server remembers for one client."""
    call_timeout_s: float
    """The deadline of a call that does not name a deadline."""
    call_timeout_max_s: float
    """The longest deadline that a call can name."""


@dataclass(frozen=True)
class ServerInfo:
    """A store's version, device, limits and addresses."""

    context: Context
    version: str
    """The version of embstore."""
    device: str
    """The device that keeps and computes the rows: "cpu" or "cuda:N"."""
    device_info: dict[str, Any]
    """The device's model, memory and versions; see `Store.device_facts`."""
    policy: str
    cache_bytes: int
    read_only: bool
    """Whether the store takes no writes: it was opened so, or it is a standby or was replaced."""
    limits: Limits
    server: ServerLimits | None = None
    """The server's limits; None: the store is embedded."""
    process: str = ""
    """The id of the server's process, which changes with every restart. Empty: the store is
    embedded."""
    socket: str = ""
    """Path, on the server's host, of the socket of the shared-memory transport; empty: the server
    has no socket."""
    wire_dtypes: tuple[str, ...] = ()
    """The dtypes that arrays in the server's messages can have; empty: the store is embedded."""
    shard: int | None = None
    """The store's number as a shard; None: it is not a shard of a cluster."""
    shard_map: ShardMap | None = None
    """The map of the cluster, with the addresses of all shards."""
    next_table_id: int = 0
    """The id of the next table that a shard creates; 0: the store is not a shard of a cluster."""


@dataclass(frozen=True)
class TableDescription:
    """A table's configuration, id and t."""

    config: TableConfig
    """The configuration, with the current rows and learning rate."""
    table_id: int
    """The table's id, which is never used again, not even after the table is dropped."""
    t: int
    update_ids: int = 0
    """On a shard, the sum modulo 2**63 of the ids of the cluster's updates and restores of the
    table (`embstore.commands.PartOf`), without steps of sessions. Shards that have executed others
    differ, even if their t is equal. 0 for a store that is not a shard, and for a cluster."""


@dataclass(frozen=True)
class TableRows:
    """Rows of one table."""

    table: str
    rows: Rows
    """The rows, shape (n, dim), or (bags, dim) if they were pooled."""
    state: Rows | None
    """Optimizer state, shape (n, state_dim), if the command asks for it; else None."""
    t: int
    """The number of updates of the table when the rows were read."""


@dataclass(frozen=True)
class RowsRead:
    """Rows of the tables that a command names, in the command's order."""

    tables: tuple[TableRows, ...]


@dataclass(frozen=True)
class ScanFacts:
    """The state of the table that a scan reads."""

    table: TableDescription
    """The table after the command `command`, with the rows, learning rate and t of that time."""
    command: int
    """The number of the last command whose effect the scanned rows contain."""
    rows: int
    """The total number of rows of the scan."""
    since_command: int = 0
    """The scan omits rows that were last written by this command or earlier; 0: it omits no
    rows."""
    since_t: int = 0
    """t of the table at `since_command`."""
    deleted: int = 0
    """The number of rows that existed at `since_command` and no longer exist."""


@dataclass(frozen=True)
class ScannedRows:
    """Rows of a scan, by ascending key; for sparse keys, in the order of the files."""

    keys: Keys
    """Keys, shape (n,)."""
    rows: Rows
    """Weights, shape (n, dim)."""
    state: Rows | None
    """Optimizer state, shape (n, state_dim), if the caller asked for it."""
    after: int = 0
    """The argument `low` that reads the next page."""


@dataclass(frozen=True)
class StepTableRows:
    """Some or all rows of one table in a step."""

    table: str
    rows: Rows
    """Rows, shape (n, dim)."""
    positions: Inverse | None
    """The indices of the rows among the announced keys, shape (n,); None: all announced keys."""
    t: int


@dataclass(frozen=True)
class StepRows:
    """A step's early rows, which no earlier unfinished step uses, or its late rows, which are all
    other rows."""

    tables: tuple[StepTableRows, ...]
    early: bool = False
    """Whether these are the early rows, so that the late rows follow in a later result."""


@dataclass(frozen=True)
class StepRecords:
    """Weights and state of rows of a step, by table, in the order of the request."""

    tables: tuple[TableRows, ...]
    last_step: int
    """The last step that was finished when the rows were read. The rows contain all updates up to
    this step."""

    def by_last_step(self) -> list[tuple[int, dict[str, Any]]]:
        """Return (step, {table: index}) pairs: the rows at these indices contain all updates up to
        the step."""
        return [(self.last_step, {part.table: slice(None) for part in self.tables})]


@dataclass(frozen=True)
class ShardedStepRecords(StepRecords):
    """Records from shards that are at different steps; `last_step` is the earliest of these
    steps."""

    last_steps: dict[str, NDArray[np.int64]]
    """By table, shape (n,): for each row, the step up to which it contains all updates."""

    def by_last_step(self) -> list[tuple[int, dict[str, Any]]]:
        """Return (step, {table: index}) pairs: the rows at these indices contain all updates up to
        the step."""
        steps = {int(step) for of in self.last_steps.values() for step in np.unique(of)}
        return [
            (step, {name: np.flatnonzero(of == step) for name, of in self.last_steps.items()})
            for step in sorted(steps)
        ]


@dataclass(frozen=True)
class Warmed:
    """The progress of a warm-up of the cache."""

    rows: int
    """The number of rows read into the cache so far."""
    of: int
    """The number of rows to read in total; 0: not known yet."""
    finished: bool


@dataclass(frozen=True)
class Digest:
    """The digest of a table's content as 64 hexadecimal digits, the t that it covers, and the
    command after which the content was read."""

    digest: str
    t: int
    command: int


@dataclass(frozen=True)
class Leaves:
    """Leaves of a table's digest, for blocks with a written row (docs/contract.md, rule 11)."""

    digest: Digest
    """The digest of the whole table. Two pages of leaves belong to the same state of the table if
    their digests are equal."""
    records: bytes
    """For each block, ascending: its number (uint64, little-endian), then its leaf, 32 bytes.
    Empty: there are no blocks from the requested number on."""


@dataclass(frozen=True)
class Acknowledged:
    """The outcome of a mutating call: its command number, and the table's t after the call."""

    command: int
    t: int
    skipped: bool = False
    """Whether an update was skipped because of on_nonfinite="skip": in that case no row and no t
    has changed."""


@dataclass(frozen=True)
class AcknowledgedUpdate:
    """The outcome of an update of several tables: its command number, and each table's new t."""

    command: int
    t: dict[str, int]
    skipped: bool = False


@dataclass(frozen=True)
class Deleted:
    """The outcome of a deletion: its command number, the table's t, and how many written rows it
    deleted."""

    command: int
    t: int
    rows: int


@dataclass(frozen=True)
class SessionFacts:
    """The options and the progress of a look-ahead session."""

    name: str
    last_step: int
    """The last finished step; 0: no step is finished. The next step to announce is `last_step` +
    1."""
    tables: tuple[str, ...]
    lookahead_steps_max: int
    world_size: int
    planner: str
    shared: bool
    lease_ms: int
    rank_timeout_ms: int
    waits: Waits = "late"
    """"late": the trainer waits for the rows of each step; "none": it runs ahead of the store;
    "mixed": it runs ahead in hot phases."""
    written: tuple[int, ...] = ()
    """For each shard, the number of the last command by which another client changed rows of the
    tables. A command counts only if it came after the last command of a session of this name, and
    before this session was opened. 0: there is no such command."""


@dataclass(frozen=True)
class Membership:
    """One rank's membership of a session; the rank's calls name `member`."""

    member: str
    name: str
    rank: int
    last_step: int
    rank_timeout_ms: int
    """Milliseconds for which the rank's calls can wait for other ranks: the session's timeout, or 0
    if the session has one rank."""


@dataclass(frozen=True)
class Announced:
    """The progress of a session: the last step announced by this rank, and the last step
    planned."""

    announced_step: int
    planned_step: int
    held_back: bool
    """Whether planning waits because the rows of earlier steps leave no space for the rows of the
    next step."""
    ranks_at_work: int = 0
    """The number of ranks that can still announce steps."""


@dataclass(frozen=True)
class TableFacts:
    """The properties of a table that training changes, without its rows."""

    rows: int
    t: int
    learning_rate: float


@dataclass(frozen=True)
class HotSetFacts:
    """The hot set that the cache pins or is about to pin, and how much of it is pinned."""

    version: int
    """The version of the hot set; 0: there is no hot set."""
    rows: int
    bytes: int
    """The bytes of the set's rows, as the set states them; 0: unknown."""
    pinned_rows: int


@dataclass(frozen=True)
class BackupFacts:
    """The size of a backup, and how much of it was new at its destination."""

    label: str
    command: int
    """The last command whose effect the backup contains."""
    files: int
    bytes: int
    new_files: int
    new_bytes: int


def ids_with(update_ids: int, update_id: int) -> int:
    """Return `TableDescription.update_ids` after one more update, or a restore."""
    return (update_ids + update_id) % (1 << 63)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One table, as a state of the store records it."""

    table_id: int
    identity: dict[str, Any]
    rows: int
    learning_rate: float
    t: int
    written: int = 0
    """The number of the last command that changed the table's rows."""
    update_ids: int = 0
    """The same as `TableDescription.update_ids`."""

    def config(self) -> TableConfig:
        """Return the configuration, checked again."""
        return TableConfig.from_identity(
            self.identity, rows=self.rows, learning_rate=self.learning_rate
        )


@dataclass(frozen=True)
class Place:
    """The resume position of a session's name."""

    step: int
    """The last finished step."""
    table_ids: dict[str, int] = field(default_factory=dict)
    """The ids of the session's tables, by name. A table that was dropped and created again has
    another id, and does not contain the updates of the finished steps."""
    command: int = 0
    """The number of the session's last command that could change rows."""


@dataclass(frozen=True)
class State:
    """The state of the store at a commit, without its rows."""

    commit: int = 0
    command: int = 0
    tables: tuple[TableEntry, ...] = ()
    places: dict[str, Place] = field(default_factory=dict)
    """The resume position of each session that can be resumed, by the session's name."""

    @cached_property
    def table_ids(self) -> frozenset[int]:
        """The ids of the state's tables."""
        return frozenset(table.table_id for table in self.tables)


@dataclass(frozen=True)
class NamedPlace:
    """The resume position of a session, with the session's name."""

    session: str
    step: int
    table_ids: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Barrier:
    """The position of a store between two commands; it contains no rows."""

    command: int
    """The number of the last command."""
    tables: tuple[TableDescription, ...]
    """The tables, ordered by name."""
    next_table_id: int
    """The id of the next table that is created."""
    places: tuple[NamedPlace, ...]
    """The resume positions of sessions, ordered by session."""
    answered: tuple[int, ...] = ()
    """For a shard, the ids of the commands of the cluster that it has answered, ascending: the last
    command of each sender (`embstore.commands.executor.sender_of`)."""

    def is_of(self, other: "Barrier") -> bool:
        """Return whether two shards are at the same barrier, that is, have the same tables, with
        the same number of updates, the same progress of sessions, and no half executed command."""
        own = self.tables, self.places, self.answered
        return own == (other.tables, other.places, other.answered)


@dataclass(frozen=True)
class KeptCheckpoint:
    """A state kept under a label, with the caller's metadata.

    A scan as of this label reads the content of a table in this state.
    """

    label: str
    metadata: dict[str, Any]
    command: int
    """The number of the last command in the state."""
    tables: int | None = None
    """The number of tables; None: hidden, because the caller is not allowed to read all tables."""
    content: str = ""
    """A text that is equal for two shards whose tables have the same ids, rows, learning rates and
    t. It covers only tables that the caller is allowed to read: t reveals the number of updates of
    a table, and a hash of small numbers could be guessed."""
    made_at: float | None = field(default=None, compare=False)
    """Time of the checkpoint in seconds since the Unix epoch, by the clock of its machine. None:
    the time is not known, as for checkpoints of older versions, and for a client of a
    server. The time is not part of a checkpoint's identity."""
    protected: bool = False
    """Whether the checkpoint is protected: newer checkpoints do not displace it, and it cannot be
    dropped."""

    @property
    def without_metadata(self) -> "KeptCheckpoint":
        """The same checkpoint, with empty metadata."""
        return replace(self, metadata={})
