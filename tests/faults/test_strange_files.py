"""What people have beside a store's files stays as it is, whatever is backed up, restored, written.

Each test compares everything below a folder, with contents, before and after.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import embstore
from embstore.errors import (
    CorruptTableError,
    EmbstoreError,
    InvalidArgumentError,
    StorageError,
    TableMismatchError,
)
from embstore.storage import markers
from embstore.storage.backup import restore_from, verify_backups
from embstore.storage.cluster_backups import restore_cluster
from embstore.storage.destinations import open_destination
from embstore.storage.files import Files
from embstore_client.files import export_table, import_table
from embstore_cluster.coordinator import check_directory
from embstore_server.cli import main
from tests.conformance.backends import UnsyncedFiles
from tests.faults.backups import check_restored, restored
from tests.faults.damage import SEED
from tests.faults.promises import content_of
from tests.faults.refusing import RefusingFiles
from tests.faults.training import open_store, train
from tests.strange_files import ROOMS, listing, strew


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embstore.Store]:
    path = tmp_path / "store"
    with open_store(path, files=UnsyncedFiles(path)) as opened:
        train(opened, SEED, 5)
        yield opened


def without_marker(to: Path) -> None:
    of_another_store(to)
    (to / "to" / markers.PATH).unlink()


def damaged(to: Path) -> None:
    (to / "notes").write_bytes(b"mine")
    (to / markers.PATH).write_bytes(markers.encode("ab" * 16)[:-4])


def of_another_store(to: Path) -> None:
    with open_store(to / "store") as other:
        other.backup(str(to / "to"))


def a_store(to: Path) -> None:
    open_store(to).close()


REFUSED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "strange": (lambda to: strew(to, to.parent / "outside"), "", "found other files"),
    "a log of others": (
        lambda to: strew(to, to.parent / "outside", ("log",)),
        "log",
        "other files",
    ),
    "only a room": (lambda to: (to / "log").mkdir(), "", "found other files: 'log'"),
    "a store": (a_store, "", r"found a store \(store\.json\)"),
    "a store's folder": (a_store, "backup", "within .* which has a store"),
    "another's": (of_another_store, "to", "found those of store"),
    "within another's": (of_another_store, "to/labels/new", "which has backups"),
    "damaged": (damaged, "", "a marker that cannot be read"),
    "no marker": (without_marker, "to", "found other files: 'labels'"),
    "link": (lambda to: (to / markers.PATH).symlink_to(to), "", "link, which is not followed"),
    "lock": (lambda to: (to / "LOCK").symlink_to(to / "new"), "", "link, which is not followed"),
    "file": (lambda to: (to / "file").write_bytes(b"x"), "file", "Not a directory"),
}


def test_a_folder_that_has_something_else_is_refused_and_stays_as_it_is(store, tmp_path):
    for name, (make, folder, message) in REFUSED.items():
        to = tmp_path / name.replace("'", "")
        to.mkdir()
        make(to)
        before = listing(to)
        for place in (str(to / folder), f"file://{to / folder}"):
            with pytest.raises(EmbstoreError, match=message):
                store.backup(place)
            assert listing(to) == before, name
    assert listing(tmp_path / "outside").keys() == {"victim"}
    (tmp_path / "empty").mkdir()
    assert store.backup(str(tmp_path / "empty")).new_files


def test_a_backup_removes_only_own_files_of_no_backup(store, tmp_path):
    to = tmp_path / "to"
    store.backup(str(to))
    own = listing(to).keys()
    strew(to, tmp_path / "outside", ("log", "base", "ids", "labels"))
    (to / "log" / "000000000777.log").symlink_to(tmp_path / "outside" / "victim")
    (to / "base" / "000000000777-000000.rows").mkdir()
    leftovers = {
        "log/000000000999.log",
        "log/000000000998.log.new",
        "ids/000000000997.ids",
        "labels/0123456789abcdef-1.shard",
    }
    before = listing(tmp_path / "to"), listing(tmp_path / "outside")
    for name in leftovers:
        (to / name).write_bytes(b"left")
    train(store, SEED, 3, label_last=False)
    now = content_of(store)
    made = store.backup(str(to))
    assert made.new_files and made.label != "command-5"
    after = listing(to)
    assert {name: after[name] for name in before[0]} == before[0]
    new = after.keys() - before[0].keys()
    assert all(
        name.startswith(("log/0", "base/0", "ids/0", "labels/command-")) for name in new - own
    )
    assert not new & leftovers
    assert listing(tmp_path / "outside") == before[1]
    restored(to, tmp_path / "again")
    check_restored(tmp_path / "again", now)
    assert listing(to) == after


@pytest.mark.parametrize("room", ["log", "labels"])
def test_a_backup_follows_no_link_below_its_destination(store, tmp_path, room):
    to, outside = tmp_path / "to", tmp_path / "outside"
    store.backup(str(to))
    (to / room).rename(outside)
    (outside / "keep.txt").write_bytes(b"keep")
    (to / room).symlink_to(outside)
    train(store, SEED, 3, label_last=False)
    before = listing(outside)
    with pytest.raises(StorageError, match="symbolic link, which is not followed"):
        store.backup(str(to))
    with pytest.raises(StorageError, match="symbolic link, which is not followed"):
        restored(to, tmp_path / "again")
    assert listing(outside) == before


def test_a_first_backup_that_is_cut_off_anywhere_is_made_again(store, tmp_path, monkeypatch):
    promise = content_of(store)
    verbs = ("create", "write", "sync", "rename", "link", "make_directory", "sync_directory")
    for nth in range(1, 1000):
        to = tmp_path / f"to-{nth}"
        files = RefusingFiles(to).refuse(verbs, nth, 5)
        monkeypatch.setattr("embstore.storage.destinations.Files", lambda *_, f=files: f)
        try:
            store.backup(str(to))
        except StorageError:
            monkeypatch.undo()
            assert store.backup(str(to)).label == f"command-{promise.command}"
            assert not verified(to)
        else:
            break
    assert nth > 10
    monkeypatch.undo()
    restored(to, tmp_path / "again")
    check_restored(tmp_path / "again", promise)


def verified(to: Path) -> list[str]:
    return verify_backups(Files(to), lambda _: None, lambda *_: None).problems


def test_a_marker_is_checked(store, tmp_path):
    class Folder:
        """As at a URL, where a marker may be cut off."""

        def __init__(self, **files: bytes) -> None:
            self.files = {name.replace("_", "-"): content for name, content in files.items()}

        def list(self, folder: str) -> list[str]:
            return sorted(self.files)

        def read_all(self, path: str) -> bytes:
            return self.files[path]

    own, whole = "ab" * 16, markers.encode("ab" * 16)
    assert markers.decode(whole) == own
    for length in range(len(whole)):
        with pytest.raises(CorruptTableError):
            markers.decode(whole[:length])
        assert not markers.has_backups(Folder(EMBSTORE_BACKUPS=whole[:length]), own, "there")
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            markers.has_backups(Folder(EMBSTORE_BACKUPS=whole[:length], log=b""), own, "there")
        flipped = whole[:length] + bytes([whole[length] ^ 1]) + whole[length + 1 :]
        with pytest.raises((CorruptTableError, TableMismatchError)):
            markers.decode(flipped)
    assert markers.has_backups(Folder(EMBSTORE_BACKUPS=whole, log=b""), own, "there")
    with pytest.raises(TableMismatchError, match="expected format 1, found 2"):
        markers.decode(whole.replace(b" 1 ", b" 2 "))

    to = tmp_path / "to"
    store.backup(str(to))
    assert not verified(to)
    (to / markers.PATH).write_bytes(markers.encode(own))
    assert f"expected a backup of store {own}" in verified(to)[0]
    (to / markers.PATH).unlink()
    assert markers.PATH in verified(to)[0]
    assert main(["verify", str(to)]) == 1


def test_a_restore_writes_into_nothing_but_an_empty_folder(store, tmp_path):
    store.backup(str(tmp_path / "to"))
    target, outside = tmp_path / "target", tmp_path / "outside"
    strew(target, outside)
    before = listing(tmp_path)
    assert main(["restore-from", str(tmp_path / "to"), str(target)]) == 2
    assert listing(tmp_path) == before

    def stop(done: int, of: int) -> None:
        if done:
            (tmp_path / "again" / "log" / "notes").write_bytes(b"mine")
            raise KeyError("enough")

    with closing(open_destination(str(tmp_path / "to"))) as source, pytest.raises(KeyError):
        restore_from(source, Files(tmp_path / "again"), None, None, stop)
    assert sorted(listing(tmp_path / "again")) == ["log", "log/notes"]

    (tmp_path / "all" / "shard-0").parent.mkdir()
    (tmp_path / "all" / "shard-0").symlink_to(outside)
    (tmp_path / "to").rename(tmp_path / "shard-0")
    before = listing(tmp_path)
    with pytest.raises(EmbstoreError):
        restore_cluster(str(tmp_path), tmp_path / "all", None, lambda: None, lambda *_: None)
    assert listing(tmp_path) == before


def test_a_store_changes_only_its_own_files(tmp_path):
    path, outside = tmp_path / "store", tmp_path / "outside"
    with open_store(path, files=UnsyncedFiles(path)) as opened:
        train(opened, SEED, 3)
    strew(path, outside, (*ROOMS, "commands"))
    for temporary in ("CATALOGUE.new", "store.json.new", "log/000000000123.log"):
        (path / temporary).symlink_to(outside / "victim")
    before = listing(path)
    with open_store(path, files=UnsyncedFiles(path)) as opened:
        train(opened, SEED, 20)
        opened.executor.storage.merges.finish()  # type: ignore[attr-defined]
        opened.backup(str(tmp_path / "to"))
        opened.clear_counts()
    after = listing(path)
    own = ("log/0", "base/0", "ids/0", "CATALOGUE", "LOCK", "store.json")
    folders = ("log", "base", "ids")
    foreign = {name for name in before if name in folders or not name.startswith(own)}
    foreign |= {name for name in before if name.endswith(".txt")}
    assert {name: after.get(name) for name in foreign} == {name: before[name] for name in foreign}
    assert listing(outside).keys() == {"victim"}
    assert (outside / "victim").read_bytes() == b"precious"


def test_a_directory_that_others_can_write_is_warned_of(tmp_path):
    open_store(tmp_path / "store").close()
    (tmp_path / "store").chmod(0o777)
    with pytest.warns(UserWarning, match="other accounts can change"):
        open_store(tmp_path / "store").close()


def test_an_export_writes_the_file_that_was_named_and_no_other(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    strew(folder, outside)
    (folder / "rows.npy.part").write_bytes(b"of another program")
    before = listing(folder)
    with embstore.open(tmp_path / "store", cache_bytes=1 << 20, device="cpu") as opened:
        sgd, one = embstore.Sgd(0.1), embstore.Constant(1.0)
        table = opened.create_table("t", dim=2, rows=9, optimizer=sgd, initializer=one)
        export_table(table, folder / "rows.npy")
        import_table(table, folder / "rows.npy")
    assert np.load(folder / "rows.npy").shape == (9, 2)
    (folder / "rows.npy").unlink()
    assert listing(folder) == before
    assert listing(outside).keys() == {"victim"}


def test_a_cluster_starts_in_its_own_folder_alone(tmp_path):
    strew(tmp_path / "folder", tmp_path / "outside")
    with pytest.raises(InvalidArgumentError, match="found other files"):
        check_directory(str(tmp_path / "folder"))
    own = tmp_path / "own"
    check_directory(str(own))
    for name in ("shard-0", "shard-12"):
        (own / name).mkdir(parents=True)
    for name in ("coordinator.json.new", "ray.log", "shard-1.map.json"):
        (own / name).write_bytes(b"")
    check_directory(str(own))
