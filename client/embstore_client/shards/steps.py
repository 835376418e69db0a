"""Commands of sessions, over shards.

A session is open on every shard, under one name and with one member a rank; a step is announced to
each with the keys that it has, of every table, also none. So every shard plans its own rows, and a
step is finished when all shards have finished it: it may be sent again until they have.

**A shard that was started again** knows no member. Then the member leaves the other shards as well,
and its trainer is told what a server that was started again tells it: it joins again, announces
again what is not finished, and sends again what was out (`embstore_training.rank_session`). The
place is that of the shard that is the furthest behind; shards that had finished a step are not sent
it again. A trainer that ends within a step, so that some shards have it and some have not, takes
its gradients with it: whoever goes on is told to restore a checkpoint.

Several ranks may each give gradients that are finite alone, and whose sum is not. No shard could
tell the others in time, so here a share counts as not finite when so many of it might not be:
beyond 1e38 / (ranks * max(gradient_scale, 1)). A trainer of one rank is told exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore import commands as c
from embstore.arithmetic import pool_rows, unique
from embstore.arrays import Rows, as_out, as_rows, check_on_host, refusal
from embstore.errors import (
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionExpiredError,
    StepNotFoundError,
    TableNotFoundError,
)
from embstore.results import (
    AcknowledgedUpdate,
    Announced,
    Membership,
    RowsRead,
    SessionFacts,
    StepRecords,
    TableRows,
)
from embstore_client.shards.finite import are_small, nonfinite

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router
    from embstore_client.shards.split import Split

_LEAVE_S = 5.0
_ASK_S = 1.0
Splits = Mapping[str, "Split"]
"""By table: which of a step's keys each shard has."""
_LEAST_S = 1e-3


@dataclass
class _Place:
    """What is known of a member."""

    name: str = ""  # of the session; "": another client has joined it
    rank: int = 0
    world_size: int = 0  # 0: not known
    joined_at: tuple[int, ...] = ()  # the last finished step of each shard when it was joined
    steps: dict[int, tuple[c.StepKeys, Splits]] = field(default_factory=dict)
    """Announced, and not finished."""

    def behind(self, shards: int, step: int) -> list[int]:
        """Return the shards that have still to finish a step, as far as is known."""
        return [s for s in range(shards) if not self.joined_at or self.joined_at[s] < step]


class Places:
    """What a router knows of the members of sessions. Any thread."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._sent: dict[tuple[str, int], tuple[int, type]] = {}
        """By session and rank: the last step that was sent from here, and how it was to end."""
        self._lock = threading.Lock()

    def joined(self, found: list[Membership], world_size: int) -> None:
        """Note a member, as it joined each shard."""
        first, at = found[0], tuple(one.last_step for one in found)
        with self._lock:
            known = self._of(first.member).steps  # of one that says again that it joins
            left = {number: step for number, step in known.items() if number > min(at)}
            self._places[first.member] = _Place(first.name, first.rank, world_size, at, left)

    def of(self, member: str) -> _Place:
        """Return what is known of a member; of one that has joined elsewhere nothing."""
        with self._lock:
            return self._of(member)

    def _of(self, member: str) -> _Place:
        return self._places.get(member) or _Place()

    def announced(self, member: str, steps: Mapping[int, tuple[c.StepKeys, Splits]]) -> None:
        """Note steps of a member."""
        with self._lock:
            self._places.setdefault(member, _Place()).steps.update(steps)

    def may_send(self, member: str, command: Any, *, is_partial: bool) -> bool:
        """Return whether a step may be sent, and note that it is; the rest of one that some shards
        have finished is this trainer's alone, who sent it to those."""
        with self._lock:
            place, sending = self._of(member), (command.step, type(command))
            key = place.name, place.rank
            if is_partial and self._sent.get(key) != sending:
                return False
            if place.name:
                self._sent[key] = sending
            return True

    def finished(self, member: str, step: int) -> None:
        """Forget a step, and those before it."""
        with self._lock:
            steps = self._of(member).steps
            for number in [n for n in steps if n <= step]:
                del steps[number]

    def left(self, member: str) -> None:
        """Forget a member, which may join again."""
        with self._lock:
            self._places.pop(member, None)

    def closed(self, member: str) -> None:
        """Forget a member and what it has sent."""
        with self._lock:
            place = self._places.pop(member, None) or _Place()
            self._sent.pop((place.name, place.rank), None)

    def ended(self, name: str | None) -> None:
        """Forget a session, or all."""
        with self._lock:
            gone = [m for m, place in self._places.items() if name in (None, place.name)]
            for member in gone:
                del self._places[member]


