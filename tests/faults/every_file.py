"""A store that has a file of every kind, older copies of each of them, and damage to any of them.

Files are listed, never named: a new kind of file is damaged as all others are, and is expected to
be missed as loudly as they are, until a test says otherwise.
"""

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embstore.engine.opening import saying_how_to_mend
from embstore.errors import CorruptTableError, EmbstoreError, StorageError, TableMismatchError
from embstore.profiles.hotset import HotSet
from embstore.sharding import ShardMap
from embstore.storage import catalogue as catalogues
from embstore.storage import lineage as lineages
from embstore.storage import shard as shards
from embstore.storage.files import Files
from embstore.storage.lineage import Lineage, Promotion
from embstore.storage.shard import ShardPlace
from embstore.storage.taking import Incoming
from embstore.storage.verify import verify
from tests.conformance.backends import UnsyncedFiles
from tests.conformance.cases import engine_of
from tests.copies import copy_of_open
from tests.faults.damage import SEED, check_rows
from tests.faults.promises import Promise, check_content, content_of
from tests.faults.training import LOGGED, DenseStore, open_store, stir, train

COMMANDS, REOPENED = 43, 29
"""Of the training: then the store has segments that a commit names, and others; and when it is
closed and opened again."""
OPTIONS: dict[str, Any] = LOGGED | {"count_rate": 1.0, "commit_every_s": 0.0}

OLDER = ("as it was before", "as it was at first")
Case = tuple[str, str]
"""A file or folder, and what is done to it."""


@dataclass
class Made:
    """A store that ended by a crash, and what it was on the way there."""

    path: Path
    promises: list[Promise] = field(default_factory=list)
    """Of each command and label, oldest first."""
    older: dict[str, list[bytes]] = field(default_factory=dict)
    """Of each file its contents, oldest first."""

    def save(self) -> str:
        """Write all this to a file; return its path."""
        place = self.path.with_name(f"{self.path.name}.pickle")
        place.write_bytes(pickle.dumps(self))
        return str(place)

    def note_files(self, path: Path) -> None:
        """Note the contents that files have now."""
        for name in names_of(path):
            seen, content = self.older.setdefault(name, []), (path / name).read_bytes()
            if seen[-1:] != [content]:
                seen.append(content)


def names_of(path: Path) -> list[str]:
    """Return every file of a directory, sorted."""
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def make(path: Path) -> Made:
    """Make a store with tables of dense and sparse keys, labels, a base, a command log with
    spares, counts, an imported profile, a hot set, a shard's place and a lineage; kill it."""
    made, dense = Made(path / "killed"), DenseStore()
    files = UnsyncedFiles(path / "store")
    for stretch in (REOPENED, COMMANDS - REOPENED):
        with open_store(path / "store", files=files, **OPTIONS) as store:
            if stretch != REOPENED:
                _note_use(store)
            for _ in range(stretch):
                is_last = dense.command + 1 == COMMANDS
                train(store, SEED, 1, label_last=not is_last)
                engine_of(store).log.wait()
                made.note_files(path / "store")
                stir(store, SEED)
                engine_of(store).storage.merges.finish()
                train(dense, SEED, 1, label_last=not is_last)
                made.promises.append(content_of(dense))
            _note_places(files)
            made.note_files(path / "store")
            if dense.command == COMMANDS:
                copy_of_open(path / "store", made.path)
    return made


