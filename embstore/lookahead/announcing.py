"""Announcements of steps. A call announces all of its steps, in order, or no step.

A rank can repeat an announcement: a step that it has already announced with the same keys is
ignored. The planner's threads begin to plan announced steps at once.
"""

from collections.abc import Callable, Mapping

import numpy as np

from embstore import commands as c
from embstore.arithmetic import unique
from embstore.arrays import Keys, outside
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore.lookahead.finishing import Finishing
from embstore.lookahead.registry import Registry
from embstore.lookahead.session import Rank, Session, same_error
from embstore.lookahead.step import RankShare, Step
from embstore.results import Announced
from embstore.tables.state import TableState
from embstore.tables.tables import Tables


class Announcing:
    """Takes the announcements of one store's sessions. Any thread."""

    def __init__(self, tables: Tables, registry: Registry, finishing: Finishing) -> None:
        self._tables = tables
        self._registry = registry
        self._planner = registry.planner
        self._finishing = finishing
        self.owner_bytes_max: Callable[[str], int | None] = lambda _: None
        """A function that returns the most bytes of keys that the sessions of an owner can have
        announced together; None: only the bound for all sessions applies. A server sets the
        function. It is called under the lock."""

    def take(self, command: c.Announce) -> Announced:
        """Announce all steps of a command, or no step.

        Raises
        ------
        InvalidArgumentError : a step is not the next step, or is more than the session's
            lookahead_steps_max ahead; keys repeat or are out of range; a table is not in the
            session.
        CapacityError : the keys have more bytes than can be announced together.
        """
        with self._planner.lock:
            session, rank = self._registry.member(command.member)
        limit = self._tables.limits.call_bytes_max
        shares = {step.step: _share_of(session, step, limit) for step in command.steps}
        with self._planner.changed:
            session.check_live()
            new = _new(session, rank, shares)
            self._check_room(session, sum(8 * shares[number].key_count for number in new))
            if rank.is_done and new:
                raise InvalidArgumentError(
                    f"session {session.name!r}: rank {rank.rank} has announced step "
                    f"{rank.announced} as its last; leave the session, and open it again"
                )
            for number in new:
                step = session.steps.setdefault(number, Step(number))
                step.shares[rank.rank] = shares[number]
                rank.announced = number
            rank.is_done |= command.is_last
            self._planner.notify()
        if command.is_last:
            self._finishing.finish_sent(session)
        with self._planner.changed:
            session.check_live()
            if (
                rank.is_done
                and (failed := session.left_alone(rank, session.clock.now())) is not None
            ):
                self._planner.end(session, failed)
                raise same_error(failed)
            is_held_back = session.waiting_since is not None
            at_work = session.ranks_at_work
            return Announced(rank.announced, session.planned_step, is_held_back, at_work)

    def announced_bytes(self, owner: str | None = None) -> int:
        """Return the bytes of the keys that the sessions of one owner, or of all owners (None),
        have announced."""
        with self._planner.lock:
            live = self._registry.sessions.values()
            return sum(one.key_bytes for one in live if owner is None or one.owner == owner)

    def _check_room(self, session: Session, size: int) -> None:
        left = self._tables.limits.announced_bytes_max - self.announced_bytes()
        if size > left:
            raise CapacityError(
                f"session {session.name!r}: {size} bytes of keys are announced, there is room for "
                f"{left} (limits.announced_bytes_max); announce fewer steps ahead"
            )
        owner, most = session.owner, self.owner_bytes_max(session.owner)
        if size and most is not None and size > (left := most - self.announced_bytes(owner)):
            whose = f"{owner!r} has" if owner else "there is"
            raise CapacityError(
                f"session {session.name!r}: {size} bytes of keys are announced, {whose} room for "
                f"{left} of {most} (announced_bytes); announce fewer steps ahead"
            )


def _share_of(session: Session, step: c.StepKeys, call_bytes_max: int) -> RankShare:
    """Return a rank's share of an announced step, with checked and copied keys. Any thread."""
    where = f"session {session.name!r}: step {step.step}"
    tables = {part.table: session.table(part.table, where) for part in step.tables}
    size = 0
    for part in step.tables:
        table = tables[part.table]
        _check_keys(table, part.keys, where)
        size += len(part.keys) * (8 + VALUE_BYTES * table.dim)
    if size > call_bytes_max:
        raise InvalidArgumentError(
            f"{where}: expected keys and rows of at most {call_bytes_max} bytes "
            f"(limits.call_bytes_max), found {size}; make smaller batches"
        )
    return RankShare.of(tables, {part.table: part.keys.copy() for part in step.tables})


def _new(session: Session, rank: Rank, shares: Mapping[int, RankShare]) -> list[int]:
    new: list[int] = []
    for number, share in shares.items():
        where = f"session {session.name!r}: step {number}"
        if 0 < number <= session.last_step:
            continue
        before = session.steps[number].shares.get(rank.rank) if number in session.steps else None
        if before is not None:
            if not before.equals(share):
                raise InvalidArgumentError(f"{where} was announced with other keys")
            continue
        expected = rank.announced + 1 + len(new)
        if number != expected:
            raise InvalidArgumentError(f"{where} was announced out of order: expected {expected}")
        most = session.facts.lookahead_steps_max
        if number > session.last_step + most:
            raise InvalidArgumentError(
                f"{where} is more than lookahead_steps_max = {most} steps beyond the last "
                f"finished one, {session.last_step}"
            )
        new.append(number)
    return new


def _check_keys(table: TableState, keys: Keys, where: str) -> None:
    if not len(keys):
        return
    if (error := outside(keys, table.rows, table.name)) is not None:
        raise InvalidArgumentError(f"{where}: {error}")
    once, inverse = unique(keys)
    if len(once) != len(keys):
        again = int(once[np.argmax(np.bincount(inverse) > 1)])
        raise InvalidArgumentError(
            f"{where}: table {table.name!r}: expected each key once, found key {again} repeated"
        )
