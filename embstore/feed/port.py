"""What a run needs of a store: the verbs of its sessions, here or on a server.

`embstore.lookahead.sessions.Sessions` is a port, and so is the network client's. Each has more
verbs and options than stand here.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from embstore.arrays import Keys, Rows
from embstore.feed.bags import StepBags
from embstore.results import AcknowledgedUpdate, Announced, Membership, SessionFacts

OnNonfinite = Literal["refuse", "skip"]


class SessionPort(Protocol):
    """The session verbs of a store that a trainer needs; all block, any thread.

    A port may also have `prefetch_step(member, step)`, which does not block and returns a
    `PrefetchedRows`.
    """

    def open(
        self,
        name: str,
        tables: tuple[str, ...],
        *,
        lookahead_steps_max: int,
        world_size: int,
        planner: str,
        shared: bool,
        lease_ms: int,
        rank_timeout_ms: int,
    ) -> SessionFacts:
        """Open a session, or find it open with the same options."""

    def join(self, name: str, rank: int, *, member: str) -> Membership:
        """Take a rank's place under a token that nobody can guess."""

    def announce(self, member: str, steps: Mapping[int, Mapping[str, Keys]]) -> Announced:
        """Announce the unique keys of steps, the next in order."""

    def lookup_step(self, member: str, step: int) -> dict[str, Rows]:
        """Return the rows of a step's announced keys."""

    def lookup_step_pooled(
        self, member: str, step: int, bags: Mapping[str, StepBags]
    ) -> dict[str, Rows]:
        """Return the pooled rows of a step's bags."""

    def update_step(
        self,
        member: str,
        step: int,
        gradients: Mapping[str, Rows],
        *,
        learning_rate: float | None,
        gradient_scale: float,
        on_nonfinite: OnNonfinite,
    ) -> AcknowledgedUpdate:
        """Finish a step by an update, one gradient for each announced key."""

    def release_step(self, member: str, step: int) -> AcknowledgedUpdate:
        """Finish a step that only read."""

    def skip_step(self, member: str, step: int) -> AcknowledgedUpdate:
        """Finish a step without its update."""

    def renew(self, member: str, *, timeout_s: float | None) -> SessionFacts:
        """Renew the rank's lease."""

    def close(self, member: str, *, forget: bool, timeout_s: float | None) -> None:
        """Leave the session, in which the member may not be."""


class PrefetchedRows(Protocol):
    """The rows of a step, on their way."""

    def result(self, timeout_s: float | None) -> dict[str, Rows]:
        """Wait for the rows of the announced keys."""