def make_taking(made: Made, path: Path) -> Made:
    """Return a standby that ended when the commit of a leader, a store that was closed, had just
    come."""
    taking = Made(path / "taking")
    with open_store(made.path.parent / "store", read_only=True) as leader:
        taking.promises = [*made.promises, content_of(leader)]
    with open_store(taking.path, files=UnsyncedFiles(taking.path), **OPTIONS) as store:
        train(store, SEED, 9)
        taking.note_files(taking.path)
    catalogue = catalogues.decode((made.path.parent / "store" / catalogues.PATH).read_bytes())
    incoming = Incoming(UnsyncedFiles(taking.path), catalogue, ())
    for name, size in incoming.missing(None).items():
        content = (made.path.parent / "store" / name).read_bytes()
        incoming.receive(name, 0, content[: size // 2], size)
        incoming.receive(name, size // 2, content[size // 2 :], size)
    taking.note_files(taking.path)
    incoming.end()
    taking.note_files(taking.path)
    return taking


def _note_use(store: Any) -> None:
    store.import_profile(store.export_profile())
    store.pin_hot_set(HotSet({"ads": np.arange(3)}))


def _note_places(files: Files) -> None:
    """Write which shard it is, and which leaders were before it: once more at each call."""
    noted = lineages.read(files)
    promotion = Promotion(f"promotion {len(noted.promotions)}", 2, 3, 1 << 20)
    lineages.write(files, Lineage((*noted.promotions, promotion)))
    addresses = ["127.0.0.1:1", "127.0.0.1:2"]
    place = shards.read(files)
    if place is None:
        shards.write(files, ShardPlace(1, ShardMap.even("cluster", addresses)))
    else:
        shards.write(files, place.paused("somebody"))


# Damage


def cases(made: Made) -> Iterator[Case]:
    """Yield each damage to each file and folder, where it is one."""
    for name in names_of(made.path):
        yield name, "deleted"
        content = (made.path / name).read_bytes()
        if content:
            yield name, "halved"
            yield from ((name, f"flipped at {at}") for at in _places(name, len(content)))
        older = [one for one in made.older[name] if one != content]
        yield from ((name, what) for what in OLDER[: len(older)])
    folders = sorted({str(Path(name).parent) for name in names_of(made.path)} - {"."})
    yield from ((name, what) for name in folders for what in ("deleted", *OLDER))


def _places(name: str, size: int) -> list[int]:
    """Return where bits of a file are flipped: in its second half, and in a header page."""
    has_page = name.endswith((".log", ".rows", ".ids", ".commands"))
    return [20] * has_page + [size - size // 3 - 1]


def damage(made: Made, root: Path, case: Case) -> None:
    """Do it, to a copy of the store in `root`."""
    name, what = case
    path = root / name
    if path.is_dir():
        names = names_of(path)
        shutil.rmtree(path)
        for one in names if what in OLDER else ():
            (path / one).parent.mkdir(parents=True, exist_ok=True)
            (path / one).write_bytes(_older(made, f"{name}/{one}", what))
    elif what == "deleted":
        path.unlink()
    elif what in OLDER:
        path.write_bytes(_older(made, name, what))
    else:
        path.write_bytes(damaged(path.read_bytes(), what))


def damaged(content: bytes, what: str) -> bytes:
    """Return half of a content, or the content with one bit flipped."""
    if what == "halved":
        return content[: len(content) // 2]
    at = int(what.removeprefix("flipped at "))
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def _older(made: Made, name: str, what: str) -> bytes:
    """Return an older content of a file, or, of one that never changed, what it is."""
    now = (made.path / name).read_bytes()
    older = [one for one in made.older[name] if one != now] or [now]
    return older[-1 if what == OLDER[0] else 0]


# What comes of it


@dataclass(frozen=True)
class Outcome:
    """What came of opening a damaged store, and of verifying it."""

    opened: str
    """right: all of it. shorter: an earlier state, and why commands are lost. older: an earlier
    state, and nothing is said. refused. Else it is wrong."""
    said: str
    """The error, or the reason of lost commands."""
    problems: tuple[str, ...]
    """That `embstore verify` reports."""

    def __str__(self) -> str:
        return self.opened


def outcome(made: Made, root: Path) -> Outcome:
    """Verify a damaged directory, and open it."""
    problems: list[str] = []
    try:
        verify(Files(root), problems.append, lambda *_: None)
    except EmbstoreError as exc:
        problems.append(str(exc))
    opened, said = _opened(made, root)
    return Outcome(opened, said, tuple(problems))


def _opened(made: Made, root: Path) -> tuple[str, str]:
    files = UnsyncedFiles(root)
    try:
        with open_store(root, files=files, **OPTIONS) as store:
            with saying_how_to_mend(root):  # as a server does
                shards.read(files)
                lineages.read(files)
            engine_of(store).storage.merges.finish()
            found = check_content(store, *made.promises)
            check_rows(store)
            lost = str(engine_of(store).lost)
    except (CorruptTableError, TableMismatchError, StorageError) as exc:
        return "refused", str(exc)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"[:300], ""
    if found == made.promises[-1]:
        return ("shorter" if lost else "right"), lost
    return ("shorter" if lost else "older"), lost


def try_cases(reports: Any, saved: str) -> None:
    """A child: do each damage to a copy of a store that was `saved`, and report what came of it, as
    `damage.results` takes it."""
    made: Made = pickle.loads(Path(saved).read_bytes())
    copy = made.path.with_name(f"{made.path.name}-copy")
    for case in cases(made):
        shutil.copytree(made.path, copy)
        damage(made, copy, case)
        reports.send(("tries", case))
        reports.send(("came", outcome(made, copy)))
        shutil.rmtree(copy)
