"""Base classes of commands: values that describe themselves to the code that forwards them."""

from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, auto
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from embstore.commands.joins import Join
from embstore.values import Value

R = TypeVar("R", covariant=True)


class Effect(Enum):
    """The kind of change that a command makes, which decides how the engine executes the
    command."""

    READS = auto()
    WRITES = auto()
    TUNES = auto()
    LONG = auto()
    PROMPT = auto()


class Retry(Enum):
    """The condition for sending a command again when it is unknown whether it was executed."""

    FREE = auto()
    """No condition, because a second execution changes nothing."""
    WINDOW = auto()
    """The server must still remember the answer, by client and sequence number."""
    STEP = auto()
    """The session must still remember the answer, by member and step."""


class Reads(Enum):
    """The rows that a command reads.

    For ROWS and RECORDS the command's own arguments show the number of rows: one per key or bag.
    """

    NOTHING = auto()
    ROWS = auto()
    RECORDS = auto()
    """Weights and optimizer state."""
    TABLE = auto()
    """All rows of the table, as of the moment when the command is executed."""
    OF_STEP = auto()
    """The rows of a step; only the step's session knows their number."""


class Right(IntEnum):
    """The rights of a caller; each right includes the rights before it."""

    KNOWN = auto()
    """The server knows who the caller is. This right alone gives access to no table."""
    READ = auto()
    """The caller can read rows, and descriptions of tables."""
    WRITE = auto()
    """The caller can do a trainer's work: create tables, train, keep checkpoints."""
    ADMIN = auto()
    """The caller can do an operator's work: send commands that lose data for good, or affect other
    clients."""


class Trait(Flag):
    """Further properties of a command, for the layers that they concern."""

    ADDS = auto()
    """A second execution of the command changes rows again, even if no other command was executed
    in between."""
    OF_ANY_MAP = auto()
    """The command is not split by the map of a cluster: a shard executes it whichever map its
    sender has."""
    OF_THE_LEADER = auto()
    """A standby refuses the command, as it refuses commands that write."""
    ON_ITS_LABEL = auto()
    """The sender needs the command's right on its label, as if the label were the name of a
    table."""
    AUDITED = auto()
    """The server's messages name the sender, as for every command that needs the ADMIN right."""
    JOINS = auto()
    """The sender is not yet the member that the command names."""
    LEAVES = auto()
    """The sender is no longer a member after the command, even if the command fails."""
    OF_ALL_SHARDS = auto()
    """The command changes a property that must be equal on all shards of a cluster. Commands that
    write do not need this trait."""
    WITHOUT_COMMIT = auto()
    """A standby answers the command even before it has received a commit of its leader."""
    ON_DEVICE = auto()
    """The command's keys and gradients can be in the memory of the store's device; its rows are
    then written to that memory."""
    BEGINS_EPOCH = auto()
    """The command begins another epoch of the store. If the command also writes, the rows of the
    new epoch differ from those of the old epoch."""


_RIGHTS = {
    Effect.READS: Right.READ,
    Effect.WRITES: Right.WRITE,
    Effect.PROMPT: Right.KNOWN,
    Effect.TUNES: Right.ADMIN,
    Effect.LONG: Right.ADMIN,
}
"""The rights for commands that declare no right, by effect."""

COMMANDS: dict[str, type["Command[Any]"]] = {}
"""All commands by name."""


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
class Part(Value):
    """Base of commands, and of the values in their fields. Each subclass becomes a frozen
    dataclass."""

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
    can_be_checked: ClassVar[bool]
    """Whether a shard can check the command without executing it (`Executor.execute`). Such a
    command has the same effect if it is executed again."""

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
        """Declare a command. If `retry` is None, the server remembers the answer to a command that
        writes (WINDOW), and any other command can be sent again freely (FREE).

        `join` makes the cluster's answer from the answers of the shards; the whole command is sent
        to each shard. If `join` is None, the router has a handler for the command.
        """
        super().__init_subclass__()
        cls.effect, cls.reads, cls.traits = effect, reads, traits or Trait(0)
        cls.join = None if join is None else staticmethod(join)  # called with the answers alone
        cls.right = right or _RIGHTS[effect]
        cls.retry = retry or (Retry.WINDOW if effect is Effect.WRITES else Retry.FREE)
        cls.can_be_checked = cls.retry is Retry.WINDOW and Trait.ADDS not in cls.traits
        COMMANDS[cls.__name__] = cls

    @property
    def needs(self) -> Right:
        """The right that this command needs: `right`, unless its fields ask for less."""
        return self.right

    def short_answer(self, result: Any) -> Any:
        """Return a result without the parts that the command itself contains. The server remembers
        this short form."""
        return result

    def full_answer(self, short: Any) -> Any:
        """Return the whole result from its short form."""
        return short


def after_timeout(command: type[Command[Any]]) -> str:
    """Return advice about a command whose answer did not arrive in time; "" if no advice is
    needed."""
    if command.effect is Effect.WRITES:
        return "; it may have been applied: read t and the command number before another try"
    if command.retry is not Retry.FREE:
        return "; it may have been applied: look whether it was before another try"
    if command.effect is Effect.TUNES:
        return "; if it was started, it goes on to its end, and may be sent again"
    if command.effect is Effect.LONG:
        return "; it may be sent again"
    return ""
