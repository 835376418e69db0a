"""Pauses all shards of a cluster at one barrier: each shard stops after the same commands.

Clients send their commands to the shards concurrently, so at any moment one shard may have executed
a command that another shard has not executed. The client asks all shards to pause their writes, and
each shard returns its position: t of each table, the last finished step of each session, and the
ids of the cluster's commands that it has answered last (`embstore.engine.sharding`). Shards that
lag may still execute commands that another shard has executed. These commands arrive, because
clients repeat refused commands, and no client starts its next command before all shards have
executed its present command. The lagging shards may nevertheless fail to reach that position,
because tables are being created. In that case all pauses are lifted, and requested again after a
random delay.

If a client was killed or stopped, the rest of its command does not come. If only such a command
makes the difference, in several tries, the shards give it up: they refuse the rest of it from then
on. An update cannot be given up, since t and `update_ids` of its tables stay different. So a
command that was acknowledged is on one side of a barrier. One that was given up can be on both, as
any command whose outcome is unknown.
"""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from time import monotonic, sleep
from typing import Any, TypeVar

from embstore import commands as c
from embstore.commands import Command, Executor
from embstore.errors import DeadlineError, EmbstoreError, OutcomeUnknownError
from embstore.results import Barrier, NamedPlace

R = TypeVar("R")

TRIES = 50
_STABLE = 5
"""If this number of consecutive tries find the same difference between shards, no client finishes
the command that made the difference."""
_PAUSE_FIRST_S, _PAUSE_MAX_S = 1e-3, 0.2
_LOOKS, _LOOK_S = 40, 0.02
_LOOKS_LEAST, _LOOKS_S = 5, 0.8
"""The number of polls while some shards catch up, and the seconds between two polls. After
`_LOOKS_S`, `_LOOKS_LEAST` polls are enough. All polls together take longer than the pause after
which a client repeats a refused command."""


def pause_all(
    shards: Sequence[Executor],
    by: str,
    *,
    tries: int = TRIES,
    timeout_s: float | None = None,
    wait: Callable[[float], Any] = sleep,
) -> Barrier:
    """Pause the writes of all shards at one barrier, and return the barrier. In it, the command
    number and the next table id are the largest of any shard; see `pause_each`."""
    found = pause_each(shards, by, tries=tries, timeout_s=timeout_s, wait=wait)
    return replace(
        found[0],
        command=max(one.command for one in found),
        next_table_id=max(one.next_table_id for one in found),
    )


def pause_each(
    shards: Sequence[Executor],
    by: str,
    *,
    lease_ms: int = 0,
    tries: int = TRIES,
    timeout_s: float | None = None,
    wait: Callable[[float], Any] = sleep,
) -> list[Barrier]:
    """Pause the writes of all shards at one barrier, and return the position of each shard.

    The pause lasts until `resume_all` is called, the lease ends, or the cluster gets its next shard
    map.

    Parameters
    ----------
    shards : one executor for each shard; not the executor of the cluster
    by, lease_ms : the name and the lease of the pause, as in `Store.pause_writes`
    timeout_s : the timeout of each call
    wait : function that waits for a number of seconds, between two tries

    Raises
    ------
    DeadlineError : the shards were at different barriers in every try; no shard is paused.
    OutcomeUnknownError : a table's t differs between shards, by the same numbers in several tries,
        so no client will send the command that the lagging shards lack; or a table's description
        differs after the last try.
    EmbstoreError : a shard was not reached, or refused the command. No shard stays paused, except
        shards that were not reached: a pause without a lease outlives the client that asked for it.
        `resume_all` with the same name, or without a name, ends such a pause.
    """
    longest_s, apart = _PAUSE_FIRST_S, list[tuple[str, tuple[int, ...]]]()
    try:
        for _ in range(tries):
            pause = c.PauseWrites(by, None, lease_ms)
            if _are_one(found := _brought_up(shards, pause, timeout_s, wait)):
                return found
            difference, halves = _difference(found), _half_executed(found)
            apart.append((difference, halves))
            if apart[-_STABLE:] == _STABLE * apart[-1:] and _are_alike(found):
                if difference:
                    raise _apart(difference)
                given_up = replace(pause, given_up=halves)
                if _are_one(found := _of_all(shards, given_up, timeout_s)):
                    return found
            resume_all(shards, by, timeout_s=timeout_s)
            wait(random.uniform(0, longest_s))
            longest_s = min(2 * longest_s, _PAUSE_MAX_S)
    except BaseException:
        with suppress(EmbstoreError):
            resume_all(shards, by, timeout_s=timeout_s)
        raise
    if difference and not _are_alike(found):
        raise _apart(difference)
    raise DeadlineError(
        "expected all shards to stop at one consistent point, found writes between them in all "
        f"{tries} tries: pause other writers, and try again"
    )


