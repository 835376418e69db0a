"""A store that a release wrote is read, trained on and restored by this version, bit by bit."""

import shutil

import pytest

from embstore.version import __version__
from tests import kept_store
from tests.faults.backups import problems_of, restored
from tests.kept_store import BACKUP, LABELS, STORE, facts_of, opened, unpacked

ARCHIVES = sorted(kept_store.FOLDER.glob("store-*.tar.xz"))


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name)
def kept(request, tmp_path_factory):
    """The folder of an unpacked archive, and the facts in it."""
    path = tmp_path_factory.mktemp("kept")
    return path, unpacked(request.param, path)


@pytest.fixture
def store_path(kept, tmp_path):
    """A copy of the store that a test may write to."""
    return shutil.copytree(kept[0] / STORE, tmp_path / "store")


def test_this_version_has_its_archive():
    assert f"store-{__version__}.tar.xz" in {path.name for path in ARCHIVES}


def test_the_archive_has_files_of_every_folder(kept):
    folders = {path.name for path in (kept[0] / STORE).iterdir() if path.is_dir()}
    assert folders >= {"base", "commands", "frequency", "ids", "log"}


def test_commands_after_the_last_commit_are_replayed(kept, store_path):
    with opened(store_path) as store:
        assert facts_of(store) == kept[1]["last"]
        store.check_integrity()


def test_each_checkpoint_is_restored(kept, store_path):
    with opened(store_path) as store:
        kept_labels = [checkpoint.label for checkpoint in store.checkpoints()]
        assert kept_labels == [LABELS[0]]  # the restore dropped the newer ones
        store.restore(LABELS[0])
        assert facts_of(store)["tables"] == kept[1][LABELS[0]]["tables"]


def test_training_goes_on_with_the_same_bits(kept, store_path, tmp_path):
    """The optimizer state of the kept store is right in each bit: the next step shows it."""
    digests = []
    for path in (store_path, shutil.copytree(kept[0] / STORE, tmp_path / "again")):
        with opened(path) as store:
            store.restore(LABELS[0])
            kept_store.train(store, 1)
            digests.append(facts_of(store)["tables"])
    assert digests[0] == digests[1] == kept[1][LABELS[1]]["tables"]


def test_the_backup_gives_the_same_tables(kept, tmp_path):
    restored(kept[0] / BACKUP, tmp_path / "restored")
    with opened(tmp_path / "restored") as store:
        assert facts_of(store)["tables"] == kept[1][BACKUP]["tables"]


def test_every_byte_is_verified(kept):
    assert problems_of(kept[0] / STORE) == []