# Opening and closing


def open_session(router: Router, command: c.OpenSession, call: Call) -> SessionFacts:
    """Open a session on every shard."""
    if command.waits == "none" and command.world_size > 1:
        raise InvalidArgumentError(
            'expected one rank in a session with waits="none" over several shards, found '
            f'world_size={command.world_size}; use waits="late"'
        )
    with router.writing():
        facts = _furthest_back(router.all(command, call))
    for name in facts.tables:  # held from now on: none of them is made anew any more
        router.tables.look_again(name, None)
    return facts


def join_session(router: Router, command: c.JoinSession, call: Call) -> Membership:
    """Take the place of a rank: on the first shard, and then, as nobody else has it, on all."""
    is_given = bool(command.member)
    command = replace(command, member=command.member or token_hex(16))
    first = router.first(command, call)
    try:
        others = dict.fromkeys(range(1, len(router.shards)), command)
        found = [first, *router.each(others, call).values()]
        facts = router.first(c.RenewLease(first.member))
    except BaseException:
        if not is_given:
            leave(router, command.member)  # nobody else knows the member
        raise
    for name in facts.tables:
        router.tables.find(name, None)
    router.places.joined(found, facts.world_size)
    return min(found, key=lambda one: one.last_step)


@contextmanager
def leaving(router: Router, member: str) -> Iterator[None]:
    """Leave a session everywhere once one shard knows its member no more."""
    try:
        yield
    except (SessionExpiredError, OutcomeUnknownError):
        if member:
            leave(router, member)
        raise


def leave(router: Router, member: str) -> None:
    """Leave a session everywhere, as one shard knows the member no more: it is joined anew, as if
    all shards had forgotten it."""
    with suppress(EmbstoreError):
        router.all(c.CloseSession(member), timeout_s=_LEAVE_S)
    router.places.left(member)


def renew_lease(router: Router, command: c.RenewLease, call: Call) -> SessionFacts:
    """Renew the lease of a rank on every shard."""
    return _furthest_back(router.all(command, call))


def _furthest_back(found: list[SessionFacts]) -> SessionFacts:
    return min(found, key=lambda facts: facts.last_step)


def close_session(router: Router, command: c.CloseSession, call: Call) -> None:
    """Leave a session on every shard."""
    router.places.closed(command.member)
    router.all(command, call)


def end_session(router: Router, command: c.EndSession, call: Call) -> None:
    """End a session on every shard."""
    router.all(command, call)
    router.places.ended(command.name)


# Announcing


def announce(router: Router, command: c.Announce, call: Call) -> Announced:
    """Say which keys coming steps will use: to each shard, which of its own."""
    split: dict[int, tuple[c.StepKeys, Splits]] = {}
    for step in command.steps:
        try:
            split[step.step] = step, {part.table: _split(router, part) for part in step.tables}
        except (InvalidArgumentError, TableNotFoundError):
            router.first(command, call)  # says why
            raise
    commands = {
        shard: c.Announce(
            command.member,
            tuple(_own(step, places, shard) for step, places in split.values()),
            command.is_last,
        )
        for shard in range(len(router.shards))
    }
    found = list(router.each(commands, call).values())
    router.places.announced(command.member, split)
    return Announced(
        min(one.announced_step for one in found),
        min(one.planned_step for one in found),
        any(one.held_back for one in found),
        max(one.ranks_at_work for one in found),
    )


def _split(router: Router, table: c.StepTable) -> Split:
    """Return the shards of a step's keys, or raise what no shard takes: keys out of range, or
    repeated, or a table that is not there."""
    check_on_host(table.keys, f"table {table.table!r}: ")
    split = router.split_keys(table.table, None, table.keys)
    if len(unique(table.keys)[0]) < len(table.keys):
        raise refusal(table.table, "each key once", "a repeated one")
    return split


def _own(step: c.StepKeys, places: Splits, shard: int) -> c.StepKeys:
    """Return what of a step a shard has."""
    tables = (c.StepTable(t.table, t.keys[places[t.table].of(shard)]) for t in step.tables)
    return c.StepKeys(step.step, tuple(tables))


# Reading


