"""The layer of members: this client's knowledge of its places in sessions.

A call of a step may wait for other ranks, so its deadline is the connection's and beyond it the
session's `rank_timeout_ms`, as the server said when the member joined: a rank that is gone is named
(RankFailedError) before it passes. Where there are no others, it is the connection's alone: a
server that is gone is noticed as by any call. A lost call is sent again, since the server knows
each by member and step.

A session lives in the server's process. The next call after a restart raises SessionExpiredError,
and has changed nothing; a call that finishes a step, of which an attempt was out when the server
ended, raises OutcomeUnknownError. No step can be done twice or left out: open the name again, and
go on after the `last_step` that it has then, the one of the server's last commit. Rows looked up
and keys announced for later steps are void.
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
    """This client's knowledge of a member."""

    rank_timeout_s: float = 0.0
    """0 for a member that another client has joined, until the server has sent it."""
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """For each announced and unfinished step how many keys each table has, in announced order."""

    def finished(self, step: int) -> None:
        """Forget a step, and those before it: steps are finished in their order."""
        for number in [n for n in tuple(self.counts) if n <= step]:  # another thread announces
            self.counts.pop(number, None)


class Members:
    """Deadlines and announced keys of members. One that another client has joined is as good."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s` is the connection's."""
        self._timeout_s = timeout_s
        self.places: dict[str, Place] = {}
        """By member, until it leaves or has expired."""
        self._writes: Counter[str] = Counter()

    def timeout_s(self, member: str) -> float:
        """Return how long a call of a member's step may take."""
        place = self.places.get(member)
        return self._timeout_s + (place.rank_timeout_s if place is not None else 0.0)

    def writes(self, member: str) -> int:
        """Return how many commands of a member, that are of no step, may have written rows."""
        return self._writes[member]

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call; forget a member whose session has ended."""
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
            self.places.setdefault(member, place)  # another client may have joined it
        for step in steps:
            place.counts[step.step] = {part.table: len(part.keys) for part in step.tables}
        if command.retry is Retry.STEP:
            place.finished(getattr(command, "step", 0))
        if Trait.LEAVES in command.traits:
            self.places.pop(member, None)
            self._writes.pop(member, None)
