"""The lineage of a store: its former leaders, as recorded by standbys and replaced leaders.

A leader and its standbys have the same **lineage**: the promotions that led to the present leader,
oldest first. If the lineage of store A continues the lineage of store B, A has replaced B. The
replaced store gives up the commands that it executed after the promotion. Whether a store has the
commands of a leader, or other commands with the same numbers, is decided by the lives of the two
stores (`embstore.storage.lives`).

The files of `log/` and `base/` have numbers, and a leader uses each number once. A standby makes
some files of its own, with numbers from `below` on. Its files with lower numbers are equal, byte
for byte, to the files of its leader. When a standby is promoted, its own files become files of the
leader, so each promotion records the number at which these files begin. Below that number, files of
the same name are the same in all stores of that history. Therefore, when a standby takes over a
leader's commit, it need not fetch the files that it already has.

The file LINEAGE is replaced as a whole, and has a checksum. A store that has never been replicated
has no such file.
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
"""A number above the numbers of all files."""


@dataclass(frozen=True)
class Promotion:
    """A promotion, by which a standby became the leader."""

    id: str
    epoch: int
    """The epoch that the promotion began."""
    command: int
    """The standby's last command at the promotion; all stores have the same commands up to this
    command."""
    first_number: int
    """The lowest number of the files that the promoted standby made itself."""


@dataclass(frozen=True)
class Lineage:
    """The promotions that led to a store; also the promotion that has replaced the store, or the
    leader that the store has replaced, if there is one."""

    promotions: tuple[Promotion, ...] = ()
    below: int | None = None
    """On a standby, the number below which its files are equal to the files of its leader; None on
    a leader."""
    replaced: str = ""
    """The address of the leader that this store has replaced; "" if it has replaced no leader."""
    replaced_by: str = ""
    """A description of the promotion that has replaced this store; "" if none has."""

    def common(self, other: tuple[Promotion, ...]) -> int:
        """Return how many promotions, from the oldest on, are the same as in `other`."""
        pairs = zip(self.promotions, other, strict=False)
        return next(
            (n for n, (mine, its) in enumerate(pairs) if mine.id != its.id),
            min(len(self.promotions), len(other)),
        )

    def is_continued_by(self, other: tuple[Promotion, ...]) -> bool:
        """Return whether a store with the promotions `other` has replaced this store."""
        return self.common(other) == len(self.promotions) < len(other)

    def gives_up(self, other: tuple[Promotion, ...], common: int) -> bool:
        """Return whether this store has replaced a store with the promotions `other`, and has all
        commands of that store up to the promotion that replaced it. `common` is the last command
        that both stores have."""
        is_newer = Lineage(other).is_continued_by(self.promotions)
        return is_newer and self.promotions[len(other)].command <= common

    def given_up(self, leader: tuple[Promotion, ...], command: int) -> str:
        """Return a description of the commands, up to `command`, that this store has and the
        leader's commit lacks; "" if there are none, or if they are not known."""
        by = leader[len(self.promotions)] if self.is_continued_by(leader) else None
        if by is None or command <= by.command:
            return ""
        return (
            f"commands {by.command + 1} to {command}, which this server alone had, are given up: "
            f"it was replaced at command {by.command}, by the promotion that began epoch {by.epoch}"
        )

    def shared_below(self, other: tuple[Promotion, ...]) -> int:
        """Return the number below which files of this store are the same as the files of a leader
        with the promotions `other`."""
        at = self.common(other)
        own = NO_NUMBER if self.below is None else self.below
        return min([own, *(p.first_number for p in (*self.promotions[at:], *other[at:]))])

    def goes_on(self, leader: tuple[Promotion, ...], next_number: int) -> "Lineage":
        """Return the lineage of this store as a standby that continues with a leader's commands."""
        return Lineage(leader, min(self.shared_below(leader), next_number))

    def promoted(self, epoch: int, command: int, address: str, next_number: int) -> "Lineage":
        """Return the lineage of this store after its promotion from standby to leader."""
        first = next_number if self.below is None else self.below
        new = Promotion(uuid4().hex, epoch, command, first)
        return Lineage((*self.promotions, new), replaced=address)

    def fenced(self, by: str) -> "Lineage":
        """Return the lineage of this store after another store has replaced it as leader."""
        return replace(self, replaced_by=by)


def read(files: Files) -> Lineage:
    """Return the lineage of a directory.

    Raises CorruptTableError, TableMismatchError: the file is damaged, or of another format.
    """
    return decode(files.read_all(PATH), PATH) if files.exists(PATH) else Lineage()


def decode(content: bytes, path: str) -> Lineage:
    """Decode a lineage from the content of its file; `path` is the file's name in errors.

    Raises CorruptTableError, TableMismatchError: the content is damaged, or of another format.
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
    """Replace the lineage in the file at `path`."""
    files.replace(path, encode(lineage))


def encode(lineage: Lineage) -> bytes:
    """Return the content of a file LINEAGE."""
    return seal(PATH, _FORMAT, json.dumps(asdict(lineage)).encode() + b"\n")
