"""Commands: every verb of a store, as a value.

A store is a pure function of the ordered commands that it acknowledged (docs/contract.md, rule 5).
A command is a frozen dataclass: its arguments, with dtype and shape said once in the annotations;
what it returns (`result`); what it changes (`effect`); what it takes to send it a second time
(`retry`); what its sender must be allowed (`right`; `embstore.rights` says on which tables); and
what rows it `reads`. `embstore.parts` finds its tables and arrays. An
**Executor** executes commands: the engine of an embedded store, a client over a transport, and
whatever else comes between a caller and the rows. The handles (`embstore.handles`) make commands of
a user's calls; `checks` brings their arguments into normal form; the wire (`embstore_proto.verbs`)
sends any command by its fields.

The effect decides how a server treats a verb:

    READS    in its turn on the engine
    WRITES   likewise; rows, t or tables change, so the command is counted (rule 5)
    TUNES    likewise; where rows are changes, or what is durable, but no row
    LONG     takes long: on a thread of its own, which takes the engine piece by piece
    PROMPT   needs no engine: answered where it arrives, whatever else waits

A field that names a table has `table` and `table_id`: where the id is given, the command is refused
unless the name still means that table.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    dataclass_transform,
    runtime_checkable,
)

from embstore import results
from embstore.arrays import AccessCounts, Factors, Inverse, Keys, Offsets, Rows
from embstore.config import TableConfig
from embstore.durability import Retention
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.results import Acknowledged, AcknowledgedUpdate
from embstore.sharding import ShardMap
from embstore.values import Value

Pooling = Literal["sum", "mean"]
OnNonfinite = Literal["refuse", "skip"]
ProfileSource = Literal["counted", "imported"]
Waits = results.Waits
RowsWhere = Literal["auto", "host", "device"]
"""Where rows of a session's steps are: in the host's memory, in that of the store's device, or
where the keys of their batch were."""


class RowsIn(Enum):
    """Where a lookup makes the rows that it returns."""

    DEVICE = auto()
    """In the memory of the device that has the tables."""


ON_DEVICE: Final = RowsIn.DEVICE

LOOKAHEAD, LEASE_MS, RANK_TIMEOUT_MS = 16, 10_000, 60_000
"""Of a session that does not say."""
WARM_SHARE = 0.7
"""Of the slots, where a warm-up does not say: the rest is for rows that no profile foresaw."""

R = TypeVar("R", covariant=True)


class Effect(Enum):
    """What a command changes, and how it gets to the engine."""

    READS = auto()
    WRITES = auto()
    TUNES = auto()
    LONG = auto()
    PROMPT = auto()


class Retry(Enum):
    """What it takes to send a command again, when nobody knows whether it was executed."""

    FREE = auto()
    """Nothing: executed twice, it leaves what it leaves when executed once."""
    WINDOW = auto()
    """The server remembers its answer by client and sequence."""
    STEP = auto()
    """The session remembers it by member and step."""


class Reads(Enum):
    """What rows a command reads whose number its own arguments tell: one a key, or one a bag."""

    NOTHING = auto()
    ROWS = auto()
    RECORDS = auto()
    """Weights and optimizer state."""


class Right(IntEnum):
    """What a caller may do; each right has those below it."""

    KNOWN = auto()
    """Be known to the server."""
    READ = auto()
    """Read rows, and what tables are."""
    WRITE = auto()
    """What a trainer does: create tables, train, keep checkpoints."""
    ADMIN = auto()
    """What only an operator does: what is lost for good, and what concerns others."""


_RIGHTS = {
    Effect.READS: Right.READ,
    Effect.WRITES: Right.WRITE,
    Effect.PROMPT: Right.KNOWN,
    Effect.TUNES: Right.ADMIN,
    Effect.LONG: Right.ADMIN,
}
"""Of commands that do not say."""

COMMANDS: dict[str, type["Command[Any]"]] = {}
"""All commands by name."""


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
class Part(Value):
    """Base of the parts of commands; each is made a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, eq=False)(cls)


