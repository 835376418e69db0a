"""The results of commands. Data only; the same from an embedded store and from a server."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Inverse, Keys, Rows
from embstore.config import Limits, TableConfig
from embstore.sharding import ShardMap

Waits = Literal["late", "none"]
"""The reason for which a trainer waits between two steps of a session."""


EPOCH_STEP = 1 << 20
"""The distance from one epoch to the epoch that a promotion begins: the old leader may meanwhile
have begun others, one for each crash in which it lost commands, and clients must not take one for
the other."""


@dataclass(frozen=True)
class Context:
    """The store and the state that answered."""

    store_id: str
    """The directory's own name, made with it and never changed."""
    epoch: int
    """A number that grows when acknowledged commands are undone, by a restore or by a crash."""
    command: int
    """The number of the last acknowledged command; for a mutating command its own."""
    instance: str = ""
    """The process that remembers calls: another one after a restart, unless commands are logged."""


@dataclass(frozen=True)
class ServerLimits:
    """Named bounds of a server, in addition to its store's."""

    unary_bytes_max: int
    """Bytes of a unary message; larger ones are streamed."""
    chunk_bytes_max: int
    """Bytes of a piece of a stream."""
    queue_calls_max: int
    """Calls that may wait for the engine."""
    inflight_bytes_max: int
    """Bytes of requests and replies held at once."""
    remembered_calls_max: int
    """Answers remembered for one client."""
    call_timeout_s: float
    """The deadline of a call that brings none."""
    call_timeout_max_s: float
    """The longest deadline."""


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
    limits: Limits
    server: ServerLimits | None = None
    """None: the store is embedded."""
    process: str = ""
    """The server's process: another one after every restart. Empty: the store is embedded."""
    socket: str = ""
    """Path on the server's host of the socket where it shares memory; empty: nowhere."""
    wire_dtypes: tuple[str, ...] = ()
    """The dtypes that arrays of its messages may have; empty: the store is embedded."""
    shard: int | None = None
    """Its number; None: it is no shard of a cluster."""
    shard_map: ShardMap | None = None
    """The map of the cluster, with the others' addresses."""


@dataclass(frozen=True)
class TableDescription:
    """A table's configuration, id and t."""

    config: TableConfig
    """The configuration, with today's rows and learning rate."""
    table_id: int
    """The table's id, never used again, also when the table is dropped."""
    t: int


@dataclass(frozen=True)
class TableRows:
    """Rows of one table."""

    table: str
    rows: Rows
    """(n, dim), or (bags, dim)."""
    state: Rows | None
    """(n, state_dim), of `ReadRows`."""
    t: int
    """The number of updates that the table had had."""


@dataclass(frozen=True)
class RowsRead:
    """Rows of the tables that a command names, in its order."""

    tables: tuple[TableRows, ...]


@dataclass(frozen=True)
class ScanFacts:
    """The state that a scan reads."""

    table: TableDescription
    """The table at the command of the scan: its rows, learning rate and t."""
    command: int
    """The last command whose effect the scan has."""
    rows: int
    """The number of rows of the scan, all together."""
    since_command: int = 0
    """The last command whose rows it leaves out, unless they were written again; 0: it is whole."""
    since_t: int = 0
    """t of the table at that command."""
    deleted: int = 0
    """The number of rows that existed at that command and do not exist any more."""


@dataclass(frozen=True)
class ScannedRows:
    """Some rows of a scan, by ascending key; for sparse keys in the order of the files."""

    keys: Keys
    """(n,)."""
    rows: Rows
    """(n, dim)."""
    state: Rows | None
    """(n, state_dim), where it was asked for."""
    after: int = 0
    """`low` of the next page."""


@dataclass(frozen=True)
class StepTableRows:
    """Some of a step's rows of one table."""

    table: str
    rows: Rows
    """(n, dim)."""
    positions: Inverse | None
    """(n,), the indices of the rows among the announced keys; None: all of them."""
    t: int


@dataclass(frozen=True)
class StepRows:
    """Some of a step's rows: those that are early, or the others."""

    tables: tuple[StepTableRows, ...]
    early: bool = False
    """The others come later."""


@dataclass(frozen=True)
class StepRecords:
    """Weights and state of rows of a step, by table in the order of the request."""

    tables: tuple[TableRows, ...]
    last_step: int
    """The last step that they have seen: it was finished, and the next one was not."""

    def by_last_step(self) -> list[tuple[int, dict[str, Any]]]:
        """Return which rows of each table, as an index, have seen each last step."""
        return [(self.last_step, {part.table: slice(None) for part in self.tables})]


@dataclass(frozen=True)
class ShardedStepRecords(StepRecords):
    """The records of shards that are at different steps; `last_step` is the earliest."""

    last_steps: dict[str, NDArray[np.int64]]
    """(n,) by table: the last step that each row has seen."""

    def by_last_step(self) -> list[tuple[int, dict[str, Any]]]:
        """Return which rows of each table, as an index, have seen each last step."""
        steps = {int(step) for of in self.last_steps.values() for step in np.unique(of)}
        return [
            (step, {name: np.flatnonzero(of == step) for name, of in self.last_steps.items()})
            for step in sorted(steps)
        ]


@dataclass(frozen=True)
class Warmed:
    """How far a warm-up of the cache is."""

    rows: int
    """Rows brought in."""
    of: int
    """Rows to bring in; 0: not known yet."""
    finished: bool


