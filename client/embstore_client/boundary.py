"""All shards of a cluster at one boundary: between the same two commands, and no write gets on.

Clients send their commands to the shards side by side, so at any moment one shard may have had a
command that another has not. All are asked to pause their writes, and each says where it stands. If
they stand at one boundary, whatever a client had sent was applied by all of them or by none. Else
they are let go on, and asked again a random while later.

What changes neither t nor a table nor the place of a session, as `assign` does, leaves no trace by
which shards could be told apart: one that is under way may be on some shards. It has not been
acknowledged, and its client sends the rest as soon as writes are taken again.
"""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from time import sleep
from typing import Any, TypeVar

from embstore import commands as c
from embstore.commands import Command, Executor
from embstore.errors import DeadlineError, EmbstoreError
from embstore.results import Boundary

R = TypeVar("R")

TRIES = 50
_PAUSE_FIRST_S, _PAUSE_MAX_S = 1e-3, 0.2


def pause_all(
    shards: Sequence[Executor],
    by: str,
    *,
    tries: int = TRIES,
    timeout_s: float | None = None,
    wait: Callable[[float], Any] = sleep,
) -> Boundary:
    """Pause the writes of all shards at one boundary, and return it, with the largest numbers of
    any; as `pause_each`."""
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
) -> list[Boundary]:
    """Pause the writes of all shards at one boundary, and return where each stands. Then
    `resume_all` ends it, or the next map of the cluster.

    Parameters
    ----------
    shards : the executor of each shard itself
    by, lease_ms : who pauses them, and for how long; of `Store.pause_writes`
    timeout_s : of each call
    wait : waits for so many seconds, between two tries

    Raises
    ------
    DeadlineError : they were at different ones each time; nothing is paused.
    EmbstoreError : a shard could not be asked, or refused. Nothing is paused, but on shards that
        were not reached: whoever comes next lets them go on, as a pause outlives who asked for it.
    """
    longest_s = _PAUSE_FIRST_S
    for _ in range(tries):
        try:
            found = _of_all(shards, c.PauseWrites(by, lease_ms), timeout_s)
        except BaseException:
            with suppress(EmbstoreError):
                resume_all(shards, by, timeout_s=timeout_s)
            raise
        if all(one.is_of(found[0]) for one in found):
            return found
        resume_all(shards, by, timeout_s=timeout_s)
        wait(random.uniform(0, longest_s))
        longest_s = min(2 * longest_s, _PAUSE_MAX_S)
    raise DeadlineError(
        f"expected the shards to be at one boundary, found them at different ones {tries} times: "
        "have fewer clients write, and try again"
    )


def resume_all(shards: Sequence[Executor], by: str = "", *, timeout_s: float | None = None) -> None:
    """Have all shards take writes again, if they are paused `by` this name; "": by whoever.

    Raises
    ------
    EmbstoreError : of the first shard that could not be told; the others have been.
    """
    _of_all(shards, c.ResumeWrites(by), timeout_s)


def _of_all(shards: Sequence[Executor], command: Command[R], timeout_s: float | None) -> list[R]:
    """Return what every shard answers, asked side by side; all have answered."""
    with ThreadPoolExecutor(len(shards), "embstore-boundary") as threads:
        calls = [threads.submit(one.execute, command, timeout_s=timeout_s) for one in shards]
    return [call.result() for call in calls]