class Command(Part, Generic[R]):
    """Base of all commands; `R` is the type of the result."""

    effect: ClassVar[Effect]
    retry: ClassVar[Retry]
    right: ClassVar[Right]
    reads: ClassVar[Reads]

    def __init_subclass__(
        cls,
        *,
        effect: Effect,
        retry: Retry | None = None,
        right: Right | None = None,
        reads: Reads = Reads.NOTHING,
    ) -> None:
        """Make a command; one that writes is remembered unless `retry` says otherwise."""
        super().__init_subclass__()
        cls.effect, cls.reads = effect, reads
        cls.right = right or _RIGHTS[effect]
        cls.retry = retry or (Retry.WINDOW if effect is Effect.WRITES else Retry.FREE)
        COMMANDS[cls.__name__] = cls


class Executor(Protocol):
    """What executes commands. Any thread."""

    def execute(
        self,
        command: Command[R],
        *,
        out: Any = None,
        timeout_s: float | None = None,
        progress: "Progress | None" = None,
        map_version: int = 0,
    ) -> R:
        """Execute a command and return its result.

        Parameters
        ----------
        out : for a command that reads rows: arrays for them, one a table (None: a new one); of
            `ReadRows` weights and state; of `LookupStep` and `LookupStepPooled` also ON_DEVICE: new
            ones in the memory of the device that has the tables
        timeout_s : how long to wait for an answer, or for the other ranks of a step; None: as long
            as the executor was told to wait, or the session
        progress : of a command that takes long: called between its pieces with what is done, and of
            how much; what it raises ends some of them (`GetDigest`, say)
        map_version : of a shard: of the map by which the command was split; 0: it is for this
            shard, whatever the map

        Raises
        ------
        EmbstoreError : unless its docstring says otherwise, nothing has changed.
        """

    rounds_rows: bool
    """Rows of lookups come rounded, as by `connect(wire_dtype="float16")`."""

    is_embedded: bool
    """Commands are executed in this process: their arrays are passed, and not sent."""

    def check_device(self, name: str | None = None) -> None:
        """Find out whether rows of steps may come ON_DEVICE.

        name : of a device, as this process names it, where it is to be that one

        Raises
        ------
        InvalidArgumentError : this process does not reach the memory of the device that has the
            tables, or it is another device; it says why.
        """

    def prefetch(self, command: "LookupStep") -> "Prefetched | None":
        """Ask for a step's rows, and return at once what waits for them; None: there is nothing to
        gain by it."""

    def warm_up(self) -> None:
        """Compile every kernel that commands of this executor need."""

    def close(self) -> None:
        """End: of the engine, commit and give the directory back; of a client, its connection."""


class Prefetched(Protocol):
    """The rows of a step, on their way."""

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for the rows of the announced keys, by table."""


Progress = Callable[[int, int], None]


def after_timeout(command: type[Command[Any]]) -> str:
    """Return what to know of a command whose answer did not come in time; "": nothing."""
    if command.effect is Effect.WRITES:
        return "; it may have been applied: read t and the command number before another try"
    if command.retry is not Retry.FREE:
        return "; it may have been applied: look whether it was before another try"
    if command.effect is Effect.TUNES:
        return "; if it was started, it goes on to its end, and may be sent again"
    if command.effect is Effect.LONG:
        return "; it may be sent again"
    return ""


def metadata_json(metadata: dict[str, Any]) -> str:
    """Return a checkpoint's metadata as the JSON whose size is limited."""
    return json.dumps(metadata, allow_nan=False)


# Parts of commands


class TableKeys(Part):
    """Keys of one table; of a lookup, also how many accesses each stands for."""

    table: str
    table_id: int | None
    keys: Keys
    counts: AccessCounts | None = None


class TableGradients(Part):
    """Gradients of one table, (n, dim)."""

    table: str
    table_id: int | None
    keys: Keys
    gradients: Rows


