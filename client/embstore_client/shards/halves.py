"""Errors of commands that some shards of a cluster have executed, and others have not.

**Commands that are checked first** (`Router.agreed`) set something that must be equal on all
shards: rows, a rate, a table, a restored checkpoint. Each shard first checks the command and
changes nothing (`PartOf.is_check`). An open session, a protected checkpoint or a full disk on one
shard, or a shard that is down, then refuses the command for the whole cluster. A shard can still
fail between the check and the command. The sender then gets OutcomeUnknownError, and sends the
command again, which completes it.

**Updates** are not checked first, since that would send their gradients twice. An update that some
shards have applied cannot be sent again, and ends with OutcomeUnknownError as well.

A command that removes something is complete if a shard no longer has it: an earlier attempt has
removed it there.
"""

from collections.abc import Mapping

from embstore import commands as c
from embstore.commands import Command, Trait
from embstore.errors import (
    CheckpointNotFoundError,
    DeadlineError,
    MovedError,
    OutcomeUnknownError,
    SessionExpiredError,
    TableNotFoundError,
)
from embstore.sharding import ShardMap

_GONE = (CheckpointNotFoundError, SessionExpiredError, TableNotFoundError)
_UNKNOWN = (DeadlineError, OutcomeUnknownError)
_UNDONE = ", unless one from before this call was restored meanwhile, which has undone it"


def raise_first(
    command: Command[object], errors: Mapping[int, BaseException | None], *, is_check: bool
) -> None:
    """Raise the error of a command, given the error of each shard, or None if the shard answered.
    With `is_check`, the shards have only checked the command.

    Raises
    ------
    OutcomeUnknownError : the command changes rows or tables, and some shards may have executed it
        that others have refused.
    EmbstoreError : the error of the first shard, by number, that raised one.
    """
    failed = {shard: error for shard, error in errors.items() if error is not None}
    if not failed:
        return
    done = [shard for shard, error in errors.items() if error is None]
    if done and _removes(command) and all(isinstance(e, _GONE) for e in failed.values()):
        return
    moved = next((e for e in failed.values() if isinstance(e, MovedError)), None)
    if moved is not None and command.can_be_checked:
        raise moved  # the whole command is sent again, by the newer map
    unknown = [shard for shard, error in failed.items() if isinstance(error, _UNKNOWN)]
    is_half = bool(done) or 0 < len(unknown) < len(failed)
    first = next(iter(failed.values()))
    if is_check or not is_half:
        raise first
    why = str(first)
    if Trait.ADDS in command.traits:
        if moved is not None:
            why = "the map of the cluster was replaced meanwhile"
        if len(done) + len(unknown) == len(errors):
            raise OutcomeUnknownError(
                f"this update was applied by shards {done}, and perhaps by shards {unknown} "
                f"({why}). Do not send it again, since shards would apply it twice. If a "
                "digest of the table can be computed when nothing trains it, all have applied it; "
                f"if not, restore a checkpoint of the cluster{_UNDONE}. Until then no checkpoint "
                "can be made"
            ) from first
        by = str(done) if done else f"{unknown}, if at all"
        raise OutcomeUnknownError(
            f"this update was applied to some of its rows only: by shards {by}, and "
            f"not by all others ({why}). Do not send it again, since these shards would apply it "
            f"twice: restore a checkpoint of the cluster{_UNDONE}. Until then no checkpoint can be "
            "made"
        ) from first
    if command.can_be_checked and not isinstance(command, c.Checkpoint):  # which drops its half
        raise OutcomeUnknownError(
            f"{type(command).__name__} was executed by shards {done or unknown}, and not by all "
            f"others ({why}), so that the shards may differ. Send it again, with the same "
            "arguments, until it is acknowledged"
        ) from first
    raise first


def of_an_address_that_left(
    shard: int, before: ShardMap, newest: ShardMap, *, adds: bool
) -> MovedError | OutcomeUnknownError:
    """Return the error of a call whose shard no longer has the address of the map `before`.

    If partitions or shards have gone, the call had no effect there, since such maps change at a
    barrier. If the shard was replaced by its standby, the call may have been executed, and cannot
    be sent again if it `adds`.
    """
    is_there = len(newest.shards) == len(before.shards) and newest.owners == before.owners
    if adds and is_there:
        return OutcomeUnknownError(
            f"shard {shard} was replaced by its standby while the call was in flight: it may have "
            "been applied"
        )
    return MovedError(f"shard {shard} has left the cluster: connect again")


def _removes(command: Command[object]) -> bool:
    """Return whether a command removes something that can be missing already: a table, a session,
    a label or its protection."""
    if isinstance(command, c.SetRetention):
        return command.retention != "protected"
    return isinstance(command, c.DropTable | c.EndSession)
