"""The catalogue: the committed state, in one small file replaced by rename.

A **commit** is a rename. Before the rename, all files of the new catalogue are on the disk; after
the rename, files that the new catalogue no longer names may be removed. Therefore a crash leaves
either the old catalogue or the new one, and files that the remaining catalogue does not name are
removed as leftovers.

A **state** describes the store at a commit: the tables with their identity and tunables (number of
rows, learning rate), and the command number. The rows of a state are in the runs of the base and in
the segments of the log whose ``commit <= state.commit``. A record in a segment replaces a record in
a run, and a later record replaces an earlier one. The **head** is the newest state; a
**checkpoint** is a state that is kept under the caller's label. Files that are folded or merged
together lie between the same two checkpoints, so that every kept state stays readable.

The numbers of segments, runs and files of ids, and the table ids, only grow. The **epoch** also
only grows. It changes whenever acknowledged commands were undone, by a restore or by a crash:
anything that a client knows from an older epoch is void. To detect a crash, the catalogue contains
the flag **tail**, which is set before the first command after a commit, and cleared by the next
commit. If the tail is set when a store is opened, commands were lost, and a new epoch begins. The
new epoch is written together with the next write, because no command can be lost before that write.

If commands are logged, a commit records its position in the command log (command_records.py). If
the command log is missing, or if the part of it that was durable at the commit is not whole, the
store is damaged.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from embstore.arrays import KEY_BITS
from embstore.errors import CorruptTableError, EmbstoreError
from embstore.results import State, ids_with
from embstore.storage import command_records
from embstore.storage.format import FORMAT, seal, unseal
from embstore.storage.lives import Life, Lives
from embstore.storage.states import NOTHING, KeptState, as_json, changed, changes

PATH = "CATALOGUE"
_STATES = ("checkpoints", "head")


@dataclass(frozen=True)
class SegmentEntry:
    """A committed log segment. A later entry in the catalogue's list is newer."""

    number: int
    commit: int
    bytes: int
    checksum: int

    @property
    def path(self) -> str:
        """The file's path in the store."""
        return segment_path(self.number)


@dataclass(frozen=True)
class PartEntry:
    """A range of keys in a file of the base: this file contains the rows that the run `number` has
    in that range."""

    number: int
    part: int
    commit: int  # its rows are between the same two kept checkpoints as this commit
    low: int  # row keys in [low, high)
    high: int
    bytes: int
    checksum: int

    @property
    def path(self) -> str:
        """The file's path in the store."""
        return part_path(self.number, self.part)


RunEntry = tuple[PartEntry, ...]
"""Parts by ascending key."""


@dataclass(frozen=True)
class IdsEntry:
    """A file with the ids of `count` row numbers of a sparse table, from `first` on."""

    number: int
    table_id: int
    first: int
    count: int
    commit: int  # its row numbers are between the same two kept checkpoints as this commit
    bytes: int
    checksum: int  # of the ids

    @property
    def path(self) -> str:
        """The file's path in the store."""
        return f"ids/{self.number:012d}.ids"

    def has(self, number: int) -> bool:
        """Return whether the id of a row number is in the file."""
        return self.first <= number < self.first + self.count


Entry = SegmentEntry | PartEntry | IdsEntry


def segment_path(number: int) -> str:
    """Return the path of a log segment."""
    return f"log/{number:012d}.log"


def part_path(number: int, part: int) -> str:
    """Return the path of a part of a run."""
    return f"base/{number:012d}-{part:06d}.rows"