class Bags(Part):
    """How keys are pooled: bag b has keys[offsets[b]:offsets[b + 1]]. Weights go with "sum"."""

    offsets: Offsets
    mode: Pooling = "sum"
    weights: Factors | None = None


class PooledKeys(Part):
    """Bags of keys of one table."""

    table: str
    table_id: int | None
    keys: Keys
    bags: Bags


class PooledGradients(Part):
    """Gradients of bags of one table, (bags, dim)."""

    table: str
    table_id: int | None
    keys: Keys
    gradients: Rows
    bags: Bags


LearningRate = float | Mapping[str, float]
"""Of an update, of all its tables or by table; others keep their own."""


class UpdateOptions(Part):
    """How an update is applied."""

    learning_rate: float | None = None
    gradient_scale: float = 1.0
    on_nonfinite: OnNonfinite = "refuse"
    learning_rates: dict[str, float] = field(default_factory=dict)
    """By table, in place of `learning_rate`. Those of tables that are not updated say nothing."""

    def rate_of(self, table: str) -> float | None:
        """Return the learning rate that is given for a table; None: its own."""
        return self.learning_rates.get(table, self.learning_rate)


class Rank(Part):
    """What one rank contributes to an update."""

    tables: tuple[TableGradients, ...]


# The process


class GetServerInfo(Command[results.ServerInfo], effect=Effect.PROMPT):
    """What the store is, and its limits."""


class GetStats(Command[dict[str, Any]], effect=Effect.READS):
    """The stats of one table, or of the store where no table is named."""

    table: str = ""
    table_id: int | None = None


class ResizeCache(Command[None], effect=Effect.TUNES):
    """Give the cache another budget."""

    cache_bytes: int


class SetPolicy(Command[None], effect=Effect.LONG):
    """Evict rows by another policy, until the store is opened again."""

    policy: str


class CheckIntegrity(Command[str], effect=Effect.LONG, right=Right.ADMIN):
    """Check the invariants of cache and storage; the result is the violation, "" for none."""


# Tables


class CreateTable(Command[results.TableDescription], effect=Effect.WRITES):
    """Create a table, or find the one of the same configuration."""

    config: TableConfig


class GetTable(Command[results.TableDescription], effect=Effect.READS):
    """Describe a table."""

    table: str
    table_id: int | None = None


class ListTables(
    Command[tuple[results.TableDescription, ...]], effect=Effect.READS, right=Right.KNOWN
):
    """Describe all tables, by name; of a server, those that the caller may read."""


class DropTable(Command[Acknowledged], effect=Effect.WRITES, right=Right.ADMIN):
    """Forget a table and its rows."""

    table: str
    table_id: int | None = None


class GrowTable(Command[Acknowledged], effect=Effect.WRITES):
    """Let a table have more rows.

    `members` are the sender's own, of any sessions: one of them may hold the table.
    """

    table: str
    table_id: int | None
    rows: int
    members: tuple[str, ...] = ()


class SetLearningRate(Command[Acknowledged], effect=Effect.WRITES):
    """Set the learning rate of updates that do not give one; `members` as of `GrowTable`."""

    table: str
    table_id: int | None
    learning_rate: float
    members: tuple[str, ...] = ()


class GetDigest(Command[results.Digest], effect=Effect.LONG, right=Right.READ):
    """The digest of a table's content (rule 11), as it is when its turn has come."""

    table: str
    table_id: int | None = None


class GetLeaves(Command[results.Leaves], effect=Effect.LONG, right=Right.READ):
    """Some leaves of a table's digest, from block `low` on: what stores that differ compare, and
    shards combine."""

    table: str
    table_id: int | None = None
    low: int = 0


# Durability


class Flush(Command[int], effect=Effect.LONG):
    """Write the dirty rows of a table, or of all, to the log; the result is how many."""

    table: str = ""
    table_id: int | None = None


