"""Names of the files that a store or a backup makes and may therefore remove.

Leftovers of a crash, a merge or a cancelled backup are found by listing a folder. Users may put
files of their own into these folders, so a listed file is removed only if its name has one of the
forms below.
"""

import re

_SEGMENT, _PART = r"[0-9]{12,}\.log", r"[0-9]{12,}-[0-9]{6,}\.rows"
_IDS = r"[0-9]{12,}\.ids"
_OWN = re.compile(
    "|".join(
        [
            rf"(incoming/)?(log/{_SEGMENT}|base/{_PART}|ids/{_IDS})(\.new|\.part)?",
            r"base/[0-9]+/[0-9]{6,}\.rows",  # of format 1
            rf"backup/(log-{_SEGMENT}|base-{_PART}|ids-{_IDS})",
            r"incoming/(LINEAGE|CATALOGUE)(\.new)?",
            r"frequency/([0-9]+\.(counted|imported)|HOTSET)(\.new)?",
            r"labels/[0-9a-f]{16}-[0-9]+\.(shard|lineage)(\.new)?",
        ]
    )
)


def is_own(path: str) -> bool:
    """Return whether a path, relative to the directory of a store or of backups, has the form of a
    file that the store or the backup makes."""
    return _OWN.fullmatch(path) is not None
