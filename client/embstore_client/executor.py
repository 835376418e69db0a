"""A server as an executor: a chain of layers, built here, each with one concern.

checked       arguments in normal form            embstore.checks
Members       deadlines; keys that were announced members
KnownIds      the id of each table's name         known_tables
Sized         how large a call may be             sending
OnDevice      arrays in a GPU's memory            device_calls
EarlyRows     rows of a step, put together        step_rows
Unique        each key once                       shares
 or Narrow    each key once, two bytes a value    narrow_shares
Sent          a message, over the transport       sending, transport
"""

from functools import partial
from typing import Any, TypeVar

from embstore.arithmetic.denormals import kept
from embstore.checks import checked
from embstore.commands import Command, LookupStep, PartOf, Progress
from embstore.results import ServerInfo
from embstore_client.call import Call, Layer, chained
from embstore_client.device_calls import OnDevice, check_exact
from embstore_client.known_tables import KnownIds, KnownTables
from embstore_client.members import Members
from embstore_client.narrow_shares import Narrow
from embstore_client.sending import Sent, Sized
from embstore_client.shares import Unique
from embstore_client.step_rows import Assembly, EarlyRows, StepRows
from embstore_client.transport import Transport
from embstore_proto.frame import NARROW
from embstore_proto.verbs import VERBS

R = TypeVar("R")


class RemoteExecutor:
    """Executes commands on a server. Any thread may use it."""

    is_embedded = False

    def __init__(self, transport: Transport, wire_dtype: str = "float32") -> None:
        self.transport = transport
        self._wire_dtype = wire_dtype
        self.rounds_rows = wire_dtype in NARROW
        """Whether the rows of lookups are rounded."""
        self.connected_by: dict[str, Any] | None = None
        """The arguments by which another process can call `connect`; they lack the token."""
        self.members = Members(transport.timeout_s)
        self.tables = KnownTables(self.execute)
        config_of = self.tables.config_of
        sent = Sent(transport, config_of, wire_dtype)
        layers: list[Layer] = [
            self.members,
            KnownIds(self.tables),
            Sized(transport, config_of),
            OnDevice(config_of, wire_dtype, sent),
            EarlyRows(),
            Narrow(wire_dtype) if self.rounds_rows else Unique(transport.wire),
        ]
        self._execute = chained(layers, sent)

    def __repr__(self) -> str:
        return f"at {self.transport.address}"

    @property
    def info(self) -> ServerInfo | None:
        """The facts that the server returned last; None: the server has not been asked yet."""
        return self.transport.info

    @kept
    def execute(
        self,
        command: Command[R],
        *,
        out: Any = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        part_of: PartOf | None = None,
    ) -> R:
        """Execute a command on the server; see `embstore.commands.Executor`.

        Raises DeadlineError if the server did not answer in time; or the server's own error.
        """
        call = Call(checked(command), out, timeout_s, progress, part_of)
        result: R = self._execute(call)
        return result

    def prefetch(self, command: LookupStep) -> StepRows:
        """Ask for a step's rows, and return at once an object that receives them."""
        command, assembly = checked(command), Assembly({})

        def fetch(timeout_s: float) -> dict[str, Any]:
            read = self._execute(Call(command, assembly, timeout_s))
            return {table.table: table.rows for table in read.tables}

        seconds = self.members.timeout_s(command.member)
        writes = partial(self.members.writes, command.member)
        return StepRows(command.step, assembly, fetch, seconds, writes)

    def check_device(self, name: str | None = None) -> None:
        """Have the server share its GPU's memory; see `embstore.commands.Executor`."""
        check_exact(self._wire_dtype)
        self.transport.share_device(VERBS["LookupStep"], name)

    def warm_up(self) -> None:
        """Do nothing: a server compiles its kernels before it reports that it is ready."""

    def close(self) -> None:
        """End the connection. Running calls are interrupted. Closing twice is harmless."""
        self.transport.close()