class Checkpoint(
    Command[results.Checkpoint], effect=Effect.TUNES, retry=Retry.WINDOW, right=Right.WRITE
):
    """Make everything durable and keep it under a label."""

    label: str
    metadata: dict[str, Any]


class ListCheckpoints(
    Command[tuple[results.Checkpoint, ...]], effect=Effect.READS, right=Right.KNOWN
):
    """The kept checkpoints, oldest first; of a server, what of them the caller may read."""


class SetRetention(
    Command[results.Checkpoint], effect=Effect.TUNES, retry=Retry.WINDOW, right=Right.ADMIN
):
    """Protect a kept checkpoint, have it be a routine one again, which newer ones push out, or drop
    it; the result is the checkpoint, as it is from now on or was."""

    label: str
    retention: Retention


class Restore(Command[Acknowledged], effect=Effect.WRITES, right=Right.ADMIN):
    """Go back to a kept checkpoint. `force`: open sessions are ended first; else they forbid it."""

    label: str
    force: bool = False


class Backup(Command[results.BackupFacts], effect=Effect.LONG):
    """Copy a kept checkpoint to a path or URL of the server; no label: what there is now."""

    destination: str
    label: str | None = None


class Promote(Command[None], effect=Effect.TUNES):
    """Make a standby the leader: it follows nobody any more, and takes writes."""


# Shards


class SetShardMap(Command[None], effect=Effect.TUNES):
    """Give a shard the next map of its cluster; commands after it are by that map, and it takes
    writes again. It is durable when it is acknowledged. Where the map has other owners or shards,
    sessions end, as with a restart. `boundary` is for a shard that has no partition yet: it takes
    up there, with the tables and places of the others."""

    shard_map: ShardMap
    boundary: results.Boundary | None = None


class PauseWrites(Command[results.Boundary], effect=Effect.TUNES):
    """Have a shard apply no command that writes from the answer on, which says where it stands. A
    step that waits for other ranks is not applied either, and is sent again. It lasts until
    `ResumeWrites`, or the next map; also over a restart. `by` says who: another one is
    refused. `until` is a boundary that others have come to: what the shard has still to hear of up
    to there is applied; the answer says where it stands now. With `lease_ms` the pause ends by
    itself when that is over, and with the process."""

    by: str
    until: results.Boundary | None = None
    lease_ms: int = 0


class ResumeWrites(Command[None], effect=Effect.TUNES):
    """Have a shard take writes again, if they are paused `by` this name; "": by whoever. It is no
    error that nobody has."""

    by: str = ""


# Rows


class Lookup(Command[results.RowsRead], effect=Effect.READS, reads=Reads.ROWS):
    """Rows of several tables. `admit` keeps missed rows in the cache."""

    tables: tuple[TableKeys, ...]
    admit: bool = True


class LookupPooled(Command[results.RowsRead], effect=Effect.READS, reads=Reads.ROWS):
    """Pooled rows of bags of several tables (rule 8)."""

    tables: tuple[PooledKeys, ...]
    admit: bool = True


class ReadRows(Command[results.RowsRead], effect=Effect.READS, reads=Reads.RECORDS):
    """Weights and optimizer state; leaves no trace in the cache."""

    keys: TableKeys


class Update(Command[AcknowledgedUpdate], effect=Effect.WRITES):
    """One update of several tables, all or none (rules 2 and 4)."""

    tables: tuple[TableGradients, ...]
    options: UpdateOptions = UpdateOptions()


class UpdatePooled(Command[AcknowledgedUpdate], effect=Effect.WRITES):
    """One update of several tables by the gradients of bags, all or none (rule 8)."""

    tables: tuple[PooledGradients, ...]
    options: UpdateOptions = UpdateOptions()


class UpdateRanks(Command[AcknowledgedUpdate], effect=Effect.WRITES):
    """One update from several ranks, added in rank order (rule 6)."""

    ranks: tuple[Rank, ...]
    options: UpdateOptions = UpdateOptions()


