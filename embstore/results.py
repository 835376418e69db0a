"""What calls return beside rows: acknowledgements, and kept checkpoints. Data only.

The embedded store and the network client return the same classes.
"""

from dataclasses import dataclass, field
from typing import Any

from embstore.config import TableConfig


@dataclass(frozen=True)
class Acknowledged:
    """What a mutating call became: its command number, and the table's t after it."""

    command: int
    t: int
    skipped: bool = False
    """True for an update with on_nonfinite="skip" that was: no row and no t has changed."""


@dataclass(frozen=True)
class AcknowledgedUpdate:
    """What an update of several tables became: its command number, and each table's new t."""

    command: int
    t: dict[str, int]
    skipped: bool = False


@dataclass(frozen=True)
class SessionFacts:
    """What a look-ahead session is."""

    name: str
    last_step: int
    """The last finished step, 0 for none; the next to announce is one more."""
    tables: tuple[str, ...]
    lookahead_steps_max: int
    world_size: int
    planner: str
    shared: bool
    lease_ms: int
    rank_timeout_ms: int = 60_000


@dataclass(frozen=True)
class Membership:
    """One rank's place in a session; `member` is what its calls name."""

    member: str
    name: str
    rank: int
    last_step: int


@dataclass(frozen=True)
class Announced:
    """How far a session has come: steps announced by this rank, and steps planned."""

    announced_step: int
    planned_step: int
    held_back: bool
    """Planning waits: the rows of the steps before leave no room for the next one's."""


@dataclass(frozen=True)
class TableFacts:
    """What of a table changes while it is trained, but for its rows."""

    rows: int
    t: int
    learning_rate: float


@dataclass(frozen=True)
class HotSetFacts:
    """Which hot set is to be pinned in the cache, and how much of it is."""

    version: int
    """0: none."""
    rows: int
    bytes: int
    """Of the rows, as the set says; 0: unknown."""
    pinned_rows: int


@dataclass(frozen=True)
class TableEntry:
    """One table as of a state."""

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
class State:
    """The store at a commit."""

    commit: int = 0
    command: int = 0
    tables: tuple[TableEntry, ...] = ()
    places: dict[str, int] = field(default_factory=dict)
    """Of each session that may be resumed, the last finished step."""


@dataclass(frozen=True)
class Checkpoint:
    """A state kept under a label, with what the caller wanted to find beside it."""

    label: str
    metadata: dict[str, Any]
    state: State
