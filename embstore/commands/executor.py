"""The interface of an object that executes commands."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Protocol

from embstore.arrays import Rows
from embstore.commands.base import Command, R
from embstore.commands.steps import LookupStep


class RowsIn(Enum):
    """The place where a lookup makes its rows."""

    DEVICE = auto()
    """In the memory of the device that has the tables."""


ON_DEVICE: Final = RowsIn.DEVICE

Progress = Callable[[int, int], None]


class Executor(Protocol):
    """An object that executes commands. Any thread."""

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
        timeout_s : how long to wait for an answer, or for the other ranks of a step; None: the
            executor's timeout, or the session's
        progress : for a command that takes long: called between its pieces with the work done, and
            the whole; an error that it raises ends some of them (`GetDigest`, say)
        map_version : for a shard: the version of the map by which the command was split; 0: the
            command is for this shard, with any map

        Raises
        ------
        EmbstoreError : unless its docstring says otherwise, nothing has changed.
        """

    rounds_rows: bool
    """Rows of lookups come rounded, as by `connect(wire_dtype="float16")`."""

    is_embedded: bool
    """Commands are executed in this process: their arrays are passed, and not sent."""

    def check_device(self, name: str | None = None) -> None:
        """Check that rows of steps may come ON_DEVICE.

        name : a device's name in this process, if it must be that one

        Raises
        ------
        InvalidArgumentError : this process does not reach the memory of the device that has the
            tables, or it is another device; it says why.
        """

    def prefetch(self, command: LookupStep) -> "Prefetched | None":
        """Ask for a step's rows, and return at once an object that waits for them; None: there is
        nothing to gain by it."""

    def warm_up(self) -> None:
        """Compile every kernel that commands of this executor need."""

    def close(self) -> None:
        """End: the engine commits and releases its directory; a client ends its connection."""


class Prefetched(Protocol):
    """The rows of a step, on their way."""

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for the rows of the announced keys, by table."""