@dataclass(frozen=True)
class Digest:
    """The digest of a table's content, 64 hexadecimal digits, the t that is in it, and the command
    after which the content was read."""

    digest: str
    t: int
    command: int


@dataclass(frozen=True)
class Leaves:
    """Some leaves of a table's digest, of blocks with a written row (docs/contract.md, rule 11)."""

    digest: Digest
    """The digest of the whole table: pages of one digest go together."""
    records: bytes
    """For each block, ascending: its number (uint64, little-endian), then its leaf, 32 bytes.
    Empty: there are none from `low` on."""


@dataclass(frozen=True)
class Acknowledged:
    """The outcome of a mutating call: its command number, and the table's t after it."""

    command: int
    t: int
    skipped: bool = False
    """True for an update that on_nonfinite="skip" skipped: no row and no t has changed."""


@dataclass(frozen=True)
class AcknowledgedUpdate:
    """The outcome of an update of several tables: its command number, and each table's new t."""

    command: int
    t: dict[str, int]
    skipped: bool = False


@dataclass(frozen=True)
class Deleted:
    """The outcome of a deletion: its command number, the table's t, and how many rows had been
    written."""

    command: int
    t: int
    rows: int


@dataclass(frozen=True)
class SessionFacts:
    """The options and the progress of a look-ahead session."""

    name: str
    last_step: int
    """The last finished step, 0 for none; the next to announce is one more."""
    tables: tuple[str, ...]
    lookahead_steps_max: int
    world_size: int
    planner: str
    shared: bool
    lease_ms: int
    rank_timeout_ms: int
    waits: Waits = "late"
    """"none": the trainer runs ahead of the store."""


@dataclass(frozen=True)
class Membership:
    """One rank's place in a session; its calls name `member`."""

    member: str
    name: str
    rank: int
    last_step: int
    rank_timeout_ms: int
    """How long its calls may wait for other ranks: the session's, or 0 where it has one rank."""


@dataclass(frozen=True)
class Announced:
    """How far a session has come: steps announced by this rank, and steps planned."""

    announced_step: int
    planned_step: int
    held_back: bool
    """Planning waits: the rows of the steps before leave no room for the next one's."""
    ranks_at_work: int = 0
    """The ranks that may still announce steps."""


@dataclass(frozen=True)
class TableFacts:
    """The facts of a table that training changes, apart from its rows."""

    rows: int
    t: int
    learning_rate: float


@dataclass(frozen=True)
class HotSetFacts:
    """The hot set that is to be pinned in the cache, and how much of it is pinned."""

    version: int
    """0: none."""
    rows: int
    bytes: int
    """The bytes of its rows, as the set says; 0: unknown."""
    pinned_rows: int


@dataclass(frozen=True)
class BackupFacts:
    """The size of a backup, and how much of it was new at its destination."""

    label: str
    command: int
    """The last command in it."""
    files: int
    bytes: int
    new_files: int
    new_bytes: int


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One table in a state."""

    table_id: int
    identity: dict[str, Any]
    rows: int
    learning_rate: float
    t: int

    def config(self) -> TableConfig:
        """Return the configuration, checked anew."""
        return TableConfig.from_identity(
            self.identity, rows=self.rows, learning_rate=self.learning_rate
        )


@dataclass(frozen=True)
class Place:
    """The progress of a session that may be resumed."""

    step: int
    """The last finished step."""
    table_ids: dict[str, int] = field(default_factory=dict)
    """The ids of its tables, by name: a table dropped and made again has not seen those steps."""


@dataclass(frozen=True)
class State:
    """The store at a commit."""

    commit: int = 0
    command: int = 0
    tables: tuple[TableEntry, ...] = ()
    places: dict[str, Place] = field(default_factory=dict)
    """The place of each session that may be resumed."""

    @cached_property
    def table_ids(self) -> frozenset[int]:
        """The ids of its tables."""
        return frozenset(table.table_id for table in self.tables)


@dataclass(frozen=True)
class NamedPlace:
    """The place of a session that may be resumed, with its name."""

    session: str
    step: int
    table_ids: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Barrier:
    """The position of a store between two commands, without its rows."""

    command: int
    """The number of the last command."""
    tables: tuple[TableDescription, ...]
    """The tables, by name."""
    next_table_id: int
    """The id of the next table that is made."""
    places: tuple[NamedPlace, ...]
    """The places, by session."""

    def is_of(self, other: "Barrier") -> bool:
        """Return whether two shards are at one barrier: they have the same tables, with as many
        updates, and the same progress of sessions."""
        return (self.tables, self.places) == (other.tables, other.places)


@dataclass(frozen=True)
class KeptCheckpoint:
    """A state kept under a label, with the caller's metadata.

    A scan at its label tells what a table was in it.
    """

    label: str
    metadata: dict[str, Any]
    command: int
    """The last that it holds."""
    tables: int | None = None
    """How many it has; None: that is not for the caller to know, who may not read all of them."""
    content: str = ""
    """Equal for two shards whose tables have the same ids, rows, learning rates and t. Only tables
    that the caller may read are compared: t counts the updates of a table, and a hash of small
    numbers is guessed."""
    made_at: float | None = field(default=None, compare=False)
    """Seconds since the Unix epoch, by the clock of its machine; None: not known, as for
    checkpoints of older versions, and through a server. It is no part of a checkpoint's
    identity."""
    protected: bool = False
    """Newer checkpoints do not push it out, and it is not dropped."""

    @property
    def without_metadata(self) -> "KeptCheckpoint":
        """Itself, with empty metadata."""
        return replace(self, metadata={})
