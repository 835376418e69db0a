"""The replication role of a store: leader, standby, or replaced.

An embedded store is always the leader. A server (`embstore_server.replication.following`) sets the
role here. Commands that write are then refused where they would be lost, and stats show the role.
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
        """The address of the leader that this store follows; empty if it follows none."""
        self.replaced_by = ""
        """The promotion by which another store has replaced this one; empty if none has."""
        self.asks = ""
        """The address of the server that this leader has replaced, while this leader asks it
        whether it has replaced this leader in turn.

        This leader takes no writes meanwhile. Empty if it does not ask.
        """
        self.is_empty = False
        """Whether this store is a standby that has not received the first commit of its leader
        yet."""
        self.is_connected = False
        self.reason = ""
        """Why it is not connected."""
        self.commands_behind = 0
        self.even_at = monotonic()
        """The last time at which the standby had all commands of its leader, by `monotonic`."""
        self.commits_taken = 0
        self.standbys_needed = standbys_needed
        self.standbys = 0
        """The number of connected standbys."""
        self.standbys_dropped = 0
        self.writes_waiting = 0
        """The number of commands that wait for standbys."""

    @property
    def role(self) -> str:
        """The role as one word."""
        return "replaced" if self.replaced_by else "standby" if self.leader else "leader"

    @property
    def seconds_behind(self) -> float:
        """Seconds since a standby last had all commands of its leader; 0 for a leader."""
        return max(monotonic() - self.even_at, 0.0) if self.leader else 0.0

    def check(self, command: Command[Any]) -> None:
        """Refuse a command that this store cannot execute in its role."""
        if not self.leader and not self.replaced_by and not self.asks:
            return
        if self.is_empty and Trait.WITHOUT_COMMIT not in command.traits:
            raise StoreClosedError(
                f"this standby waits for the first commit of {self.leader}"
                f"{': ' if self.reason else ''}{self.reason}; send the call again later"
            )
        if command.effect is Effect.WRITES or Trait.OF_THE_LEADER in command.traits:
            if self.role == "leader":
                raise StoreClosedError(
                    f"this server is starting: {self.asking}; send the call again later"
                )
            raise PermissionDeniedError(self.refusal)

    @property
    def asking(self) -> str:
        """The answer that this leader awaits before it takes writes."""
        return f"{self.asks} is asked whether it has replaced this server"

    @property
    def refusal(self) -> str:
        """Why this store accepts no writes."""
        if self.replaced_by:
            return (
                f"this server was replaced by {self.replaced_by}: it takes no more writes; send "
                "them to the server that was promoted"
            )
        return f"this is a standby of {self.leader}: send writes there, or promote the standby"
