"""The replication role of a store: leader, standby, or replaced leader.

An embedded store is always a leader. A server (`embstore_server.replication.following`) sets the
role here. A store then refuses commands that write if the writes would be lost, and its stats show
the role.
"""

from time import monotonic
from typing import Any

from embstore.commands import Command, Effect, Trait
from embstore.errors import PermissionDeniedError, StoreClosedError


class ReplicationRole:
    """The role, and how far a standby has followed its leader. Any thread.

    standbys_needed : number of standbys that must have a command before it is acknowledged
    """

    def __init__(self, standbys_needed: int = 0) -> None:
        self.leader = ""
        """The address of the leader that this store follows; empty if it follows no leader."""
        self.replaced_by = ""
        """The promotion by which another store has replaced this store; empty if there is none."""
        self.asks = ""
        """The address of a server that this leader has replaced, and that may have replaced this
        leader in turn. This leader now asks that server.

        This leader takes no writes until the answer arrives. Empty if this leader asks no server.
        """
        self.is_empty = False
        """Whether this store is a standby that has not yet received the first commit of its
        leader."""
        self.is_connected = False
        self.reason = ""
        """The reason why this standby is not connected to its leader."""
        self.commands_behind = 0
        self.even_at = monotonic()
        """The last time at which this standby had all commands of its leader; a `monotonic`
        time."""
        self.commits_taken = 0
        self.standbys_needed = standbys_needed
        self.standbys = 0
        """The number of standbys that are connected to this leader."""
        self.standbys_dropped = 0
        self.writes_waiting = 0
        """The number of commands that wait for standbys before they are acknowledged."""

    @property
    def role(self) -> str:
        """The role as one word."""
        return "replaced" if self.replaced_by else "standby" if self.leader else "leader"

    @property
    def seconds_behind(self) -> float:
        """Seconds since this standby last had all commands of its leader; 0 for a leader."""
        return max(monotonic() - self.even_at, 0.0) if self.leader else 0.0

    def check(self, command: Command[Any], *, is_part: bool = False) -> None:
        """Refuse a command that this store cannot execute in its role. `is_part` is whether it is
        a shard's part of a command: a standby may lack what the other shards have executed."""
        if not self.leader and not self.replaced_by and not self.asks:
            return
        if self.is_empty and Trait.WITHOUT_COMMIT not in command.traits:
            raise StoreClosedError(
                f"this standby waits for the first commit of {self.leader}"
                f"{': ' if self.reason else ''}{self.reason}; send the call again later"
            )
        is_write = command.effect is Effect.WRITES or Trait.OF_THE_LEADER in command.traits
        if is_write or is_part:
            if self.role == "leader":
                raise StoreClosedError(
                    f"this server is starting: {self.asking}; send the call again later"
                )
            raise PermissionDeniedError(self.refusal)

    @property
    def asking(self) -> str:
        """A description of the answer that this leader awaits before it takes writes."""
        return f"{self.asks} is asked whether it has replaced this server"

    @property
    def refusal(self) -> str:
        """The reason why this store accepts no writes."""
        if self.replaced_by:
            return (
                f"this server was replaced by {self.replaced_by}: it takes no more writes; send "
                "them to the server that was promoted"
            )
        return f"this is a standby of {self.leader}: send writes there, or promote the standby"