def _half_executed(found: Sequence[Barrier]) -> tuple[int, ...]:
    """Return the ids of the commands that some shards have answered, and others have not."""
    by_any = {*chain.from_iterable(one.answered for one in found)}
    return tuple(sorted(by_any.difference(by_any.intersection(*(b.answered for b in found)))))


def _apart(difference: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"expected the same commands on all shards, found that {difference}, or restore a "
        "checkpoint of the cluster"
    )


def _difference(found: Sequence[Barrier]) -> str:
    """Return in words how the tables of the shards differ, and the likely cause; "" if they do not
    differ."""
    if not _are_alike(found):
        return _other_tables(found)
    for same in zip(*(one.tables for one in found), strict=True):
        if len({(table.t, table.update_ids) for table in same}) > 1:
            return (
                f"table {same[0].config.name!r} has t {[table.t for table in same]}, by shard, and "
                "an update has reached some shards only: drop the table"
            )
    return ""


def _other_tables(found: Sequence[Barrier]) -> str:
    """Return in words how a table's description differs between shards."""
    described = [{one.config.name: (one.table_id, one.config) for one in b.tables} for b in found]
    names = sorted({name for shard in described for name in shard})
    name = next(n for n in names if any(one.get(n) != described[0].get(n) for one in described))
    have = [shard for shard, one in enumerate(described) if name in one]
    if len(have) < len(found):
        is_so = f"only shards {have} have table {name!r}: create or drop it again"
    else:
        ids = [one[name][0] for one in described]
        configs = [one[name][1] for one in described]
        if len({*ids}) > 1:
            return f"table {name!r} has the ids {ids}, by shard: drop it"
        rows = [config.rows for config in configs]
        rates = [config.optimizer.learning_rate for config in configs]
        is_so = f"table {name!r} has rows {rows} and rates {rates}, by shard: set them again"
    return f"{is_so}, with the arguments of the call that failed"


def _are_one(found: Sequence[Barrier]) -> bool:
    return all(one.is_of(found[0]) for one in found)


def _are_alike(found: Sequence[Barrier]) -> bool:
    """Return whether all shards have the same tables, no matter how many updates each table has
    had."""
    kinds = [[(t.config, t.table_id) for t in one.tables] for one in found]
    return all(kind == kinds[0] for kind in kinds)


def _furthest(found: Sequence[Barrier]) -> Barrier:
    """Return the position that a shard would have after all commands that at least one shard has
    executed: the highest t of each table, the highest step of each session, and all ids."""
    tables = tuple(
        max(same, key=lambda one: one.t)
        for same in zip(*(one.tables for one in found), strict=True)
    )
    places: dict[str, NamedPlace] = {}
    for place in (place for one in found for place in one.places):
        before = places.get(place.session)
        if before is None or before.step < place.step:
            places[place.session] = place
    return replace(
        found[0],
        tables=tables,
        places=tuple(places[name] for name in sorted(places)),
        answered=tuple(sorted({*chain.from_iterable(one.answered for one in found)})),
    )


def _brought_up(
    shards: Sequence[Executor],
    pause: c.PauseWrites,
    timeout_s: float | None,
    wait: Callable[[float], Any],
) -> list[Barrier]:
    """Pause all shards. If they have different positions, wait until those that lag have caught up,
    or until `_LOOKS` polls have passed. Return the position of each shard."""
    found = _of_all(shards, pause, timeout_s)
    if _are_one(found) or not _are_alike(found):
        return found
    until, late = _furthest(found), monotonic() + _LOOKS_S
    for look in range(_LOOKS):
        if _are_one(_of_all(shards, replace(pause, until=until), timeout_s)):
            break
        if look >= _LOOKS_LEAST and monotonic() > late:
            break
        wait(_LOOK_S)
    return _of_all(shards, pause, timeout_s)


def resume_all(
    shards: Sequence[Executor],
    by: str = "",
    *,
    complete: tuple[str, ...] = (),
    timeout_s: float | None = None,
) -> None:
    """Have all shards accept writes again, if their pause has the name `by`; "" matches any name.
    The shards push out the oldest checkpoints whose labels are in `complete`.

    Raises
    ------
    EmbstoreError : the error of the first shard that was not reached; the shards that were reached
        have resumed.
    """
    _of_all(shards, c.ResumeWrites(by, complete), timeout_s)


def _of_all(shards: Sequence[Executor], command: Command[R], timeout_s: float | None) -> list[R]:
    """Send a command to all shards concurrently, wait for all answers, and return the answer of
    each shard."""
    with ThreadPoolExecutor(len(shards), "embstore-barrier") as threads:
        calls = [threads.submit(one.execute, command, timeout_s=timeout_s) for one in shards]
    return [call.result() for call in calls]
