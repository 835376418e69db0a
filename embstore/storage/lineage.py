"""The lineage of a store: its leaders before it, as standbys and replaced leaders know them.

A leader and its standbys have one **lineage**: the promotions that led to the present leader,
oldest first. A store that has more of them than another has replaced it: commands that the other
has behind the promotion's are given up. Whether a store has a leader's commands, or others by the
same numbers, is said by the lives of the two (`embstore.storage.lives`).

Files of `log/` and `base/` have numbers that a leader uses once. A standby makes files of its own,
with numbers from `below` on; files with lower numbers are its leader's, byte for byte. A promoted
standby's own files are the leader's from then on, so each promotion has the number where they
begin: up to there, files of one name are the same in all stores of that history. In this way a
commit of a leader is taken over without the files that are there already.

The file LINEAGE is replaced whole, and has a checksum. A store that was never part of this has no
such file.
"""

import json
from dataclasses import asdict, dataclass, replace
from uuid import uuid4

from embstore.errors import CorruptTableError
from embstore.storage.files import Files
from embstore.storage.format import seal, unseal

PATH = "LINEAGE"
_FORMAT = 2
NO_NUMBER = 1 << 62
"""Above the number of every file."""


@dataclass(frozen=True)
class Promotion:
    """A standby became the leader."""

    id: str
    epoch: int
    """That began with it."""
    command: int
    """The last command that it had then: up to here all have the same."""
    first_number: int
    """Files from this number on are its own."""


@dataclass(frozen=True)
class Lineage:
    """The history that a store continues, and its replacement."""

    promotions: tuple[Promotion, ...] = ()
    below: int | None = None
    """On a standby: files with lower numbers are its leader's. None: on a leader."""
    replaced: str = ""
    """The address of the leader that this store has replaced; "": it has replaced none."""
    replaced_by: str = ""
    """The promotion that has replaced this store, in words; "": it was not replaced."""

    def common(self, other: tuple[Promotion, ...]) -> int:
        """Return how many promotions are the same as others, from the oldest on."""
        pairs = zip(self.promotions, other, strict=False)
        return next(
            (n for n, (mine, its) in enumerate(pairs) if mine.id != its.id),
            min(len(self.promotions), len(other)),
        )

    def is_continued_by(self, other: tuple[Promotion, ...]) -> bool:
        """Whether a store with these promotions has replaced this one."""
        return self.common(other) == len(self.promotions) < len(other)

    def gives_up(self, other: tuple[Promotion, ...], common: int) -> bool:
        """Whether this store has replaced one with these promotions, and has all commands of it
        that were to stay: `common` is the last one that both have."""
        is_newer = Lineage(other).is_continued_by(self.promotions)
        return is_newer and self.promotions[len(other)].command <= common

    def given_up(self, leader: tuple[Promotion, ...], command: int) -> str:
        """Return which commands, up to the last one here, the leader's commit lacks; "": none, or
        they are not known."""
        by = leader[len(self.promotions)] if self.is_continued_by(leader) else None
        if by is None or command <= by.command:
            return ""
        return (
            f"commands {by.command + 1} to {command}, which this server alone had, are given up: "
            f"it was replaced at command {by.command}, by the promotion that began epoch {by.epoch}"
        )

    def shared_below(self, other: tuple[Promotion, ...]) -> int:
        """Return the number below which files are the same as those of the leader with these
        promotions."""
        at = self.common(other)
        own = NO_NUMBER if self.below is None else self.below
        return min([own, *(p.first_number for p in (*self.promotions[at:], *other[at:]))])

    def goes_on(self, leader: tuple[Promotion, ...], next_number: int) -> "Lineage":
        """Return the lineage of a standby that goes on with a leader's commands."""
        return Lineage(leader, min(self.shared_below(leader), next_number))

    def promoted(self, epoch: int, command: int, address: str, next_number: int) -> "Lineage":
        """Return the lineage of a standby that is the leader from now on."""
        first = next_number if self.below is None else self.below
        new = Promotion(uuid4().hex, epoch, command, first)
        return Lineage((*self.promotions, new), replaced=address)

    def fenced(self, by: str) -> "Lineage":
        """Return the lineage of a leader that was replaced."""
        return replace(self, replaced_by=by)


def read(files: Files) -> Lineage:
    """Return the lineage of a directory.

    Raises CorruptTableError, TableMismatchError: its file is damaged, or of another format.
    """
    return decode(files.read_all(PATH), PATH) if files.exists(PATH) else Lineage()


def decode(content: bytes, path: str) -> Lineage:
    """Return the lineage of a file's content; `path` names it in errors.

    Raises CorruptTableError, TableMismatchError: it is damaged, or of another format.
    """
    body = unseal(PATH, _FORMAT, content, path)
    try:
        fields = json.loads(body)
        promotions = tuple(Promotion(**one) for one in fields["promotions"])
        return Lineage(**fields | {"promotions": promotions})
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise CorruptTableError(f"{path}: unreadable, though its checksum matches") from exc


def write(files: Files, lineage: Lineage) -> None:
    """Replace the lineage of a directory."""
    write_to(files, PATH, lineage)


def write_to(files: Files, path: str, lineage: Lineage) -> None:
    """Replace the lineage that is kept at a path."""
    files.replace(path, seal(PATH, _FORMAT, json.dumps(asdict(lineage)).encode() + b"\n"))
