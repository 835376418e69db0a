"""What a command is: a value that says what it is to whoever passes it on."""

from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, auto
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from embstore.commands.joins import Join
from embstore.values import Value

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
    """What rows a command reads: one a key or bag, so that its own arguments tell how many, or all
    of a table."""

    NOTHING = auto()
    ROWS = auto()
    RECORDS = auto()
    """Weights and optimizer state."""
    TABLE = auto()
    """As they are when its turn has come."""
    OF_STEP = auto()
    """A step's, whose number its session knows."""


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


class Trait(Flag):
    """What else is true of a command, for those whom it concerns."""

    ADDS = auto()
    """Executed twice, it leaves other rows than executed once, whatever comes between."""
    OF_ANY_MAP = auto()
    """No cluster's map splits it: a shard executes it whatever map its sender has."""
    OF_THE_LEADER = auto()
    """A standby refuses it, as it does what writes."""
    ON_ITS_LABEL = auto()
    """Its right is needed on its label, as if that were a table's name."""
    AUDITED = auto()
    """The log says who gave it, as of all that needs the right to administrate."""
    JOINS = auto()
    """Its sender is not yet the member that it names."""
    LEAVES = auto()
    """Its sender is no member any more after it, whatever becomes of it."""
    OF_ALL_SHARDS = auto()
    """What it changes a cluster has alike on all shards, as what commands write."""
    WITHOUT_COMMIT = auto()
    """A standby answers it also before it has a commit of its leader."""
    ON_DEVICE = auto()
    """Its keys and gradients may be in the memory of the store's device; its rows come there."""
    BEGINS_EPOCH = auto()
    """Another epoch of the store begins with it, and with other rows if it writes."""


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
    traits: ClassVar[Trait]
    join: ClassVar[Join | None]

    def __init_subclass__(
        cls,
        *,
        effect: Effect,
        retry: Retry | None = None,
        right: Right | None = None,
        reads: Reads = Reads.NOTHING,
        traits: Trait | None = None,
        join: Join | None = None,
    ) -> None:
        """Make a command; one that writes is remembered unless `retry` says otherwise.

        `join` makes a cluster's answer of those of its shards, which are sent the command as it is;
        None: the router has a handler for it.
        """
        super().__init_subclass__()
        cls.effect, cls.reads, cls.traits = effect, reads, traits or Trait(0)
        cls.join = None if join is None else staticmethod(join)  # given answers alone
        cls.right = right or _RIGHTS[effect]
        cls.retry = retry or (Retry.WINDOW if effect is Effect.WRITES else Retry.FREE)
        COMMANDS[cls.__name__] = cls


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
