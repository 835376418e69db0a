"""Checkpoints of a cluster: kept, listed, dropped, and restored.

A label is created on every shard at one barrier (`barrier`), while no shard accepts writes. Other
clients need not stop writing. Afterwards the state of each shard's checkpoint is compared with the
barrier, because a shard may have written in between: the lease of the pause may have expired, or
the shard may have been restarted. In that case the checkpoint is discarded, and created again.

Pausing writes needs the right "admin" on everything. A client without that right still creates the
label. The label is valid if all shards have stored the same tables with the same numbers of
updates; a different t shows that other clients wrote in between, and the label is created again.

The metadata of labels shows which labels belong to the cluster (`embstore.cluster_checkpoints`). If
a client died while it created a label, the next client that creates one drops the incomplete one.
During a client's pause a shard makes no checkpoint of another client, so none that is just being
made is dropped. A client that was stopped until its pause has ended finds out, since it looks
whether all shards have its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from embstore import commands as c
from embstore.cluster_checkpoints import (
    MARK_CHARACTERS,
    identity_of,
    mark_of,
    marked,
    pause_name,
    unmarked,
)
from embstore.errors import (
    CheckpointNotFoundError,
    CheckpointProtectedError,
    EmbstoreError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PermissionDeniedError,
)
from embstore.results import Acknowledged, Barrier, KeptCheckpoint
from embstore_client.barrier import pause_each, resume_all
from embstore_client.shards.write_pauses import TIMEOUT_S, retry_while_paused

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router

Shards = list[tuple[KeptCheckpoint, ...]]
"""The checkpoints of each shard, oldest first."""

_TRIES = 5
_LEASE_MS = 30_000
"""If the client that paused a shard dies, the shard stays paused for at most this time, in ms."""


def checkpoint(router: Router, command: c.Checkpoint, call: Call) -> KeptCheckpoint:
    """Create one label on every shard, at one barrier.

    Raises
    ------
    CheckpointExistsError : the cluster has the label, or one shard alone has a checkpoint of this
        label.
    OutcomeUnknownError : in every try some shard was written to, or restarted; no label was made.
    """
    with router.writing():
        for _ in range(_TRIES):
            mark = token_hex(MARK_CHARACTERS // 2)
            made = replace(command, metadata=marked(dict(command.metadata or {}), mark))
            with _paused(router, pause_name(mark), call) as pause:
                _drop_left(router, command.label, is_paused=bool(pause.barriers))
                try:
                    found = router.all(made, call)
                except BaseException:
                    _drop_made(router, command.label, mark)
                    raise
                if _are_one(found, pause.barriers) and _is_kept(router, command.label, mark, pause):
                    return unmarked(found[0])
                _drop_made(router, command.label, mark)
    raise OutcomeUnknownError(
        f"checkpoint {command.label!r}: expected no writes to any shard while it is made, found "
        f"some in all {_TRIES} tries, so the cluster has no such checkpoint: pause other writers, "
        "and try again"
    )


def _are_one(found: list[KeptCheckpoint], barriers: list[Barrier]) -> bool:
    """Return whether the shards' checkpoints were made at one barrier."""
    at = [one.command for one in found]
    is_same = len({one.content for one in found}) == 1
    return is_same and (not barriers or at == [one.command for one in barriers])


@dataclass
class _Pause:
    """A pause of all shards' writes, in which a checkpoint is made."""

    barriers: list[Barrier]
    """For each shard, the position at which it was paused; [] if writes cannot be paused."""
    complete: tuple[str, ...] = ()
    """After the checkpoint was made, the labels that all shards have: shards can push out older
    ones."""


@contextmanager
def _paused(router: Router, by: str, call: Call) -> Iterator[_Pause]:
    """Pause the writes of all shards during the block, if the client may do this. `by` is the name
    of the pause."""
    pause, timeout_s = _Pause([]), call.timeout_s
    with suppress(PermissionDeniedError, InvalidArgumentError):  # the latter: not served as shards
        check = partial(router.check_newest, range(len(router.shards)))
        each = partial(pause_each, router.shards, by, timeout_s=timeout_s, lease_ms=_LEASE_MS)
        pause.barriers = retry_while_paused(each, check, timeout_s or TIMEOUT_S)
    try:
        yield pause
    finally:
        if pause.barriers:
            with suppress(EmbstoreError):  # if this fails, the lease ends the pause
                resume_all(router.shards, by, complete=pause.complete, timeout_s=timeout_s)


