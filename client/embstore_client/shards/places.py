"""A router's records of the members of sessions: their positions, announced and sent steps.

A member is the secret by which one rank is known in a session. Some shards may have finished a step
that other shards have not finished. Only the trainer that sent the step has its gradients, and can
send it to the remaining shards. Any other client that continues gets an error.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embstore import commands as c
from embstore.errors import SessionExpiredError
from embstore.results import Membership

if TYPE_CHECKING:
    from embstore_client.shards.split import Split

Splits = Mapping[str, "Split"]
"""For each table, which of a step's keys each shard owns."""


_SENT_MAX = 64
"""The number of sent steps that are remembered per rank. A rank cannot have so many unfinished
steps (`depth`)."""


@dataclass
class Place:
    """What this router knows about a member."""

    name: str = ""  # the session's name; "": another client has joined the member
    rank: int = 0
    world_size: int = 0  # 0: unknown
    map_version: int = 0  # the map by which the member joined, and its steps are split
    joined_at: tuple[int, ...] = ()  # the last finished step of each shard when it was joined
    steps: dict[int, tuple[c.StepKeys, Splits]] = field(default_factory=dict)
    """The steps that are announced and not finished."""
    has_left: bool = False
    """Whether the rank has to join again, or has joined again, as another member."""

    def behind(self, shards: int, step: int) -> list[int]:
        """Return the shards that have not finished a step, as far as this router knows."""
        return [s for s in range(shards) if not self.joined_at or self.joined_at[s] < step]


class Places:
    """A router's records of the members of sessions. Any thread may use it."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._sent: dict[tuple[str, int], dict[int, type | None]] = {}
        """For each session and rank, the last steps that this router sent, and for each step the
        class of the command that finishes it. The class is None if two attempts used different
        commands. A trainer with waits="none" has several unacknowledged steps, and a shard may lack
        all of them."""
        self._lock = threading.Lock()

    def joined(self, found: list[Membership], world_size: int, map_version: int) -> None:
        """Record a member, given the answer of each shard that it joined."""
        first, at = found[0], tuple(one.last_step for one in found)
        with self._lock:
            known = self._of(first.member).steps  # a repeated join keeps the announced steps
            left = {number: step for number, step in known.items() if number > min(at)}
            for member in self._members_of(first.name, first.rank):
                self._places[member] = Place(first.name, first.rank, has_left=True)
            self._places[first.member] = Place(
                first.name, first.rank, world_size, map_version, at, left
            )

    def check_map(self, member: str, map_version: int) -> None:
        """Raise SessionExpiredError if a member has joined by another map: in that case its session
        has ended, or is about to end."""
        place = self.of(member)
        if place.map_version not in (0, map_version):
            raise SessionExpiredError(
                f"session {place.name!r} ended when version {place.map_version} of the cluster's "
                "map was replaced; open it again: it goes on after its last finished step"
            )

    def of(self, member: str) -> Place:
        """Return the facts about a member; empty facts if there is no record of the member."""
        with self._lock:
            return self._of(member)

    def _of(self, member: str) -> Place:
        return self._places.get(member) or Place()

    def announced(self, member: str, steps: Mapping[int, tuple[c.StepKeys, Splits]]) -> None:
        """Record announced steps of a member."""
        with self._lock:
            self._places.setdefault(member, Place()).steps.update(steps)

    def may_send(self, member: str, command: Any, *, is_partial: bool) -> bool:
        """Return whether a step may be sent; if so, record it as sent.

        If some shards have finished the step, only the trainer that sent the step to these shards
        may send it to the other shards, and only by the same kind of command.
        """
        with self._lock:
            place = self._of(member)
            sent = self._sent.get((place.name, place.rank), {})
            is_as_before = sent.get(command.step) is type(command)
            if is_partial and not is_as_before:
                return False
            if place.name:
                is_first = command.step not in sent
                sent[command.step] = type(command) if is_first or is_as_before else None
                kept = sorted(sent)[-_SENT_MAX:]
                self._sent[place.name, place.rank] = {step: sent[step] for step in kept}
            return True

    def finished(self, member: str, step: int) -> None:
        """Forget a step, and all steps before it."""
        with self._lock:
            steps = self._of(member).steps
            for number in [n for n in steps if n <= step]:
                del steps[number]

    def left(self, member: str) -> None:
        """Forget the position of a member. The member's rank will join again, perhaps as another
        member, and may still complete the steps that the rank has sent."""
        with self._lock:
            if (place := self._places.get(member)) is not None:
                self._places[member] = Place(place.name, place.rank, has_left=True)

    def closed(self, member: str) -> None:
        """Forget a member and the steps that its rank has sent."""
        with self._lock:
            place = self._places.pop(member, None)
            if place is not None and place.name:
                self._forget(place.name, place.rank)

    def ended(self, name: str | None) -> None:
        """Forget a session and the steps that were sent in it; None: forget all sessions, after a
        restore."""
        with self._lock:
            self._forget(name)

    def _forget(self, name: str | None, rank: int | None = None) -> None:
        for member in self._members_of(name, rank):
            del self._places[member]
        for of in [of for of in self._sent if name in (None, of[0]) and rank in (None, of[1])]:
            del self._sent[of]

    def _members_of(self, name: str | None, rank: int | None = None) -> list[str]:
        """Return the members that are rank `rank` of session `name`. If `name` or `rank` is None,
        every session or every rank matches."""
        return [
            member
            for member, place in self._places.items()
            if name in (None, place.name) and rank in (None, place.rank)
        ]
