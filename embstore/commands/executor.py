"""The interface of an object that executes commands."""

from collections.abc import Callable
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


class Executor(Protocol):
    """An object that executes commands. Any thread can call it."""

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
        out : for a command that reads rows: arrays for them, one per table (None: a new one); for
            `ReadRows` weights and state; for `LookupStep` and `LookupStepPooled` also ON_DEVICE:
            new arrays in the memory of the device that has the tables
        timeout_s : how long to wait for an answer, or for the other ranks of a step; None: the
            executor's timeout, or the session's
        progress : for a command that takes long: called between its pieces with the work done and
            the whole work; an error that it raises ends some commands (`GetDigest`, for example)
        map_version : for a shard: the version of the map by which the command was split; 0: the
            command is for this shard under any map

        Raises
        ------
        EmbstoreError : nothing has changed, unless the docstring of the error's class differs.
        """

    rounds_rows: bool
    """Rows of lookups arrive rounded, as with `connect(wire_dtype="float16")`."""

    is_embedded: bool
    """Commands are executed in this process: their arrays are passed without a copy over a wire."""

    def check_device(self, name: str | None = None) -> None:
        """Check that rows of steps can be returned ON_DEVICE.

        name : the device's name in this process, if a certain device is required

        Raises
        ------
        InvalidArgumentError : this process cannot reach the memory of the device that has the
            tables, or that device is not `name`; the message contains the reason.
        """

    def prefetch(self, command: LookupStep) -> "Prefetched | None":
        """Request a step's rows, and return at once an object that waits for them.

        Returns None if a request ahead would gain nothing.
        """

    def warm_up(self) -> None:
        """Compile every kernel that commands of this executor need."""

    def close(self) -> None:
        """Close the executor: the engine commits and releases its directory; a client
        disconnects."""


class Prefetched(Protocol):
    """The rows of a step that were requested and have not arrived yet."""

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for the rows of the announced keys, and return them by table."""
