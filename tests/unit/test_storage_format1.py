"""A store of format 1 becomes one of format 2 when it is opened for writing, or stays as it was."""

import contextlib
import errno
import json
import tarfile
from pathlib import Path

import pytest

import embstore
from embstore.errors import CapacityError, StorageError, StoreClosedError, TableMismatchError
from tests.conformance.twin import digests
from tests.faults.refusing import RefusingFiles
from tests.unit.storage_samples import open_storage, versions

DATA = Path(__file__).parents[1] / "data"
WRITTEN = json.loads((DATA / "store-0.1.0.json").read_text())
VERBS = ("write", "sync", "rename", "create", "sync_directory")


@pytest.fixture
def path(tmp_path):
    with tarfile.open(DATA / "store-0.1.0.tar.gz") as archive:
        archive.extractall(tmp_path / "store", filter="data")
    return tmp_path / "store"


def check_opens(path):
    with embstore.open(path, device="cpu", cache_bytes=1 << 20) as store:
        assert digests(store) == WRITTEN["digests"]["head"]
    assert json.loads((path / "store.json").read_text())["format"] == 2
    assert not [name for name in (path / "base").iterdir() if name.is_dir()]


def test_a_reader_is_told_what_to_do(path):
    before = sorted(path.rglob("*"))
    with pytest.raises(TableMismatchError, match="open it once for writing"):
        embstore.open(path, read_only=True)
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("nth", range(1, 18))
def test_what_was_cut_off_is_done_again(path, nth, code):
    files = RefusingFiles(path).refuse(VERBS, nth, code)
    with contextlib.suppress(CapacityError, StorageError, StoreClosedError):
        embstore.open(path, device="cpu", cache_bytes=1 << 20, files=files).close()
    assert files.refusals
    check_opens(path)
    check_opens(path)


def extracted(tmp_path, name):
    with tarfile.open(DATA / f"store-0.1.0-{name}.tar.gz") as archive:
        archive.extractall(tmp_path / name, filter="data")
    return tmp_path / name


def test_rows_that_a_fold_was_writing_when_it_was_cut_off_are_those_of_the_log(tmp_path):
    """It wrote them in place: what the base has of them may be torn."""
    storage = open_storage(extracted(tmp_path, "torn"))
    for table_id, dim in enumerate((64, 1100)):
        assert versions(storage, range(10), table_id, dim) == [2] * 9 + [-1]
    storage.close()


def test_a_bitmap_that_a_dropped_table_left_behind_is_passed_over(tmp_path):
    storage = open_storage(extracted(tmp_path, "dropped"))
    assert versions(storage, range(10)) == [5] * 9 + [-1]
    storage.close()