class Assign(Command[AcknowledgedUpdate], effect=Effect.WRITES):
    """Set rows, the last of repeated keys winning; optimizer state starts anew (rule 7)."""

    keys: TableKeys
    rows: Rows


class PutRows(Command[AcknowledgedUpdate], effect=Effect.WRITES):
    """Set weights and state, and add to t: rows trained elsewhere (rule 7). `moved`: of partitions
    that another shard has still, which nobody reads here: so also while writes are paused, or a
    session holds the table."""

    keys: TableKeys
    weights: Rows
    state: Rows
    add_t: int
    moved: bool = False


# Scans


class OpenScan(Command[results.ScanFacts], effect=Effect.LONG, right=Right.READ):
    """Make the written rows of a table readable in order, as they are at one command.

    `scan` is its name, a secret of 16 to 64 characters. `label` is a kept checkpoint; None: the
    store commits, and what that has is read. `since` leaves out what was not written after another.
    """

    scan: str
    table: str
    table_id: int | None = None
    label: str | None = None
    since: str | None = None


class ReadScan(Command[results.ScannedRows], effect=Effect.LONG, right=Right.READ):
    """The first rows of a scan, at most so many, whose key is not below `low`."""

    scan: str
    table: str
    low: int
    rows: int
    with_state: bool = False


class CloseScan(Command[None], effect=Effect.LONG, right=Right.READ):
    """End a scan; one that is not there is no error."""

    scan: str
    table: str


# Look-ahead sessions


class StepTable(Part):
    """The keys of one table that a step will use, each once."""

    table: str
    keys: Keys


class StepKeys(Part):
    """What a rank announces of one step."""

    step: int
    tables: tuple[StepTable, ...]


class StepGradients(Part):
    """One gradient for each announced key of a table, (u, dim), in announced order.

    Or for each of some: `positions` (n,) says which, ascending, and gradients are (n, dim). Or for
    each occurrence: `inverse` (n,) says of which key, in any order and repeated, and gradients are
    (n, dim), or (bags, dim) of the bags that the occurrences lie in; they are summed by key (rules
    2, 8). Keys without a gradient are not updated.
    """

    table: str
    gradients: Rows
    positions: Inverse | None = None
    inverse: Inverse | None = None
    bags: Bags | None = None


@runtime_checkable
class RowsChecksum(Protocol):
    """The checksum of a step's rows, of which shards are sent that of theirs. Any thread."""

    def __index__(self) -> int:
        """Return that of all rows (`embstore.arithmetic.checksum`)."""

    def of(self, positions: Mapping[str, Inverse]) -> int:
        """Return that of the rows at some positions, (n,) ascending, of every table."""


class StepBags(Part):
    """Occurrences of announced keys of one table, and the bags that they lie in; without bags, a
    row is read for each occurrence."""

    table: str
    inverse: Inverse
    bags: Bags | None = None


class StepPositions(Part):
    """Which announced keys of one table are meant, (n,), ascending."""

    table: str
    positions: Inverse


class StepPut(Part):
    """Rows of one table that were trained elsewhere, by `add_t` updates."""

    table: str
    keys: Keys
    weights: Rows
    state: Rows
    add_t: int


class OpenSession(Command[results.SessionFacts], effect=Effect.TUNES, right=Right.WRITE):
    """Open a look-ahead session, or find it open with the same options."""

    name: str
    tables: tuple[str, ...]
    lookahead_steps_max: int = LOOKAHEAD
    world_size: int = 1
    planner: str = "per_step"
    shared: bool = False
    lease_ms: int = LEASE_MS
    rank_timeout_ms: int = RANK_TIMEOUT_MS
    waits: Waits = "late"


class JoinSession(Command[results.Membership], effect=Effect.PROMPT, right=Right.WRITE):
    """Take the place of a rank. `member` is a secret of 16 to 64 characters; "": one is made."""

    name: str
    rank: int
    member: str = ""


