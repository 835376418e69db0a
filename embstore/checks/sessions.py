"""Checks of commands of look-ahead sessions."""

from typing import Any, get_args

import numpy as np

from embstore import commands as c
from embstore.arrays import Inverse, as_array, as_keys, is_on_device, length, refusal, rows_of
from embstore.checks.arguments import (
    UINT64_MAX,
    Checks,
    expect,
    flag,
    integer,
    is_integer,
    one_of,
    text,
)
from embstore.checks.parts import added_t, checked_bags, options_of, table_name, tables_of
from embstore.errors import InvalidArgumentError, SessionExpiredError, StepNotFoundError

LOOKAHEAD_STEPS_MAX = 1024
"""Maximum number of steps that a session looks ahead: the pin counter of a cache slot ends at
2,047."""
WORLD_SIZE_MAX = 1024
GROUP_MAX = 1024
MS_MAX = 86_400_000
LEASE_MS_MAX = 600_000
"""Maximum length of a lease. A trainer that has died keeps its tables for at most this time; a live
trainer renews its lease."""
WAITS = get_args(c.Waits)
MEMBER_CHARACTERS = range(16, 65)


def member_name(member: Any) -> str:
    """Return a member's secret, if it can be one; the session checks whether it is known."""
    if not isinstance(member, str) or not member.isascii() or not member.isprintable():
        raise SessionExpiredError(f"no session has a member {member!r}; open it and join again")
    return member


def check_planner(planner: Any) -> tuple[str, int]:
    """Return the kind of a planner, and the number of steps that the planner plans together."""
    match str(planner).partition(":"):
        case ("per_step" | "window" as kind, "", ""):
            return kind, 1
        case ("group", ":", count) if count in _GROUPS:
            return "group", int(count)
    raise InvalidArgumentError(
        f'expected planner "per_step", "window" or "group:N" with N from 1 to {GROUP_MAX}, '
        f"found {str(planner)[:80]!r}"
    )


_GROUPS = frozenset(map(str, range(1, GROUP_MAX + 1)))


def _open_session(command: c.OpenSession) -> c.OpenSession:
    name = text(command.name, "a session name")
    tables = _session_tables(command.tables)
    check_planner(command.planner)
    shared, waits = flag(command.shared, "shared"), one_of(command.waits, "waits", WAITS)
    if shared and waits != "late":
        raise InvalidArgumentError(
            f'expected a session with waits="{waits}" to be the only writer of its tables, found '
            "shared=True"
        )
    steps_max = LOOKAHEAD_STEPS_MAX
    return c.OpenSession(
        name,
        tables,
        integer(command.lookahead_steps_max, "lookahead_steps_max", 1, steps_max),
        integer(command.world_size, "world_size", 1, WORLD_SIZE_MAX),
        str(command.planner),
        shared,
        integer(command.lease_ms, "lease_ms", 1, LEASE_MS_MAX),
        integer(command.rank_timeout_ms, "rank_timeout_ms", 1, MS_MAX),
        waits,
    )


def _session_tables(tables: Any) -> tuple[str, ...]:
    is_list = isinstance(tables, list | tuple)
    expect(is_list and len(tables) > 0, "tables as a list of names", tables)
    expect(all(isinstance(name, str) for name in tables), "tables as a list of names", tables)
    expect(len(set(tables)) == len(tables), "each table once", list(tables))
    return tuple(map(table_name, tables))


def _join_session(command: c.JoinSession) -> c.JoinSession:
    if not isinstance(command.name, str) or not command.name.isprintable():
        raise SessionExpiredError(f"no session {command.name!r} is open; open it, then join")
    rank = integer(command.rank, "rank", 0, 2**32 - 1)
    member = command.member
    is_secret = isinstance(member, str) and len(member) in (0, *MEMBER_CHARACTERS)
    if not is_secret or not member.isascii() or not member.isprintable():
        raise InvalidArgumentError("expected a member of 16 to 64 characters, chosen at random")
    return c.JoinSession(command.name, rank, member)


def step_number(step: Any) -> int:
    """Return the number of a step. The session checks whether the step was announced."""
    if is_integer(step) and not 0 <= step <= UINT64_MAX:
        raise StepNotFoundError(f"expected the number of a step from 0 to 2**64 - 1, found {step}")
    return integer(step, "the number of a step", 0)


def _of_step(command: Any) -> Any:
    member_name(command.member)
    step_number(command.step)
    return command


def _step_part(name: Any) -> str:
    """Return the name of a table. The session checks whether the table is one of its tables."""
    if not isinstance(name, str) or not name.isprintable():
        raise InvalidArgumentError(f"expected tables of the session, found {name!r}")
    return name


def _announce(command: c.Announce) -> c.Announce:
    member_name(command.member)
    count = len(command.steps)
    expect(count <= LOOKAHEAD_STEPS_MAX, f"at most {LOOKAHEAD_STEPS_MAX} steps in a call", count)
    steps = tuple(
        c.StepKeys(
            integer(step.step, "the number of a step", 0), tables_of(step.tables, _step_table)
        )
        for step in command.steps
    )
    numbers = [step.step for step in steps]
    for number in numbers if len(set(numbers)) < count else ():
        expect(numbers.count(number) == 1, "each step once in a call", number)
    return c.Announce(command.member, steps, bool(command.is_last))


