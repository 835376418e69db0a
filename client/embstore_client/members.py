"""The layer of members: the facts that this client keeps about its members of sessions.

A member is the secret by which a rank is known in its calls. A call of a step may wait for other
ranks. The call's deadline is therefore the connection's timeout plus the session's
`rank_timeout_ms`, which the server returned when the member joined. If a rank has failed, the
server names that rank (RankFailedError) before the deadline passes. In a session of one rank the
deadline is the connection's timeout alone, so a call of a step detects a server that has ended as
soon as other calls do. A lost call is sent again, since the server identifies each call by member
and step.

A session exists only in the server's process. After a restart the next call raises
SessionExpiredError, and has changed nothing. The exception is a call that finishes a step: if the
server ended during one of the call's attempts, the call raises OutcomeUnknownError. To continue,
open the session's name again, and train on after the session's new `last_step`, which is the last
step of the server's last commit. Then no step is applied twice or left out. Rows looked up and keys
announced for later steps are void.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from embstore.commands import Command, Effect, Retry, Trait
from embstore.errors import OutcomeUnknownError, SessionExpiredError
from embstore.results import Membership, SessionFacts
from embstore_client.call import Below, Call


@dataclass
class Place:
    """The facts that this client keeps about one member."""

    rank_timeout_s: float = 0.0
    """The session's `rank_timeout_ms` in seconds; 0 for a member that another client has joined,
    until the server returns the value."""
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """For each announced, unfinished step: its number of keys by table, in announced order."""

    def finished(self, step: int) -> None:
        """Forget a step, and all steps before it: steps are finished in their order."""
        for number in [n for n in tuple(self.counts) if n <= step]:  # threads announce meanwhile
            self.counts.pop(number, None)


class Members:
    """Deadlines and announced keys of members, also of members that another client has joined."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s` is the timeout of the connection."""
        self._timeout_s = timeout_s
        self.places: dict[str, Place] = {}
        """The facts by member, until the member leaves or its session has expired."""
        self._writes: Counter[str] = Counter()

    def timeout_s(self, member: str) -> float:
        """Return the timeout of a call for a member's step, in seconds."""
        place = self.places.get(member)
        return self._timeout_s + (place.rank_timeout_s if place is not None else 0.0)

    def writes(self, member: str) -> int:
        """Return how many commands that may have written rows a member has sent outside of
        steps."""
        return self._writes[member]

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call. If the call's error shows that the session has ended, forget the call's
        member."""
        command: Any = call.command
        if hasattr(command, "members"):
            call.command = replace(command, members=tuple(self.places))
        member = getattr(command, "member", None)
        if member is None:
            return below(call)
        place = self.places.get(member) or Place()
        is_of_step = hasattr(command, "step")
        if is_of_step:
            call.counts = place.counts.get(command.step, {})
            if call.timeout_s is None:
                call.timeout_s = self._timeout_s + place.rank_timeout_s
        try:
            value = below(call)
        except (SessionExpiredError, OutcomeUnknownError):
            self.places.pop(member, None)
            raise
        finally:
            if command.effect is Effect.WRITES and not is_of_step:
                self._writes[member] += 1
        self._note(command, place, value)
        return value

    def _note(self, command: Command[Any], place: Place, value: Any) -> None:
        """Remember the facts in a member's command and its answer."""
        if isinstance(value, Membership):
            self.places[value.member] = Place(value.rank_timeout_ms / 1000)
        elif isinstance(value, SessionFacts):
            others_ms = 0 if value.world_size == 1 else value.rank_timeout_ms
            place.rank_timeout_s = others_ms / 1000
        member, steps = getattr(command, "member", ""), getattr(command, "steps", ())
        if steps:
            self.places.setdefault(member, place)  # the member may be joined by another client
        for step in steps:
            place.counts[step.step] = {part.table: len(part.keys) for part in step.tables}
        if command.retry is Retry.STEP:
            place.finished(getattr(command, "step", 0))
        if Trait.LEAVES in command.traits:
            self.places.pop(member, None)
            self._writes.pop(member, None)