def lookup_step(router: Router, command: c.LookupStep, call: Call) -> RowsRead:
    """The rows of an announced step, in announced order."""
    step, places = _announced(router, command)
    commands = dict.fromkeys(_with_keys(router, places), command)
    found = router.each(commands, replace(call, out=None))
    by_table: dict[str, list[tuple[int, TableRows]]] = {}
    for shard, read in found.items():
        for table in read.tables:
            by_table.setdefault(table.table, []).append((shard, table))
    outs = {
        name: as_out((call.out or {}).get(name), (len(split), _dim(router, name)), name)
        for name, split in places.items()
    }  # all before the first is written to
    tables = []
    for part in step.tables:
        rows = {shard: table.rows for shard, table in by_table[part.table]}
        joined = _joined(places[part.table], rows, outs[part.table], part.table)
        tables.append(TableRows(part.table, joined, None, by_table[part.table][0][1].t))
    return RowsRead(tuple(tables))


def _dim(router: Router, table: str) -> int:
    return router.tables.config_of(table, None).dim


def _joined(split: Split, rows: Mapping[int, Rows], out: Any, table: str) -> Rows:
    dim = next(iter(rows.values())).shape[1]
    joined = as_out(out, (len(split), dim), table)
    for shard, own in rows.items():
        joined[split.of(shard)] = own
    return joined


def _with_keys(router: Router, places: Splits) -> list[int]:
    shards = range(len(router.shards))
    return [s for s in shards if any(split.count(s) for split in places.values())] or [0]


def _announced(router: Router, command: Any) -> tuple[c.StepKeys, Splits]:
    """Return what was announced of a step.

    Raises
    ------
    StepNotFoundError : nothing was here.
    SessionExpiredError : there is no such member; some shards have finished the step.
    """
    place = router.places.of(command.member)
    known = place.steps.get(command.step)
    if known is not None:
        _check_whole(router, place, command.step)
        return known
    with suppress(DeadlineError):
        router.first(c.LookupStep(command.member, command.step), timeout_s=_ASK_S)  # says why
    raise StepNotFoundError(
        f"expected an announced step that is not finished, found {command.step}: another "
        "connection has announced it; announce it again"
    )


def _check_whole(router: Router, place: _Place, step: int) -> None:
    if len(place.behind(len(router.shards), step)) < len(router.shards):
        raise _torn(step)


def _torn(step: int) -> SessionExpiredError:
    return SessionExpiredError(
        f"step {step} is finished on some shards, and not on all: a trainer ended while it was "
        "sent, and its gradients are lost; restore a checkpoint of the cluster, and go on from "
        "there"
    )


class _Prefetched:
    """The rows of a step, on their way from every shard."""

    def __init__(
        self, router: Router, member: str, of_shard: dict[int, c.Prefetched], places: Splits
    ) -> None:
        self._router, self._member = router, member
        self._of_shard, self._places = of_shard, places

    def result(self, timeout_s: float | None = None) -> dict[str, Rows]:
        """Wait for all rows, as `lookup_step` returns them."""
        until = None if timeout_s is None else monotonic() + timeout_s
        rows: dict[str, dict[int, Rows]] = {}
        with leaving(self._router, self._member):
            for shard, handle in self._of_shard.items():
                left = None if until is None else max(until - monotonic(), _LEAST_S)
                for table, own in handle.result(left).items():
                    rows.setdefault(table, {})[shard] = own
        return {
            name: _joined(split, rows[name], None, name) for name, split in self._places.items()
        }

    @property
    def early_bytes(self) -> int:
        """Bytes of rows that came before the step was ready."""
        return sum(getattr(handle, "early_bytes", 0) for handle in self._of_shard.values())

    @property
    def late_bytes(self) -> int:
        """Bytes of rows that came once it was."""
        return sum(getattr(handle, "late_bytes", 0) for handle in self._of_shard.values())

    def done(self) -> bool:
        """Whether `result` will not wait for them."""
        return all(getattr(handle, "done", bool)() for handle in self._of_shard.values())


def prefetch(router: Router, command: c.LookupStep) -> c.Prefetched | None:
    """Ask every shard for its rows of a step; None: a lookup says what is wrong with it."""
    place = router.places.of(command.member)
    known = place.steps.get(command.step)
    if known is None or len(place.behind(len(router.shards), command.step)) < len(router.shards):
        return None
    _, places = known
    found = {s: router.shards[s].prefetch(command) for s in _with_keys(router, places)}
    handles = {shard: handle for shard, handle in found.items() if handle is not None}
    is_whole = len(handles) == len(found)
    return _Prefetched(router, command.member, handles, places) if is_whole else None


