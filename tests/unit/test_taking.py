"""A commit of another store is taken as a whole or not at all, wherever it is cut off."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Constant, Sgd
from embstore.errors import CorruptTableError
from embstore.handles.store import Store
from embstore.storage import catalogue as catalogues
from embstore.storage import lineage as lineages
from embstore.storage.catalogue import paths
from embstore.storage.files import Files
from embstore.storage.lineage import Lineage
from embstore.storage.taking import Incoming, finish
from tests.faults.refusing import CHANGES, RefusingFiles


class CutError(Exception):
    """The process has ended."""


class CutFiles(RefusingFiles):
    """Ends at one of the operations that change something."""

    def __init__(self, root: Path, left: int) -> None:
        super().__init__(root)
        self.left = left

    def _ask(self, verb: str, path: str) -> None:
        self.left -= verb in (*CHANGES, "write")
        if self.left < 0:
            raise CutError


def opened(path: Path) -> Store:
    return embstore.open(path, cache_bytes=1 << 20, threads=1)


def made(path: Path, *, updates: int) -> dict[str, Any]:
    """Make a store with a commit after each update; return its tables' digests."""
    with opened(path) as store:
        table = store.create_table(
            "a", dim=4, rows=100, optimizer=Sgd(0.1), initializer=Constant(1.0)
        )
        for n in range(updates):
            table.update(np.arange(n + 1), np.ones((n + 1, 4), np.float32))
            store.checkpoint(f"label-{n}")
        return digests(store)


def digests(store: Store) -> dict[str, Any]:
    return {name: store.table(name).digest() for name in store.tables()}


def take(files: Files, leader: Path, *, present: Lineage | None) -> dict[str, int]:
    """Take the last commit of a directory; return the files that had to be sent."""
    catalogue = catalogues.decode((leader / catalogues.PATH).read_bytes())
    incoming = Incoming(files, catalogue, ())
    missing = incoming.missing(present)
    for path, size in missing.items():
        content = (leader / path).read_bytes()
        half = size // 2
        incoming.receive(path, 0, content[:half], size)
        incoming.receive(path, half, content[half:], size)
    incoming.end()
    return missing


def content(path: Path) -> dict[str, Any]:
    with opened(path) as store:
        return digests(store)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Path]:
    made(tmp_path / "leader", updates=4)
    yield tmp_path / "leader"


def test_a_commit_takes_the_place_of_what_was_there(tmp_path, leader):
    standby = tmp_path / "standby"
    before = made(standby, updates=2)
    take(Files(standby), leader, present=None)
    after = content(leader)
    assert content(standby) == after != before
    assert not (standby / "incoming").exists()
    with opened(standby) as store:
        store.check_integrity()
        assert store.executor.storage.catalogue.next_segment >= 1  # type: ignore[attr-defined]


def test_a_file_that_is_there_is_not_sent_again(tmp_path, leader):
    standby = tmp_path / "standby"
    content(standby)
    catalogue = catalogues.decode((leader / catalogues.PATH).read_bytes())
    assert take(Files(standby), leader, present=None).keys() == paths(catalogue).keys()
    assert content(standby) == content(leader)
    with opened(leader) as store:
        store.table("a").update(np.arange(50), np.ones((50, 4), np.float32))
        store.checkpoint("more")
    sent = take(Files(standby), leader, present=lineages.read(Files(standby)))
    assert 0 < len(sent) < len(paths(catalogue))
    assert content(standby) == content(leader)


def test_what_was_sent_before_a_cut_is_not_sent_again(tmp_path, leader):
    files = Files(tmp_path / "standby")
    content(tmp_path / "standby")
    catalogue = catalogues.decode((leader / catalogues.PATH).read_bytes())
    incoming = Incoming(files, catalogue, ())
    first, *others = incoming.missing(None)
    size = paths(catalogue)[first]
    incoming.receive(first, 0, (leader / first).read_bytes(), size)
    incoming.receive(others[0], 0, b"x", paths(catalogue)[others[0]])
    assert list(Incoming(files, catalogue, ()).missing(None)) == others
    other = lineages.Promotion("other", 2, 0, 0)
    assert list(Incoming(files, catalogue, (other,)).missing(None)) == [first, *others]


def test_a_piece_that_does_not_follow_is_an_error(tmp_path, leader):
    files = Files(tmp_path / "standby")
    content(tmp_path / "standby")
    catalogue = catalogues.decode((leader / catalogues.PATH).read_bytes())
    incoming = Incoming(files, catalogue, ())
    path, size = next(iter(paths(catalogue).items()))
    incoming.receive(path, 0, b"xx", size)
    for offset, piece in ((1, b"x"), (3, b"x"), (2, bytes(size))):
        with pytest.raises(CorruptTableError, match="expected a piece"):
            incoming.receive(path, offset, piece, size)


def test_a_cut_at_any_operation_leaves_the_old_or_the_new(tmp_path, leader):
    standby, at = tmp_path / "standby", tmp_path / "at"
    before = made(standby, updates=2)
    after = content(leader)
    found = []
    for left in range(1000):
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(standby, at)
        cut = CutFiles(at, left)
        try:
            take(cut, leader, present=None)
            finish(cut)
        except CutError:
            found.append(content(at))
            continue
        break
    assert found == sorted(found, key=lambda one: one == after)
    assert before in found and after in found
    assert len(found) > 20 and content(at) == after