def _is_kept(router: Router, label: str, mark: str, pause: _Pause) -> bool:
    """Return whether all shards still have the checkpoint of this attempt. Another client has
    dropped a part of it, if this client was stopped for so long that its pause ended."""
    try:
        kept = router.all(_LIST)
    except EmbstoreError:  # a shard died after it had made its checkpoint
        return True
    pause.complete = _complete(kept)
    return all(one is not None and mark_of(one) == mark for one in _each(kept, label))


def _complete(kept: Shards) -> tuple[str, ...]:
    """Return the labels under which all shards have a checkpoint of one attempt, oldest first."""
    marks = [{one.label: mark_of(one) for one in own} for own in kept]
    return tuple(
        label
        for label, mark in marks[0].items()
        if mark is not None and all(own.get(label) == mark for own in marks)
    )


def _drop_left(router: Router, label: str, *, is_paused: bool) -> None:
    """Drop the checkpoints that an interrupted attempt has left under a label. If writes are
    paused, no other client is making a checkpoint: drop all that interrupted attempts have left.

    These are newer than a complete checkpoint. Older ones can be from before a shard has joined,
    and complete again when it leaves.
    """
    kept = router.all(_LIST)
    of_label = _each(kept, label)
    identities = {None if one is None else identity_of(one) for one in of_label}
    left = [[one] if one is not None and len(identities) > 1 else [] for one in of_label]
    complete = _complete(kept) if is_paused else ()
    for own, dropped in zip(kept, left, strict=True):
        made = [one for one in own if mark_of(one) is not None]
        first = next((n for n, one in enumerate(made) if one.label in complete), len(made))
        dropped += [one for one in made[first:] if one.label not in (*complete, label)]
    for shard, dropped in enumerate(left):
        for one in dropped:
            with suppress(CheckpointProtectedError):
                _drop(router, shard, one.label, mark_of(one))


def _drop_made(router: Router, label: str, mark: str) -> None:
    """Drop what an attempt has made, on each shard that answers."""
    shards = range(len(router.shards))
    wait(router.shared.begin({n: partial(_drop, router, n, label, mark) for n in shards}).values())


def _drop(router: Router, shard: int, label: str, mark: str | None) -> None:
    """Drop a shard's checkpoint, if it has this mark, and is not one that was made meanwhile."""
    if mark is not None:
        with suppress(CheckpointNotFoundError):
            router.each({shard: c.SetRetention(label, "dropped", mark)})


def set_retention(router: Router, command: c.SetRetention, call: Call) -> KeptCheckpoint:
    """Protect a label on every shard, make it routine, or drop it."""
    with router.writing():
        found = router.agreed(dict.fromkeys(range(len(router.shards)), command), call)
    return unmarked(next(iter(found.values())))


def list_checkpoints(
    router: Router, command: c.ListCheckpoints, call: Call
) -> tuple[KeptCheckpoint, ...]:
    """Return the checkpoints that all shards have, and that were made at one barrier. A checkpoint
    is protected if one shard protects it."""
    found = router.all(command, call)
    protected = {one.label for kept in found for one in kept if one.protected}
    return tuple(
        replace(unmarked(one), protected=one.label in protected)
        for one in found[0]
        if _is_whole(found, one.label)
    )


def _is_whole(found: Shards, label: str) -> bool:
    identities = {identity_of(one) if one is not None else None for one in _each(found, label)}
    return len(identities) == 1 and None not in identities


def _each(found: Shards, label: str) -> list[KeptCheckpoint | None]:
    return [next((one for one in kept if one.label == label), None) for kept in found]


def restore(router: Router, command: c.Restore, call: Call) -> Acknowledged:
    """Restore a label on every shard, if all shards have it and it was made at one barrier."""
    with router.writing():
        kept = router.all(_LIST)
        for shard, one in enumerate(_each(kept, command.label)):
            if one is None:  # the shard raises the error, and no shard has changed
                router.each({shard: command}, call)
        if not _is_whole(kept, command.label):
            raise CheckpointNotFoundError(
                f"expected {command.label!r} to be a checkpoint of the whole cluster, found a "
                "different one on each shard, because making it was interrupted, or a shard made "
                "its own: restore another label"
            )
        try:
            done = router.agreed(dict.fromkeys(range(len(kept)), command), call)[0]
        finally:
            router.tables.forget_all()  # a name may belong to another table now
        router.places.ended(None)
        return done


_LIST = c.ListCheckpoints()

HANDLERS = {
    c.Checkpoint: checkpoint,
    c.SetRetention: set_retention,
    c.ListCheckpoints: list_checkpoints,
    c.Restore: restore,
}
