"""Files that were replaced below an open store are not taken for its own."""

import shutil
from pathlib import Path

import pytest

from embstore.errors import StorageError
from embstore.storage.files import Files
from embstore.storage.presence import Presence
from tests.unit.storage_samples import append, open_storage, table_entry

TABLE = table_entry(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a committed segment of its log."""
    storage = open_storage(tmp_path / "store")
    storage.create_table(TABLE)
    append(storage, [1, 2], 1, 1)
    storage.commit([TABLE], 1)
    storage.close()
    return tmp_path / "store"


def test_a_folder_that_was_replaced_by_its_copy_fails_the_next_commit(path):
    storage = open_storage(path)
    assert storage.missing() == ""
    (path / "log").rename(path.parent / "away")
    shutil.copytree(path.parent / "away", path / "log")
    (segment,) = (f"log/{file.name}" for file in (path / "log").iterdir())
    assert storage.missing() == segment
    with pytest.raises(StorageError, match=f"{segment} was removed .* or replaced"):
        storage.commit([TABLE], 2)
    storage.close()


def test_a_segment_that_was_replaced_before_its_commit_is_not_committed(path):
    storage = open_storage(path)
    append(storage, [3], 1, 1)
    newest = max((path / "log").iterdir())
    newest.rename(path / "away")
    shutil.copyfile(path / "away", newest)
    with pytest.raises(StorageError, match=f"{newest.name} was removed"):
        storage.commit([TABLE], 2)
    storage.close()


def test_an_older_catalogue_is_missed_until_the_next_commit(path):
    storage = open_storage(path)
    older = (path / "CATALOGUE").read_bytes()
    storage.commit([TABLE], 2)
    assert storage.missing() == ""
    (path / "CATALOGUE").write_bytes(older)
    assert storage.missing() == "CATALOGUE"
    storage.commit([TABLE], 3)
    assert storage.missing() == ""
    storage.close()


def test_a_file_system_that_lists_other_numbers_is_asked_for_the_file(path, monkeypatch):
    presence, files = Presence(Files(path)), Files(path)
    presence.begin({"store.json"})
    listed = files.inodes("")
    monkeypatch.setattr(Files, "inodes", lambda *_: {name: n + 1 for name, n in listed.items()})
    assert presence.gone({"store.json"}) == ""
