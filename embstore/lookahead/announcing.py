"""What a rank announces, checked: which steps are new, and whether they may be.

An announcement is taken whole or not at all. A step that was announced with the same keys before is
passed over, so that an announcement may be sent again.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from embstore.arithmetic import unique
from embstore.arrays import Keys, as_keys
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.lookahead.session import Rank, Session
from embstore.lookahead.step import RankShare, Step
from embstore.tablestate import TableState


def share_of(session: Session, number: int, keys: Any) -> RankShare:
    """Return what a rank announces of a step, its keys checked and copied. Any thread.

    Raises
    ------
    InvalidArgumentError : a table that is not the session's, keys that repeat or are out of range.
    """
    where = f"session {session.name!r}: step {number}"
    given = mapping(keys, f"{where}: keys")
    tables = {name: session_table(session, name, where) for name in given}
    named = {name: as_keys(given[name], name).copy() for name in given}
    for name, table in tables.items():
        _check_keys(table, named[name], where)
    return RankShare.of(tables, named)


def announce(
    session: Session, rank: Rank, shares: Mapping[int, RankShare], key_bytes_left: int
) -> None:
    """Take the announced steps that are new. Under the lock.

    Raises
    ------
    InvalidArgumentError, CapacityError : none of them is taken.
    """
    new = _new(session, rank, shares)
    size = sum(8 * shares[number].key_count for number in new)
    if size > key_bytes_left:
        raise CapacityError(
            f"session {session.name!r}: {size} bytes of keys are announced, there is room for "
            f"{key_bytes_left} (limits.announced_bytes_max); announce fewer steps ahead"
        )
    for number in new:
        step = session.steps.setdefault(number, Step(number))
        step.shares[rank.rank] = shares[number]
        rank.announced = number


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


def mapping(value: Any, what: str) -> Mapping[Any, Any]:
    """Return a mapping, or raise InvalidArgumentError."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"expected {what} as a mapping, found {type(value).__name__}")
    return value


def step_number(value: Any) -> int:
    """Return the number of a step, or raise InvalidArgumentError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"expected the number of a step, found {value!r}")
    return int(value)


def session_table(session: Session, name: Any, where: str) -> TableState:
    """Return a table of a session, or raise InvalidArgumentError."""
    table = session.tables.get(name) if isinstance(name, str) else None
    if table is None:
        raise InvalidArgumentError(
            f"{where}: expected tables of the session, {sorted(session.tables)}, found {name!r}"
        )
    return table


def _check_keys(table: TableState, keys: Keys, where: str) -> None:
    if not len(keys):
        return
    low, high = int(keys.min()), int(keys.max())
    if low < 0 or high >= table.rows:
        raise InvalidArgumentError(
            f"{where}: table {table.name!r}: expected keys in [0, {table.rows}), found "
            f"{low if low < 0 else high}"
        )
    once, inverse = unique(keys)
    if len(once) != len(keys):
        again = int(once[np.argmax(np.bincount(inverse) > 1)])
        raise InvalidArgumentError(
            f"{where}: table {table.name!r}: expected each key once, found key {again} repeated"
        )