def _step_table(part: c.StepTable) -> c.StepTable:
    return c.StepTable(_step_part(part.table), as_keys(part.keys, part.table))


def _lookup_step_pooled(command: c.LookupStepPooled) -> c.LookupStepPooled:
    _of_step(command)
    tables = tables_of(command.tables, _step_bags)
    return c.LookupStepPooled(command.member, int(command.step), tables)


def _step_bags(part: c.StepBags) -> c.StepBags:
    name = _step_part(part.table)
    inverse = _inverse(part.inverse, name)
    bags = None if part.bags is None else checked_bags(part.bags, len(inverse), name)
    return c.StepBags(name, inverse, bags)


def _inverse(given: Any, table: str) -> Inverse:
    """Return, for each occurrence of a key, the index of the key among the announced keys. The
    upper bound of the indices is checked later."""
    inverse: Any = given
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype == np.int32:
        inverse = given.view(np.uint32)  # a negative index becomes an index that is too large
    elif not (isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype == np.uint32):
        inverse = as_keys(given, table)
    if len(inverse) and not (0 <= inverse.min() and inverse.max() < 2**31):
        expected = "an inverse of indices into the announced keys"
        raise refusal(table, expected, f"{np.min(given)} to {np.max(given)}")
    found: Inverse = inverse.astype(np.uint32, copy=False)
    return found


def _read_step(command: c.ReadStep) -> c.ReadStep:
    _of_step(command)
    return c.ReadStep(command.member, int(command.step), tables_of(command.tables, _step_positions))


def _step_positions(part: c.StepPositions) -> c.StepPositions:
    name, given = _step_part(part.table), part.positions
    positions = _positions(given, length(as_array(given, name, "positions")), name)
    return c.StepPositions(name, positions)


def _update_step(command: c.UpdateStep) -> c.UpdateStep:
    _of_step(command)
    tables = tables_of(command.tables, _step_gradients)
    options = options_of(command.options)
    checksum, is_finite = command.rows_checksum, command.is_finite
    if not isinstance(checksum, c.RowsChecksum | None):
        checksum = integer(checksum, "rows_checksum", 0, 2**32 - 1)
    if is_finite is not None:
        is_finite = flag(is_finite, "is_finite")
    return c.UpdateStep(command.member, int(command.step), tables, options, checksum, is_finite)


def _step_gradients(part: c.StepGradients) -> c.StepGradients:
    name = _step_part(part.table)
    given = part.gradients
    count = length(given if is_on_device(given) else as_array(given, name, "gradients"))
    rows = rows_of(given, count, name, "gradients")
    positions, inverse, bags = part.positions, part.inverse, part.bags
    if inverse is None and bags is not None:
        raise refusal(name, "bags with the inverse of their occurrences", "none")
    if inverse is not None:
        if positions is not None:
            raise refusal(name, "positions or an inverse of announced keys", "both")
        inverse = _inverse(inverse, name)
        bags = None if bags is None else checked_bags(bags, len(inverse), name)
        wanted = len(inverse) if bags is None else len(bags.offsets) - 1
        if count != wanted:
            of = "occurrences" if bags is None else "bags"
            raise refusal(name, f"a gradient for each of {wanted} {of}", count)
        return c.StepGradients(name, rows, None, inverse, bags)
    if positions is not None:
        positions = _positions(positions, count, name)
    if rows is part.gradients and positions is part.positions:
        return part
    return c.StepGradients(name, rows, positions)


def _positions(given: Any, count: int, table: str) -> Any:
    """Return, in normal form, the positions of some keys among the announced keys. The upper bound
    of the positions is checked later."""
    positions: Any = given
    if not (isinstance(given, np.ndarray) and given.dtype == np.uint32 and given.ndim == 1):
        try:
            positions = as_keys(given, table)
        except InvalidArgumentError:
            found = f"{np.asarray(given).dtype} {np.shape(given)}"
            raise refusal(table, "positions of announced keys, (n,) integers", found) from None
    if len(positions) != count:
        raise refusal(table, f"a position for each of {count} gradients", len(positions))
    if count and not (positions[0] >= 0 and positions[-1] < 2**31):
        expected = "positions of announced keys"
        raise refusal(table, expected, f"{positions[0]} to {positions[-1]}")
    wrong = np.flatnonzero(positions[1:] <= positions[:-1])
    if len(wrong):
        found = f"{positions[wrong[0] + 1]} behind {positions[wrong[0]]}"
        raise refusal(table, "positions in ascending order, each once", found)
    return positions.astype(np.uint32, copy=False)


def _put_step_rows(command: c.PutStepRows) -> c.PutStepRows:
    member_name(command.member)
    return c.PutStepRows(command.member, tables_of(command.tables, _step_put))


def _step_put(part: c.StepPut) -> c.StepPut:
    name = _step_part(part.table)
    keys = as_keys(part.keys, name)
    weights = rows_of(part.weights, len(keys), name, "weights")
    state = rows_of(part.state, len(keys), name, "state")
    return c.StepPut(name, keys, weights, state, added_t(part.add_t, name))


SESSIONS: Checks = {
    c.OpenSession: _open_session,
    c.JoinSession: _join_session,
    c.Announce: _announce,
    c.LookupStepPooled: _lookup_step_pooled,
    c.ReadStep: _read_step,
    c.UpdateStep: _update_step,
    c.PutStepRows: _put_step_rows,
}
