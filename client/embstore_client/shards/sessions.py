"""Sessions over shards: a session is opened, joined and left on all shards, with one member per
rank.

A step is announced to every shard, so that each shard plans its own rows. A shard gets those keys
of each table that it owns. A shard that owns no keys of the step gets the announcement too.

**A shard that was restarted** does not know any member. In that case the member leaves the other
shards as well, and its trainer gets the same error as after a restart of a single server. The
trainer joins again, announces unfinished steps again, and repeats the calls that were not answered
(`embstore_training.rank_session`). The resume position is the earliest position of any shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from secrets import token_hex
from typing import TYPE_CHECKING

from embstore import commands as c
from embstore.arithmetic import unique
from embstore.arrays import check_on_host, refusal
from embstore.errors import (
    EmbstoreError,
    InvalidArgumentError,
    OutcomeUnknownError,
    ReplicaMismatchError,
    SessionExpiredError,
    TableNotFoundError,
)
from embstore.results import Announced, Membership, SessionFacts
from embstore_client.shards.places import Splits

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router
    from embstore_client.shards.split import Split

_LEAVE_S = 5.0


def open_session(router: Router, command: c.OpenSession, call: Call) -> SessionFacts:
    """Open a session on every shard."""
    with router.writing():
        found = router.all(command, call)
    least = min(found, key=lambda one: one.last_step)
    facts = replace(least, written=tuple(chain.from_iterable(one.written for one in found)))
    for name in facts.tables:  # the session locks the tables, so their ids stay valid
        router.tables.look_again(name, None)
    return facts


def join_session(router: Router, command: c.JoinSession, call: Call) -> Membership:
    """Join a session as a rank: on the first shard and then, if no other client has the rank there,
    on all other shards."""
    is_given = bool(command.member)
    command = replace(command, member=command.member or token_hex(16))
    first = router.first(command, call)
    try:
        others = dict.fromkeys(range(1, len(router.shards)), command)
        found = [first, *router.each(others, call).values()]
        facts = router.first(c.RenewLease(first.member))
    except BaseException:
        if not is_given:
            leave(router, command.member)  # no other client knows the member
        raise
    for name in facts.tables:
        router.tables.find(name, None)
    router.places.joined(found, facts.world_size, router.shard_map.version)
    return min(found, key=lambda one: one.last_step)


@contextmanager
def leaving(router: Router, member: str) -> Iterator[None]:
    """Run the with block; if its error shows that one shard no longer knows the member, leave the
    session on all shards. A shard that has found a wrong row at a trainer raises
    ReplicaMismatchError for all later calls; this function adds advice to that error.
    """
    try:
        yield
    except ReplicaMismatchError as exc:
        raise ReplicaMismatchError(
            f"{exc}. Other shards may have applied theirs: if the session says so, restore a "
            "checkpoint of the cluster, and go on from there"
        ) from exc
    except (SessionExpiredError, OutcomeUnknownError):
        if member:
            leave(router, member)
        raise


def leave(router: Router, member: str) -> None:
    """Leave a session on all shards, because one shard no longer knows the member. The member's
    rank joins again as if all shards had been restarted."""
    with suppress(EmbstoreError):
        router.all(c.CloseSession(member), timeout_s=_LEAVE_S)
    router.places.left(member)


def end_session(router: Router, command: c.EndSession, call: Call) -> None:
    """End a session on every shard."""
    router.all(command, call)
    router.places.ended(command.name)


def announce(router: Router, command: c.Announce, call: Call) -> Announced:
    """Announce the keys that coming steps will use: each shard gets the keys that it owns."""
    split: dict[int, tuple[c.StepKeys, Splits]] = {}
    for step in command.steps:
        try:
            split[step.step] = step, {part.table: _split(router, part) for part in step.tables}
        except (InvalidArgumentError, TableNotFoundError):
            router.first(command, call)  # the shard raises the error
            raise
    place = router.places.of(command.member)
    for number, (_, places) in split.items():
        if number in place.steps and not _are_split_as(places, place.steps[number][1]):
            raise InvalidArgumentError(
                f"session {place.name!r}: step {number} was announced with other keys"
            )
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
    """Return which of a step's keys each shard owns. Raise the same error as a shard if keys are
    out of range or repeated, or if the table does not exist."""
    check_on_host(table.keys, f"table {table.table!r}: ")
    split = router.split_keys(table.table, None, table.keys)
    if len(unique(table.keys)[0]) < len(table.keys):
        raise refusal(table.table, "each key once", "a repeated one")
    return split


def _are_split_as(places: Splits, before: Splits) -> bool:
    """Return whether a step that is announced again has the order of keys that it had before. Each
    shard compares its own keys, but cannot notice another order of keys of several shards."""
    return places.keys() == before.keys() and all(
        split.is_split_as(before[name]) for name, split in places.items()
    )


def _own(step: c.StepKeys, places: Splits, shard: int) -> c.StepKeys:
    """Return the part of a step that a shard owns."""
    tables = (c.StepTable(t.table, t.keys[places[t.table].of(shard)]) for t in step.tables)
    return c.StepKeys(step.step, tuple(tables))


HANDLERS = {
    c.OpenSession: open_session,
    c.JoinSession: join_session,
    c.EndSession: end_session,
    c.Announce: announce,
}