class RenewLease(Command[results.SessionFacts], effect=Effect.PROMPT, right=Right.WRITE):
    """Renew the lease of a rank, as every other command of it does."""

    member: str


class CloseSession(Command[None], effect=Effect.TUNES, right=Right.WRITE):
    """Leave a session; the last rank's leaving ends it. `forget`: its place is forgotten, too."""

    member: str
    forget: bool = False


class EndSession(Command[None], effect=Effect.TUNES, right=Right.WRITE):
    """End a session for all its ranks, who are told so; its place stays. For who operates a store:
    ranks close theirs."""

    name: str


class Announce(Command[results.Announced], effect=Effect.LONG, right=Right.WRITE):
    """Say which keys coming steps will use; `is_last`: and that the rank has no steps after them,
    so that those of other ranks wait for it no more."""

    member: str
    steps: tuple[StepKeys, ...]
    is_last: bool = False


class LookupStep(Command[results.RowsRead], effect=Effect.READS, right=Right.WRITE):
    """The rows of an announced step, in announced order, when its turn has come."""

    member: str
    step: int
    early: bool = True


class LookupStepPooled(Command[results.RowsRead], effect=Effect.READS, right=Right.WRITE):
    """Rows of occurrences of announced keys, pooled by bags where they lie in some."""

    member: str
    step: int
    tables: tuple[StepBags, ...]


class ReadStep(Command[results.StepRecords], effect=Effect.READS, right=Right.WRITE):
    """Weights and state of some announced keys, as they are when they are in the cache, whichever
    step's turn it is: for a session that waits for nothing."""

    member: str
    step: int
    tables: tuple[StepPositions, ...]


class UpdateStep(Command[AcknowledgedUpdate], effect=Effect.WRITES, retry=Retry.STEP):
    """One rank's gradients of a step; the last rank's applies them all (rule 6).

    `rows_checksum` is of the rows that they were computed with, all that the rank announced
    (`embstore.arithmetic.checksum`). If the store's are others, nothing is applied. `is_finite`
    says whether rule 9 accepts the whole update, of all ranks and shards, where the sender knows;
    None: whoever has all of it sees for itself.
    """

    member: str
    step: int
    tables: tuple[StepGradients, ...]
    options: UpdateOptions = UpdateOptions()
    rows_checksum: int | RowsChecksum | None = None
    is_finite: bool | None = None


class ReleaseStep(Command[AcknowledgedUpdate], effect=Effect.WRITES, retry=Retry.STEP):
    """Finish a step whose rows were read only."""

    member: str
    step: int


class SkipStep(Command[AcknowledgedUpdate], effect=Effect.WRITES, retry=Retry.STEP):
    """Finish a step whose gradients are not applied."""

    member: str
    step: int


class PutStepRows(Command[AcknowledgedUpdate], effect=Effect.WRITES):
    """Rows of a hot replica, of several tables of the member's session."""

    member: str
    tables: tuple[StepPut, ...]


# Access frequencies


class ExportProfile(Command[Profile], effect=Effect.LONG, right=Right.READ):
    """How often rows are accessed: as counted, or as imported."""

    source: ProfileSource = "counted"


class ImportProfile(Command[None], effect=Effect.LONG):
    """Rank rows by a profile. `rename` maps its tables' names to those of the store."""

    profile: Profile
    rename: dict[str, str]


class GetHotSet(Command[HotSet | None], effect=Effect.LONG, right=Right.READ):
    """The hot set that is pinned."""


class PinHotSet(Command[results.HotSetFacts], effect=Effect.LONG):
    """Keep the rows of a hot set in the cache, in place of the one before."""

    hot_set: HotSet


class UnpinHotSet(Command[results.HotSetFacts], effect=Effect.LONG):
    """Pin no hot set any more."""


class ClearCounts(Command[None], effect=Effect.TUNES):
    """Count accesses from nothing again."""


class WarmCache(Command[results.Warmed], effect=Effect.LONG):
    """Bring the most frequent rows into the cache."""

    share: float = WARM_SHARE
