"""Which checkpoints are kept: the last ones of each folder of labels.

A label `ads/nightly/7` is in the folder `ads/nightly`, a plain one in the folder "". Each folder
keeps its last ones, so that nobody's checkpoints push out another's, and a label is protected from
routine ones by being in a folder of its own. What is before the first slash is a namespace; it has
FOLDERS_MAX folders, of which the one whose last checkpoint is oldest goes first.
"""

from collections.abc import Sequence

from embstore.results import Checkpoint

FOLDERS_MAX = 8
"""Of a namespace: each keeps files that merges could give up."""


def still_kept(checkpoints: Sequence[Checkpoint], keep: int) -> tuple[Checkpoint, ...]:
    """Return those to keep of checkpoints, oldest first, when the last one has just been made."""
    by_folder: dict[str, list[Checkpoint]] = {}
    for one in checkpoints:
        folder = one.label.rpartition("/")[0]
        by_folder[folder] = [*by_folder.pop(folder, []), one][-keep:]  # newest folder last
    spaces: dict[str, list[str]] = {}
    for folder in by_folder:
        spaces.setdefault(folder.partition("/")[0], []).append(folder)
    folders = {folder for space in spaces.values() for folder in space[-FOLDERS_MAX:]}
    stay = {one.label for folder in folders for one in by_folder[folder]}
    return tuple(one for one in checkpoints if one.label in stay)
