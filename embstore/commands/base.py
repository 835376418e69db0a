"""Base classes of commands: values that describe themselves to the code that passes them on."""

from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, auto
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from embstore.commands.joins import Join
from embstore.values import Value

R = TypeVar("R", covariant=True)


class Effect(Enum):
    """The kind of change that a command makes, and its way to the engine."""

    READS = auto()
    WRITES = auto()
    TUNES = auto()
    LONG = auto()
    PROMPT = auto()


class Retry(Enum):
    """The condition for sending a command again, when it is unknown whether it was executed."""

    FREE = auto()
    """No condition: executed twice, it leaves the same state as executed once."""
    WINDOW = auto()
    """The server remembers its answer by client and sequence."""
    STEP = auto()
    """The session remembers it by member and step."""


class Reads(Enum):
    """The rows that a command reads: one a key or bag, so that its own arguments give their number,
    or all of a table."""

    NOTHING = auto()
    ROWS = auto()
    RECORDS = auto()
    """Weights and optimizer state."""
    TABLE = auto()
    """The rows of the table at the command's turn."""
    OF_STEP = auto()
    """A step's rows, whose number its session knows."""


class Right(IntEnum):
    """The rights of a caller; each right includes those below it."""

    KNOWN = auto()
    """Be a caller that the server knows."""
    READ = auto()
    """Read rows, and descriptions of tables."""
    WRITE = auto()
    """Do a trainer's work: create tables, train, keep checkpoints."""
    ADMIN = auto()
    """Do an operator's work: commands that lose data for good, or concern other clients."""


class Trait(Flag):
    """Further properties of a command, for the layers that they concern."""

    ADDS = auto()
    """Executed twice, it leaves other rows than executed once, whichever commands come between."""
    OF_ANY_MAP = auto()
    """No cluster's map splits it: a shard executes it whichever map its sender has."""
    OF_THE_LEADER = auto()
    """A standby refuses it, as it refuses commands that write."""
    ON_ITS_LABEL = auto()
    """Its right is needed on its label, as if that were a table's name."""
    AUDITED = auto()
    """The log names its sender, as for every command that needs the right to administrate."""
    JOINS = auto()
    """Its sender is not yet the member that it names."""
    LEAVES = auto()
    """Its sender is no member any more after it, even if it fails."""
    OF_ALL_SHARDS = auto()
    """It changes a property that a cluster has alike on all shards, as commands that write do."""
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
"""The rights of commands that do not name one."""

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

        `join` makes a cluster's answer from the answers of its shards, each of which is sent the
        command as it is; None: the router has a handler for it.
        """
        super().__init_subclass__()
        cls.effect, cls.reads, cls.traits = effect, reads, traits or Trait(0)
        cls.join = None if join is None else staticmethod(join)  # given answers alone
        cls.right = right or _RIGHTS[effect]
        cls.retry = retry or (Retry.WINDOW if effect is Effect.WRITES else Retry.FREE)
        COMMANDS[cls.__name__] = cls

    def short_answer(self, result: Any) -> Any:
        """Return a result without the parts that the command has: it is remembered like this."""
        return result

    def full_answer(self, short: Any) -> Any:
        """Return the result of which `short` is the short answer."""
        return short


def after_timeout(command: type[Command[Any]]) -> str:
    """Return advice about a command whose answer did not come in time; "": none is needed."""
    if command.effect is Effect.WRITES:
        return "; it may have been applied: read t and the command number before another try"
    if command.retry is not Retry.FREE:
        return "; it may have been applied: look whether it was before another try"
    if command.effect is Effect.TUNES:
        return "; if it was started, it goes on to its end, and may be sent again"
    if command.effect is Effect.LONG:
        return "; it may be sent again"
    return ""