def lookup_step_pooled(router: Router, command: c.LookupStepPooled, call: Call) -> RowsRead:
    """Pooled rows of bags of announced keys, pooled here."""
    step = c.LookupStep(command.member, command.step)
    rows = {t.table: t for t in lookup_step(router, step, replace(call, out=None)).tables}
    tables = []
    for part in command.tables:
        if part.table not in rows:
            raise InvalidArgumentError(
                f"step {command.step}: expected bags of announced tables, {sorted(rows)}, found "
                f"{part.table!r}"
            )
        of, bags = rows[part.table], part.bags
        if len(part.inverse) and int(part.inverse.max()) >= len(of.rows):
            expected = f"an inverse below {len(of.rows)}, the number of announced keys"
            raise refusal(part.table, expected, int(part.inverse.max()))
        pooled = pool_rows(of.rows[part.inverse], bags.offsets, bags.mode, bags.weights)
        tables.append(replace(of, rows=pooled))
    return RowsRead(tuple(tables))


def read_step(router: Router, command: c.ReadStep, call: Call) -> StepRecords:
    """Weights and state of some announced keys."""
    if not command.tables:
        return router.first(command, call)
    _, places = _announced(router, command)
    for part in command.tables:
        split = places.get(part.table)
        if split is None or (len(part.positions) and part.positions[-1] >= len(split)):
            return router.first(command, call)  # says what is wrong
    within: dict[tuple[int, str], Any] = {}
    commands = {}
    for shard in range(len(router.shards)):
        named = []
        for part in command.tables:
            mine, own = places[part.table].within(part.positions, shard)
            within[shard, part.table] = mine
            if len(mine) or shard == 0:
                named.append(c.StepPositions(part.table, own))
        if named:
            commands[shard] = c.ReadStep(command.member, command.step, tuple(named))
    found = router.each(commands, call)
    tables = []
    for part in command.tables:
        config = router.tables.config_of(part.table, None)
        rows = np.empty((len(part.positions), config.dim), np.float32)
        state = np.empty((len(part.positions), config.state_dim), np.float32)
        t = 0
        for shard, read in found.items():
            for table in (one for one in read.tables if one.table == part.table):
                mine = within[shard, part.table]
                rows[mine], state[mine], t = table.rows, table.state, table.t
        tables.append(TableRows(part.table, rows, state, t))
    return StepRecords(tuple(tables), min(read.last_step for read in found.values()))


# Finishing


def update_step(router: Router, command: c.UpdateStep, call: Call) -> AcknowledgedUpdate:
    """One rank's gradients of a step: to each shard, those of its keys."""
    place = router.places.of(command.member)
    known = place.steps.get(command.step)
    if known is None:
        return _repeated(router, command, call)
    step, places = known
    given = [_gradients(router, places, part) for part in command.tables]
    world_size = place.world_size or router.first(c.RenewLease(command.member)).world_size
    is_finite = _is_finite(step, given, command.options, world_size)
    if not is_finite and command.options.on_nonfinite == "refuse":
        raise _refusal(step, given, command)
    commands: dict[int, c.UpdateStep] = {}
    for shard in range(len(router.shards)):
        tables = []
        for part in given:
            split = places[part.table]
            if part.positions is None:
                own = c.StepGradients(part.table, part.gradients[split.of(shard)])
            else:
                mine, at = split.within(part.positions, shard)
                own = c.StepGradients(part.table, part.gradients[mine], at)
            tables.append(own)
        commands[shard] = c.UpdateStep(
            command.member, command.step, tuple(tables), command.options, is_finite=is_finite
        )
    return _finished(router, commands, command, call)


def _gradients(router: Router, places: Splits, part: c.StepGradients) -> c.StepGradients:
    check_on_host(part.gradients, f"table {part.table!r}: ")
    if part.table not in places:
        raise InvalidArgumentError(
            f"expected gradients of announced tables, of {sorted(places)}, found {part.table!r}"
        )
    count = len(places[part.table])
    if part.positions is not None:
        if len(part.positions) and part.positions[-1] >= count:
            expected = f"positions below {count}, the number of announced keys"
            raise refusal(part.table, expected, part.positions[-1])
        count = len(part.positions)
    dim = router.tables.config_of(part.table, None).dim
    rows = as_rows(part.gradients, (count, dim), part.table, "gradients")
    return replace(part, gradients=rows)


