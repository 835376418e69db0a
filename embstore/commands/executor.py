"""The interface of an object that executes commands."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from embstore.arrays import Rows
from embstore.commands.base import Command, R
from embstore.commands.steps import LookupStep


class RowsIn(Enum):
    """The memory in which a lookup makes its rows."""

    DEVICE = auto()
    """The memory of the device that has the tables."""


ON_DEVICE: Final = RowsIn.DEVICE

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PartOf:
    """The command of a cluster of which a shard's command is a part."""

    map_version: int
    """The version of the map by which the command was split."""
    command_id: int = 0
    """The id of the command, above 0 and below 2**63, the same for all parts; 0: the command does
    not write, or is sent to one shard. `sender_of` returns who has sent it."""
    is_check: bool = False
    """Whether the shard only checks whether it would execute its part, and changes nothing."""


COUNT_BITS: Final = 23
"""The bits of a command's id that count the commands of its sender. The 40 bits above are the
sender, a random number."""


def sender_of(command_id: int) -> int:
    """Return the sender of a cluster's command. It sends no command before all shards have answered
    its last one."""
    return command_id >> COUNT_BITS


class Executor(Protocol):
    """An object that executes commands. Any thread can call it."""

    def execute(
        self,
        command: Command[R],
        *,
        out: Any = None,
        timeout_s: float | None = None,
        progress: "Progress | None" = None,
        part_of: PartOf | None = None,
    ) -> R:
        """Execute a command and return its result.

        Parameters
        ----------
        out : for a command that reads rows: the arrays into which rows are written, one per table
            (None: new arrays are made); for `ReadRows`, the arrays for weights and for state; for
            `LookupStep` and `LookupStepPooled`, `out` can also be ON_DEVICE: new arrays are then
            made in the memory of the device that has the tables
        timeout_s : seconds to wait for an answer, or for the other ranks of a step; None: the
            timeout of the executor or of the session
        progress : for a command that takes long: called between pieces of the work with the amount
            done and the whole amount; an error that `progress` raises ends some commands (for
            example `GetDigest`)
        part_of : for a shard: the command of the cluster of which this command is a part; None:
            the command is for this shard under any map

        Returns
        -------
        The command's result. If the shard only checks its part, it returns nothing: it raises
        WritesPausedError if it would execute the command.

        Raises
        ------
        EmbstoreError : nothing has changed, unless the docstring of the error's class states
            otherwise.
        """

    rounds_rows: bool
    """Whether rows of lookups arrive rounded, as with `connect(wire_dtype="float16")`."""

    is_embedded: bool
    """Whether commands are executed in this process, so that their arrays are not sent over a
    wire."""

    def check_device(self, name: str | None = None) -> None:
        """Check that rows of steps can be returned ON_DEVICE.

        name : the device's name in this process, if a certain device is required

        Raises
        ------
        InvalidArgumentError : this process cannot reach the memory of the device that has the
            tables, or that device is not `name`; the message contains the reason.
        """

    def prefetch(self, command: LookupStep) -> "Prefetched | None":
        """Request a step's rows in advance. Return at once, with an object that can wait for the
        rows.

        Returns None if a request in advance would gain nothing.
        """

    def warm_up(self) -> None:
        """Compile every kernel that commands of this executor need."""

    def close(self) -> None:
        """Close the executor. The engine commits, and releases its directory; a client
        disconnects."""


class Prefetched(Protocol):
    """The rows of a step that were requested, and that may not have arrived yet."""

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for the rows of the announced keys, and return them by table."""
