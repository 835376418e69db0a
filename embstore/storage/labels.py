"""The checkpoints that are kept: the last ones of each folder of labels, and protected ones.

A label `ads/nightly/7` is in the folder `ads/nightly`, a plain one in the folder "". Each folder
keeps its last ones, so that one client's checkpoints do not push out another's, and a label is safe
from routine ones in a folder of its own. The part before the first slash is a namespace; it has
FOLDERS_MAX folders, of which the one whose last checkpoint is oldest goes first.

**Protected** checkpoints are exempt: none is dropped, and none counts, so that a folder keeps as
many routine ones as without them. PROTECTED_MAX bounds their number, since each keeps files that
merges could remove.

**To drop one is always safe.** No other state needs it: the head and every other checkpoint name
all of their own files, so the newest label, and the last one, may go. A reader (a scan, a backup)
has its files open, or second names of them, until the end; a restore has the engine, as a drop has.
The drop is one rename of the catalogue: before it the label is kept whole, after it there is none,
and files that nothing names are removed, at once or by the next opening.
"""

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote

from embstore.choices import Retention
from embstore.errors import CapacityError, CheckpointProtectedError
from embstore.storage.states import KeptState

FOLDERS_MAX = 8
"""Folders of a namespace, at most: each keeps files that merges could remove."""
PROTECTED_MAX = 64
"""Protected checkpoints of a store, at most."""


def still_kept(checkpoints: Sequence[KeptState], keep: int) -> tuple[KeptState, ...]:
    """Return those to keep of checkpoints, oldest first, when the last one has just been made."""
    by_folder: dict[str, list[KeptState]] = {}
    for one in checkpoints:
        if not one.protected:
            folder = one.label.rpartition("/")[0]
            by_folder[folder] = [*by_folder.pop(folder, []), one][-keep:]  # newest folder last
    spaces: dict[str, list[str]] = {}
    for folder in by_folder:
        spaces.setdefault(folder.partition("/")[0], []).append(folder)
    folders = {folder for space in spaces.values() for folder in space[-FOLDERS_MAX:]}
    stay = {one.label for folder in folders for one in by_folder[folder]}
    return tuple(one for one in checkpoints if one.protected or one.label in stay)


def retained(
    checkpoints: Sequence[KeptState], kept: KeptState, retention: Retention
) -> tuple[KeptState, ...]:
    """Return the checkpoints with one of them protected, routine, or dropped.

    Raises CheckpointProtectedError: a protected one is not dropped. CapacityError: too many are
    protected.
    """
    if retention == "dropped":
        if kept.protected:
            raise CheckpointProtectedError(
                f"checkpoint {kept.label!r} is protected: make it routine first, "
                f"{_routine(kept.label)}"
            )
        return tuple(one for one in checkpoints if one is not kept)
    protected = [one for one in checkpoints if one.protected and one is not kept]
    if retention == "protected" and len(protected) >= PROTECTED_MAX:
        raise CapacityError(
            f"{PROTECTED_MAX} checkpoints are protected; make one of them routine, or drop it, "
            f"before {kept.label!r} is protected"
        )
    changed = replace(kept, protected=retention == "protected")
    return tuple(changed if one is kept else one for one in checkpoints)


def check_loses_none(checkpoints: Sequence[KeptState], to: KeptState) -> None:
    """Raise CheckpointProtectedError, if a restore to one of them loses a protected one."""
    lost = [one for one in checkpoints if one.protected and one.state.commit > to.state.commit]
    if lost:
        labels = ", ".join(repr(one.label) for one in lost)
        raise CheckpointProtectedError(
            f"a restore of {to.label!r} would delete {labels}, which is newer and protected; back "
            f"it up, make it routine, and then restore: {_routine(lost[0].label)}"
        )


def _routine(label: str) -> str:
    """Return the call and the command that make a checkpoint routine."""
    in_python = f"store.set_retention({label!r}, 'routine')"
    return f"{in_python}, or embstore set-retention {quote(label)} routine"