@dataclass(frozen=True)
class Catalogue:
    """The whole committed state."""

    store_id: str
    epoch: int = 1
    tail: bool = False
    next_table_id: int = 0
    next_segment: int = 1
    head: State = field(default_factory=State)
    lives: Lives = ()
    """The lives, that is, the processes that gave the commands up to the head's command their
    numbers (lives.py)."""
    checkpoints: tuple[KeptState, ...] = ()  # oldest first
    segments: tuple[SegmentEntry, ...] = ()  # oldest first
    runs: tuple[RunEntry, ...] = ()  # of the base, oldest first
    ids: tuple[IdsEntry, ...] = ()  # by table and row number
    commands: command_records.Place | None = None
    """The segment of the command log that the commit began, and the offset at which the segment
    ended when it was synced; None: there is no command log."""

    def checkpoint(self, label: str) -> KeptState | None:
        """Return the kept checkpoint of a label."""
        return next((c for c in self.checkpoints if c.label == label), None)

    def interval(self, commit: int) -> int:
        """Return the number of kept checkpoints that are older than a commit."""
        return sum(c.state.commit < commit for c in self.checkpoints)

    def table_ids(self) -> set[int]:
        """Return the ids of all tables that a kept state names."""
        states = [self.head, *(c.state for c in self.checkpoints)]
        return set().union(*(state.table_ids for state in states))

    def without_dropped(self) -> "Catalogue":
        """Return the catalogue without the parts and files of ids of tables that no state names."""
        alive = np.array(sorted(self.table_ids()), np.int64)

        def is_alive(part: PartEntry) -> bool:
            first, last = part.low >> KEY_BITS, (part.high - 1) >> KEY_BITS
            return int(np.searchsorted(alive, first)) < int(np.searchsorted(alive, last, "right"))

        runs = (tuple(filter(is_alive, run)) for run in self.runs)
        ids = tuple(entry for entry in self.ids if entry.table_id in alive)
        return replace(self, runs=tuple(run for run in runs if run), ids=ids)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of files that are kept because of checkpoints: the files newer than the oldest
        checkpoint, because they are not merged with older files; and the files of tables that the
        head does not have."""
        if not self.checkpoints:
            return 0
        horizon = self.checkpoints[0].state.commit
        left = replace(self, checkpoints=()).without_dropped()
        needed = {part.path for run in left.runs for part in run}
        base = {part.path: part for run in self.runs for part in run}
        waiting = [p for p in base.values() if p.commit > horizon or p.path not in needed]
        log = [segment for segment in self.segments if segment.commit > horizon]
        entries: list[Entry] = [*waiting, *log, *(set(self.ids) - set(left.ids))]
        return sum(entry.bytes for entry in entries)

    def restored(
        self, checkpoint: KeptState, command: int, lives: Lives, update_id: int = 0
    ) -> "Catalogue":
        """Return the catalogue after a restore. Its head is a kept checkpoint with two changes: the
        head has `command` and `lives`, and the rows of all tables count as changed by the restore,
        which has the id `update_id` in a cluster."""
        state, commit = checkpoint.state, checkpoint.state.commit
        tables = (
            replace(one, written=command, update_ids=ids_with(one.update_ids, update_id))
            for one in state.tables
        )
        return replace(
            self,
            epoch=self.epoch + 1,
            tail=False,
            head=replace(state, command=command, tables=tuple(tables)),
            lives=lives,
            checkpoints=tuple(c for c in self.checkpoints if c.state.commit <= commit),
            segments=tuple(s for s in self.segments if s.commit <= commit),
            runs=tuple(run for run in self.runs if run[0].commit <= commit),
            ids=tuple(entry for entry in self.ids if entry.commit <= commit),
        )


def reopened(catalogue: Catalogue) -> Catalogue:
    """Return the catalogue as the next process that opens the store uses it. If the tail is set,
    the commands after the commit are lost, and a new epoch begins."""
    if not catalogue.tail:
        return catalogue
    return replace(catalogue, epoch=catalogue.epoch + 1, tail=False)


class Encoder:
    """Encodes successive catalogues. A checkpoint that the previous catalogue also contains is not
    encoded again. One thread."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[State, KeptState, str]] = {}
        """Encoded checkpoints of the last catalogue. The key is the Python `id` of the state before
        the checkpoint, and that of the checkpoint. The value refers to both objects, so that their
        ids stay valid."""

    def encode(self, catalogue: Catalogue) -> bytes:
        """Return the content of the catalogue's file. JSON objects keep their order, because the
        order of the sessions' resume positions is part of the state."""
        before, kept = NOTHING, {}
        for one in catalogue.checkpoints:
            key = id(before), id(one)
            kept[key] = self._kept.get(key) or (before, one, as_json(one.fields(before)))
            before = one.state
        self._kept = kept
        texts = {
            name: as_json(value) for name, value in vars(catalogue).items() if name not in _STATES
        }
        texts["checkpoints"] = f"[{','.join(text for *_, text in kept.values())}]"
        texts["head"] = as_json(changes(before, catalogue.head))
        lines = (f' "{name}": {text}' for name, text in texts.items())
        return seal(PATH, FORMAT, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def encode(catalogue: Catalogue) -> bytes:
    """Return the content of a catalogue file, encoded without reuse of earlier encoded
    checkpoints."""
    return Encoder().encode(catalogue)


def decode(content: bytes, path: str = PATH) -> Catalogue:
    """Decode a catalogue from the content of its file; `path` is the file's name in errors.

    Raises CorruptTableError, TableMismatchError: the content is damaged, or of another format.
    """
    body = unseal(PATH, FORMAT, content, path)
    try:
        fields = json.loads(body)
        place, before, kept = fields["commands"], NOTHING, []
        for one in fields["checkpoints"]:
            before = changed(before, one["state"])
            kept.append(KeptState(**one | {"state": before}))
        return Catalogue(
            **fields
            | {
                "head": changed(before, fields["head"]),
                "lives": tuple(Life(*one) for one in fields["lives"]),
                "checkpoints": tuple(kept),
                "segments": tuple(SegmentEntry(**s) for s in fields["segments"]),
                "runs": tuple(tuple(PartEntry(**p) for p in run) for run in fields["runs"]),
                "ids": tuple(IdsEntry(**entry) for entry in fields["ids"]),
                "commands": None if place is None else command_records.Place(*place),
            }
        )
    except (KeyError, TypeError, ValueError, RecursionError, EmbstoreError) as exc:
        raise CorruptTableError(f"{path}: unreadable, though its checksum matches") from exc


def paths(catalogue: Catalogue) -> dict[str, int]:
    """Return, by path, the size in bytes of each file of log, base and ids that a catalogue
    names."""
    found = {segment.path: segment.bytes for segment in catalogue.segments}
    found |= {part.path: part.bytes for run in catalogue.runs for part in run}
    return found | {entry.path: entry.bytes for entry in catalogue.ids}


def unnamed(catalogue: Catalogue, found: Iterable[str]) -> list[str]:
    """Return the paths in `found` that the catalogue does not name. `found` contains paths of files
    of log, base and ids."""
    named = paths(catalogue)
    return [path for path in found if path not in named]
