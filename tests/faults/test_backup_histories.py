"""Backups of two histories of one store at one destination: none is taken for the other."""

import shutil

import numpy as np
import pytest

import embstore
from embstore.errors import InvalidArgumentError
from embstore.storage import lineage as lineages
from embstore.storage.files import Files
from embstore.storage.lineage import Lineage, Promotion
from tests.faults.backups import problems_of, restored

ROWS, BAD, SEED = 60_000, 30_500, 47
"""The bad row is in none of the samples by which files are compared."""


def opened(path):
    return embstore.open(path, device="cpu", cache_bytes=32 << 20, threads=1)


def train(path, value, *labels):
    """Train all rows, the bad one to `value`; return the open store, with checkpoints."""
    rows = np.random.default_rng(SEED).random((ROWS, 16), np.float32)
    rows[BAD] = value
    store = opened(path)
    store.table("items").assign(np.arange(ROWS), rows)
    for label in labels:
        store.checkpoint(label)
    return store


def value_of(source, path, label):
    """Return the bad row's value in what a backup gives."""
    restored(source, path, label)
    assert not problems_of(path)
    with opened(path) as store:
        return store.table("items").lookup([BAD])[0, 0]


def test_the_newest_backup_is_one_of_the_last_history(first, tmp_path):
    """A store that was restored to an older label has fewer commands, and a later epoch."""
    with train(first, 1.0) as store:
        for _ in range(9):
            store.table("items").assign([0], np.ones((1, 16), np.float32))
        given_up = store.backup(str(tmp_path / "to"))
    restored(tmp_path / "to", tmp_path / "again", "first")
    with train(tmp_path / "again", 2.0) as store:
        assert store.backup(str(tmp_path / "to")).command < given_up.command
    assert value_of(tmp_path / "to", tmp_path / "newest", None) == 2.0


@pytest.fixture
def first(tmp_path):
    """A store that was backed up as "first", and is closed; its path."""
    kinds = {"optimizer": embstore.Sgd(0.1), "initializer": embstore.Constant(0.0)}
    with opened(tmp_path / "store") as store:
        store.create_table("items", dim=16, rows=ROWS, **kinds)
        store.checkpoint("first")
        store.backup(str(tmp_path / "to"), "first")
    return tmp_path / "store"


def test_a_copy_of_a_directory_is_refused(first, tmp_path):
    """Both histories gave one name to two files of one size, whose samples are the same."""
    shutil.copytree(first, tmp_path / "copy")
    with train(first, 1.0, "second") as store:
        assert store.backup(str(tmp_path / "to"), "second").new_files
    with train(tmp_path / "copy", 2.0, "second", "third") as copy:
        for label in ("second", "third"):
            with pytest.raises(InvalidArgumentError, match="a copy of this store; choose another"):
                copy.backup(str(tmp_path / "to"), label)
        copy.backup(str(tmp_path / "own"), "second")
    assert value_of(tmp_path / "to", tmp_path / "one", "second") == 1.0
    assert value_of(tmp_path / "own", tmp_path / "other", "second") == 2.0


def test_a_restored_store_makes_backups_at_the_same_destination(first, tmp_path):
    to = tmp_path / "to"
    with train(first, 1.0, "second", "kept") as store:
        store.backup(str(to), "second")
        store.backup(str(to), "kept")
    restored(to, tmp_path / "again", "first")
    with train(tmp_path / "again", 2.0, "second") as store:
        assert store.backup(str(to), "second").new_files
    assert value_of(to, tmp_path / "one", "second") == 2.0
    assert value_of(to, tmp_path / "other", "kept") == 1.0


def test_a_restored_store_has_its_promotions(first, tmp_path):
    """Else a standby that follows it would have more promotions, and would replace it."""
    promotions = (Promotion("a promotion", 2, 1, 9),)
    lineages.write(Files(first), Lineage(promotions, replaced="127.0.0.1:1"))
    with train(first, 1.0, "second") as store:
        store.backup(str(tmp_path / "to"), "second")
    restored(tmp_path / "to", tmp_path / "same", "second")
    assert lineages.read(Files(tmp_path / "same")) == Lineage(promotions)
    restored(tmp_path / "to", tmp_path / "another", "second", "0" * 32)
    assert lineages.read(Files(tmp_path / "another")) == Lineage()