def _is_finite(
    step: c.StepKeys, given: list[c.StepGradients], options: c.UpdateOptions, world_size: int
) -> bool:
    if all(are_small(part.gradients, world_size, options.gradient_scale) for part in given):
        return True
    return world_size == 1 and nonfinite([_named(step, given)], options.gradient_scale) is None


def _named(step: c.StepKeys, given: list[c.StepGradients]) -> list[c.TableGradients]:
    keys = {table.table: table.keys for table in step.tables}
    return [
        c.TableGradients(
            part.table,
            None,
            keys[part.table] if part.positions is None else keys[part.table][part.positions],
            part.gradients,
        )
        for part in given
    ]


def _refusal(
    step: c.StepKeys, given: list[c.StepGradients], command: c.UpdateStep
) -> InvalidArgumentError:
    """Return why a share is refused that is not finite, or too large for the others."""
    found = nonfinite([_named(step, given)], command.options.gradient_scale)
    if found is None:
        return InvalidArgumentError(
            f"step {command.step}: expected gradients whose sum over the ranks is finite whatever "
            "the others send, found larger ones; skip the step on all ranks, or give "
            'on_nonfinite="skip"'
        )
    (part,) = found.ranks[0].tables
    return InvalidArgumentError(
        f"table {part.table!r}: expected finite gradients, found a sum or scaled sum that is not, "
        f'for key {part.keys[0]}; give on_nonfinite="skip" to skip such an update'
    )


def finish(router: Router, command: c.ReleaseStep | c.SkipStep, call: Call) -> AcknowledgedUpdate:
    """Release or skip a step on every shard."""
    commands = dict.fromkeys(range(len(router.shards)), command)
    return _finished(router, commands, command, call)


def _finished(
    router: Router,
    commands: Mapping[int, c.Command[AcknowledgedUpdate]],
    command: Any,
    call: Call,
) -> AcknowledgedUpdate:
    behind = router.places.of(command.member).behind(len(router.shards), command.step)
    is_partial = 0 < len(behind) < len(router.shards)
    if not router.places.may_send(command.member, command, is_partial=is_partial):
        raise _torn(command.step)
    left = {shard: commands[shard] for shard in behind} or commands
    answers = list(router.each(left, call).values())
    router.places.finished(command.member, command.step)
    return answers[0]


def _repeated(router: Router, command: c.UpdateStep, call: Call) -> AcknowledgedUpdate:
    """Return what became of a step that all shards have finished."""
    facts = router.all(c.RenewLease(command.member))
    if min(one.last_step for one in facts) < command.step:
        _announced(router, command)
    again = c.UpdateStep(command.member, command.step, (), command.options)
    return router.all(again, call)[0]


def put_step_rows(router: Router, command: c.PutStepRows, call: Call) -> AcknowledgedUpdate:
    """Rows of a hot replica."""
    splits = [router.split_keys(part.table, None, part.keys) for part in command.tables]
    parts = []
    for part in command.tables:
        config = router.tables.config_of(part.table, None)
        count, name = len(part.keys), part.table
        weights = as_rows(part.weights, (count, config.dim), name, "weights")
        state = as_rows(part.state, (count, config.state_dim), name, "state")
        parts.append(replace(part, weights=weights, state=state))
    commands = {
        shard: c.PutStepRows(
            command.member,
            tuple(
                c.StepPut(p.table, p.keys[own], p.weights[own], p.state[own], p.add_t)
                for p, own in ((p, s.of(shard)) for p, s in zip(parts, splits, strict=True))
            ),
        )
        for shard in range(len(router.shards))
    }
    with router.writing():
        return next(iter(router.each(commands, call).values()))


HANDLERS = {
    c.OpenSession: open_session,
    c.JoinSession: join_session,
    c.RenewLease: renew_lease,
    c.CloseSession: close_session,
    c.EndSession: end_session,
    c.Announce: announce,
    c.LookupStep: lookup_step,
    c.LookupStepPooled: lookup_step_pooled,
    c.ReadStep: read_step,
    c.UpdateStep: update_step,
    c.ReleaseStep: finish,
    c.SkipStep: finish,
    c.PutStepRows: put_step_rows,
}
