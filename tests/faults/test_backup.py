"""Backups: what a label was is restored, bit by bit, whatever went on or was cut off."""

import errno
import json
import shutil
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.errors import (
    CapacityError,
    CheckpointNotFoundError,
    CorruptTableError,
    EmbstoreError,
    InvalidArgumentError,
    PermissionDeniedError,
    StorageError,
    StoreClosedError,
)
from embstore.storage import backup as backups
from embstore.storage.backup import restore_from
from embstore.storage.destinations import name_within, open_destination
from embstore.storage.files import Files
from embstore_server.cli import main
from tests.conformance.backends import UnsyncedFiles
from tests.copies import copy_of_open
from tests.faults.backups import check_restored, copy_always, restored
from tests.faults.damage import SEED, Damage, files_of
from tests.faults.promises import content_of
from tests.faults.refusing import RefusingFiles
from tests.faults.training import COMMANDS_PER_LABEL, commit, open_store, train

VERBS = ("create", "write", "sync", "rename", "link", "make_directory", "sync_directory")


@pytest.fixture(params=["linked", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "copied":
        copy_always(monkeypatch)
    return str(request.param)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embstore.Store]:
    path = tmp_path / "store"
    with open_store(path, files=UnsyncedFiles(path)) as opened:
        train(opened, SEED, 30)
        commit(opened)
        opened.executor.storage.merges.finish()  # type: ignore[attr-defined]
        yield opened


def test_a_backup_is_restored_with_the_digests_of_its_label(store, tmp_path, way):
    store.checkpoint("kept")
    promise = content_of(store)
    train(store, SEED, COMMANDS_PER_LABEL - 1, label_last=False)
    made = store.backup(str(tmp_path / "to"), "kept")
    assert (made.label, made.command) == ("kept", promise.command)
    assert made.files == made.new_files > 0
    store.close()
    shutil.rmtree(tmp_path / "store")
    restored(tmp_path / "to", tmp_path / "again")
    check_restored(tmp_path / "again", promise)


def test_without_a_label_it_has_what_there_is_and_gives_up_no_checkpoint(store, tmp_path):
    labels = [kept.label for kept in store.checkpoints()]
    promise = content_of(store)
    made = store.backup(str(tmp_path / "to"))
    assert made.label == f"command-{promise.command}"
    assert [kept.label for kept in store.checkpoints()] == labels
    catalogue = restored(tmp_path / "to", tmp_path / "again")
    assert [kept.label for kept in catalogue.checkpoints] == labels
    assert catalogue.epoch > store.epoch
    check_restored(tmp_path / "again", promise, cache_bytes=150_000, policy="lfu")


def test_a_second_backup_takes_only_what_is_new(store, tmp_path, way):
    store.checkpoint("kept")  # what is older is not merged with what comes
    store.executor.storage.merges.finish()  # type: ignore[attr-defined]
    first = store.backup(str(tmp_path / "to"))
    again = store.backup(str(tmp_path / "to"))
    assert (again.files, again.new_files, again.new_bytes) == (first.files, 0, 0)
    then = content_of(store)
    store.table("ads").assign([1, 2], np.ones((2, 5), np.float32))
    now = content_of(store)
    last = store.backup(str(tmp_path / "to"))
    assert 0 < last.new_files < last.files
    for promise in (then, now):
        path = tmp_path / f"again-{promise.command}"
        restored(tmp_path / "to", path, f"command-{promise.command}")
        check_restored(path, promise)


def test_files_that_merges_replace_are_kept_until_they_are_copied(store, tmp_path, monkeypatch):
    """Training, labels, folds and merges go on between any two files of the backup."""
    copy_always(monkeypatch)
    engine: Any = store.executor
    promise = content_of(store)
    removed = 0
    put = backups.back_up

    def slow(*given: Any) -> Any:
        *others, progress = given

        def going_on(done: int, of: int) -> None:
            nonlocal removed
            before = set(files_of(tmp_path / "store"))
            if store.command < promise.command + 40:
                train(store, SEED, 2)
                engine.storage.merges.finish()
                engine.storage._contents.removal.finish()
            removed += len(before - set(files_of(tmp_path / "store")))
            progress(done, of)

        return put(*others, going_on)

    monkeypatch.setattr("embstore.storage.backup.back_up", slow)
    store.backup(str(tmp_path / "to"))
    assert removed > 5
    assert not (tmp_path / "store" / "backup").exists()
    monkeypatch.undo()
    restored(tmp_path / "to", tmp_path / "again")
    check_restored(tmp_path / "again", promise)


def test_a_killed_backup_leaves_nothing_that_counts(store, tmp_path):
    store.checkpoint("kept")
    copy = tmp_path / "copy"
    links = tmp_path / "store" / "backup"
    backups.make_room(store.executor.storage.files)  # type: ignore[attr-defined]
    with backups.linked(store.executor.storage.files, store.executor.storage.catalogue):  # type: ignore[attr-defined]
        assert len(list(links.iterdir())) > 1
        copy_of_open(tmp_path / "store", copy)
    assert not links.exists()
    with open_store(copy, read_only=True):
        assert (copy / "backup").exists()
    with open_store(copy, files=UnsyncedFiles(copy)) as opened:
        assert not (copy / "backup").exists()
        opened.restore("kept")


@pytest.mark.parametrize("verb", VERBS)
def test_a_backup_that_is_cut_off_is_not_taken_for_one(store, tmp_path, monkeypatch, way, verb):
    """Refused at each call of a verb in turn, it leaves the backup before it; then it is made."""
    to, source = tmp_path / "to", UnsyncedFiles(tmp_path / "store")
    before = content_of(store)
    store.backup(str(to))
    train(store, SEED, 2, label_last=False)
    store.executor.commits.commit()  # type: ignore[attr-defined]
    now = content_of(store)
    catalogue = backups.catalogue_of(store.executor.storage.catalogue, None)  # type: ignore[attr-defined]
    refused = 0
    for nth in range(1, 1000):
        files = RefusingFiles(to)
        monkeypatch.setattr("embstore.storage.destinations.Files", lambda *_, files=files: files)
        files.refuse((verb,), nth, errno.ENOSPC)
        try:
            destination = open_destination(str(to), store_id=catalogue.store_id)
            try:
                backups.back_up(source, str, catalogue, "now", destination, lambda *_: None)
            finally:
                destination.close()
        except (CapacityError, StorageError):
            refused += 1
            monkeypatch.setattr("embstore.storage.destinations.Files", UnsyncedFiles)
            if (renamed := to / "labels" / "now.catalogue").exists():  # only its sync was refused
                assert verb == "sync_directory"
                restored(to, tmp_path / "again", "now")
                check_restored(tmp_path / "again", now)
                shutil.rmtree(tmp_path / "again")
                renamed.unlink()
            with pytest.raises(CheckpointNotFoundError):
                restored(to, tmp_path / "again", "now")
            restored(to, tmp_path / "again")
            check_restored(tmp_path / "again", before)
            shutil.rmtree(tmp_path / "again")
        else:
            break
    monkeypatch.setattr("embstore.storage.destinations.Files", UnsyncedFiles)
    restored(to, tmp_path / "again", "now")
    check_restored(tmp_path / "again", now)
    assert refused or files.refusals == 0


@pytest.mark.parametrize("verb", VERBS)
def test_a_restore_that_is_cut_off_leaves_no_store(store, tmp_path, way, verb):
    promise = content_of(store)
    store.backup(str(tmp_path / "to"))
    path = tmp_path / "again"
    for nth in range(1, 1000):  # each try begins where the one before left the directory
        files = RefusingFiles(path).refuse((verb,), nth, errno.EIO)
        source = open_destination(str(tmp_path / "to"))
        try:
            restore_from(source, files, None, None, lambda *_: None)
            break
        except (CapacityError, StorageError):
            with pytest.raises((InvalidArgumentError, StorageError)):
                open_store(path, read_only=True)
            assert set(files_of(path)) == set()
    check_restored(path, promise)


@pytest.mark.parametrize("there", [None, [], ["LOCK"], ["lost+found"]])
@pytest.mark.parametrize("damaged", ["CATALOGUE", "log/*", "no backup"])
def test_a_restore_that_fails_leaves_the_directory_as_it_was(store, tmp_path, there, damaged):
    to, path = tmp_path / "to", tmp_path / "new" / "newer" / "again"
    store.backup(str(to))
    if damaged == "log/*":
        file = next(chain(to.glob("log/*"), to.glob("base/*")))
        empty = bytes(file.stat().st_size)
        file.unlink()  # it is the store's, too
        file.write_bytes(empty)
    if there is not None:
        path.mkdir(parents=True)
        for name in there:
            (path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    files = RefusingFiles(path).refuse(("rename",), 1, errno.EIO)
    with pytest.raises(EmbstoreError):
        restore_from(
            open_destination(str(to)),
            files if damaged == "CATALOGUE" else Files(path),
            "none" if damaged == "no backup" else None,
            None,
            lambda *_: None,
        )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("point", ["begun", "CATALOGUE", "restore:fetched"])
def test_a_restore_that_was_killed_is_no_store_and_is_begun_again(store, tmp_path, point):
    class _Killed(BaseException):
        pass

    class Killing(UnsyncedFiles):
        def sync_directory(self, path: str) -> None:
            super().sync_directory(path)
            if self.exists("store.json.new"):
                self.reached("begun")

        def rename(self, source: str, target: str) -> None:
            self.reached(target)
            super().rename(source, target)

        def reached(self, name: str) -> None:
            if name == point and not crashed.exists():
                copy_of_open(self.root, crashed)
                raise _Killed

    promise, crashed = content_of(store), tmp_path / "crashed"
    store.backup(str(tmp_path / "to"))
    source = open_destination(str(tmp_path / "to"))
    with pytest.raises(_Killed):
        restore_from(source, Killing(tmp_path / "again"), None, None, lambda *_: None)
    names = {path.name for path in crashed.iterdir()}
    assert "store.json.new" in names and ("CATALOGUE.new" in names) == (point == "CATALOGUE")
    if point == "restore:fetched":
        with pytest.raises(CorruptTableError, match="interrupted, restore again"):
            open_store(crashed)
    restored(tmp_path / "to", crashed)
    check_restored(crashed, promise)
    with pytest.raises(InvalidArgumentError, match="expected an empty directory"):
        restored(tmp_path / "to", crashed)


def test_a_new_id_is_in_every_file(store, tmp_path):
    promise, store_id = content_of(store), "ab" * 16
    store.backup(str(tmp_path / "to"))
    restored(tmp_path / "to", tmp_path / "again", store_id=store_id)
    check_restored(tmp_path / "again", promise)
    with open_store(tmp_path / "again", read_only=True) as opened:
        assert opened.server_info().context.store_id == store_id
    restored(tmp_path / "to", tmp_path / "same")  # the backup is as it was
    check_restored(tmp_path / "same", promise)


def test_damage_in_a_backup_is_no_store(store, tmp_path, way):
    store.backup(str(tmp_path / "to"))
    name = next(name for name in files_of(tmp_path / "to") if name.startswith("base/"))
    content = (tmp_path / "to" / name).read_bytes()
    (tmp_path / "to" / name).unlink()  # or the store's own file is damaged too
    (tmp_path / "to" / name).write_bytes(content)
    Damage(name, 4096 + 40, 2).toggle(tmp_path / "to")
    with pytest.raises(CorruptTableError, match=name):
        restored(tmp_path / "to", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    catalogue = next(name for name in files_of(tmp_path / "to") if name.startswith("labels/"))
    content = (tmp_path / "to" / catalogue).read_bytes()
    (tmp_path / "to" / catalogue).write_bytes(content[:-7])
    with pytest.raises(CheckpointNotFoundError, match=r"none there: .*`embstore backup DEST`"):
        restored(tmp_path / "to", tmp_path / "again")


def test_a_backup_that_is_given_up_goes_with_the_files_that_only_it_has(store, tmp_path):
    to = tmp_path / "to"
    store.backup(str(to))
    train(store, SEED, 60)
    store.executor.storage.merges.finish()  # type: ignore[attr-defined]
    store.backup(str(to))
    before = len(files_of(to))
    (to / "labels" / "command-30.catalogue").unlink()
    store.backup(str(to))
    assert len(files_of(to)) < before - 1
    restored(to, tmp_path / "again")
    check_restored(tmp_path / "again", content_of(store))


def test_backups_are_verified_where_they_are(store, tmp_path, capsys, way):
    def shown(status: int) -> Any:
        assert main(["verify", str(to), "--json"]) == status
        return json.loads(capsys.readouterr().out)

    to = tmp_path / "to"
    store.backup(str(to))
    train(store, SEED, 40)
    store.executor.storage.merges.finish()  # type: ignore[attr-defined]
    last = store.backup(str(to))
    store.close()
    found = shown(0)
    assert not found["leftovers"]
    assert found["files"] > last.files  # each file once
    name = next(name for name in files_of(to) if name.startswith("base/"))
    content = (to / name).read_bytes()
    (to / name).unlink()
    (to / "log" / "000000000999.log").write_bytes(b"")
    (to / "labels" / "cut.catalogue").write_bytes(b"EMBSTORE CATALOGUE 2 ")
    found = shown(1)
    assert len(found["problems"]) == 2
    assert {affected["path"] for affected in found["affected"]} == {name}
    assert {affected["label"] for affected in found["affected"]} <= {"command-30", last.label}
    assert found["leftovers"] == ["log/000000000999.log"]
    assert main(["verify", str(to), "--digests"]) == 2
    (to / name).write_bytes(content)
    (to / "labels" / "cut.catalogue").unlink()
    assert not shown(0)["problems"]


def test_backups_of_another_store_are_refused(store, tmp_path):
    to = tmp_path / "to"
    with open_store(tmp_path / "other") as other:
        train(other, SEED + 1, 5)
        other.backup(str(to))
    with pytest.raises(InvalidArgumentError, match="those of store"):
        store.backup(str(to))


def test_what_cannot_be_backed_up_is_refused(store, tmp_path):
    with pytest.raises(CheckpointNotFoundError):
        store.backup(str(tmp_path / "to"), "never")
    assert not (tmp_path / "to").exists()
    for inside in (tmp_path / "store", tmp_path / "store" / "x", tmp_path):
        with pytest.raises(InvalidArgumentError):
            store.backup(str(inside))
    for text in ("", "a\nb", 3):
        with pytest.raises(InvalidArgumentError):
            store.backup(text)  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        store.backup("/proc/none")
    assert store.stats()["backups"]["backup_error"]
    store.check_integrity()


def test_a_store_that_is_closed_ends_the_backup(store, tmp_path, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    outcome: list[BaseException] = []
    put = backups.back_up

    def waiting(*given: Any) -> Any:
        begun.set()
        go_on.wait()
        return put(*given)

    def run() -> None:
        try:
            store.backup(str(tmp_path / "to"))
        except StoreClosedError as exc:
            outcome.append(exc)

    monkeypatch.setattr("embstore.storage.backup.back_up", waiting)
    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    assert store.stats()["backups"]["backup_running"]
    store.executor.backups.stop()  # type: ignore[attr-defined]
    go_on.set()
    store.close()
    thread.join()
    assert outcome
    assert not (tmp_path / "store" / "backup").exists()
    with pytest.raises(CheckpointNotFoundError):
        restored(tmp_path / "to", tmp_path / "again")


def test_a_read_only_store_is_backed_up_too(store, tmp_path):
    promise = content_of(store)
    store.close()
    with open_store(tmp_path / "store", read_only=True) as reader:
        reader.backup(str(tmp_path / "to"))
    restored(tmp_path / "to", tmp_path / "again")
    check_restored(tmp_path / "again", promise)


def test_a_client_chooses_a_name_below_what_is_allowed(store, tmp_path):
    allowed, outside = tmp_path / "allowed", tmp_path / "way-out"
    outside.mkdir()
    allowed.mkdir()
    (allowed / "link").symlink_to(outside)
    engine: Any = store.executor
    engine.backups.within = str(allowed)
    for refused in (
        allowed,
        outside,
        allowed / "../to",
        "a/../b",
        "",
        "memory://x",
        ".ssh",
        "a\\b",
    ):
        with pytest.raises((PermissionDeniedError, InvalidArgumentError)):
            store.backup(str(refused))
    for long in ("a" * 256, "to/" + "ä" * 128):
        with pytest.raises(InvalidArgumentError, match="at most 255 bytes, found one of 256"):
            store.backup(long)
    for through in ("link", "link/to"):
        with pytest.raises(StorageError, match="symbolic link, which is not followed"):
            store.backup(through)
    assert not list(outside.iterdir())
    first = store.backup(str(allowed / "to" / "one"))
    assert store.backup("to/one").new_files == 0 < first.new_files
    engine.backups.within = None
    with pytest.raises(PermissionDeniedError, match="backup_within"):
        store.backup("to/one")
    assert name_within("s3://bucket/a/b", "s3://bucket/a/") == name_within("b", "s3://bucket/a")
    for elsewhere in ("s3://bucket/ab", "s3://bucket/a/../c", "s3://bucket/a", "/s3:/bucket/a"):
        with pytest.raises(PermissionDeniedError):
            name_within(elsewhere, "s3://bucket/a")


def test_urls_need_fsspec_and_say_so(store, tmp_path, monkeypatch):
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("embstore.storage.destinations.import_module", missing)
    with pytest.raises(InvalidArgumentError, match=r"\"\.\[remote\]\""):
        store.backup("memory://to")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_url_has_backups_too(store, tmp_path, kind):
    pytest.importorskip("fsspec", reason="needs the extra 'remote'")
    url = f"memory://{tmp_path.name}" if kind == "memory" else f"file://{tmp_path}/to"
    promise = content_of(store)
    first = store.backup(url)
    assert first.new_files == first.files
    assert store.backup(url).new_files == 0
    train(store, SEED, 40)
    store.executor.storage.merges.finish()  # type: ignore[attr-defined]
    last = store.backup(url)
    assert 0 < last.new_files
    for label, store_id, at in ((first.label, None, promise), (last.label, "cd" * 16, None)):
        path = tmp_path / f"again-{label}"
        restored(url, path, label, store_id)
        check_restored(path, at or content_of(store))
    with pytest.raises(InvalidArgumentError):
        store.backup("nothing-known://x")


def test_the_commands_back_up_a_server_and_restore(store, tmp_path, capsys):
    promise = content_of(store)
    store.backup(str(tmp_path / "to"))
    path = tmp_path / "again"
    assert main(["restore-from", str(tmp_path / "to"), str(path), "--new-id", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == promise.command
    assert document["store_id"] != store.server_info().context.store_id
    check_restored(path, promise)
    assert main(["restore-from", str(tmp_path / "to"), str(path)]) == 2
    assert main(["restore-from", str(tmp_path / "to"), str(tmp_path / "x"), "--label", "y"]) == 3
