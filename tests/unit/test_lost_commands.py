"""A command log that is gone or was cut: an error, or a new epoch and why it has begun."""

import shutil

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform
from embstore.errors import CorruptTableError, StorageError, StoreClosedError
from embstore.storage import command_segments
from embstore.storage.catalogue import decode
from embstore.storage.format import PAGE_BYTES
from tests.conformance.backends import UnsyncedFiles
from tests.copies import copy_of_open

OPTIONS = {"device": "cpu", "durability": "commands", "cache_bytes": 1 << 20, "commit_every_s": 0.0}
COMMANDS = 33


def opened(path, **options):
    return embstore.open(path, files=UnsyncedFiles(path), **(OPTIONS | options))


def update(store, count):
    for _ in range(count):
        store.table("a").update(np.arange(3), np.ones((3, 4), np.float32))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a store that ended in the middle: commands since its commit in several segments."""
    path = tmp_path_factory.mktemp("lost")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command_segments, "SEGMENT_BYTES", 2 * PAGE_BYTES)
        patched.setattr(command_segments, "_SEGMENT_BYTES_LEAST", 2 * PAGE_BYTES)
        store = opened(path / "store")
        store.create_table(
            "a", dim=4, rows=9, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(0, 1)
        )
        update(store, 5)
        store.checkpoint("one")
        update(store, COMMANDS)
        copy_of_open(path / "store", path / "killed")
        store.close()
    return path / "killed"


@pytest.fixture
def path(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "store")


def segments(path):
    return sorted(path.glob("commands/*.commands"))


def first_of(path):
    return decode((path / "CATALOGUE").read_bytes()).commands


def came_of(path):
    """Open a store twice, and return what came of it: t, epoch and why commands may be lost."""
    store = opened(path)
    found = store.table("a").t, store.epoch, store.executor.lost
    store.executor.abandon()  # and commit nothing
    with opened(path) as store:  # it says so once
        assert (store.table("a").t, store.epoch, store.executor.lost) == (*found[:2], "")
        update(store, 1)
    return found


def test_what_is_whole_is_executed_again(path):
    assert len(segments(path)) > 2
    assert came_of(path) == (5 + COMMANDS, 1, "")


def test_a_log_that_is_gone_is_an_error_until_it_is_back(path, tmp_path):
    (path / "commands").rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(CorruptTableError, match="missing; it may have had acknowledged"):
            opened(path)
    with pytest.raises(CorruptTableError, match="missing"):
        opened(path, durability="checkpoint")
    with opened(path, read_only=True) as store:
        assert store.table("a").t == 5
    (tmp_path / "away").rename(path / "commands")
    assert came_of(path)[0] == 5 + COMMANDS


def test_a_log_that_no_commit_has_begun_yet_is_missed_too(tmp_path):
    store = opened(tmp_path / "store")
    store.create_table("a", dim=4, rows=9, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(0, 1))
    copy_of_open(tmp_path / "store", tmp_path / "killed")
    store.close()
    shutil.rmtree(tmp_path / "killed" / "commands")
    with pytest.raises(CorruptTableError, match="missing"):
        opened(tmp_path / "killed")


def test_each_lost_segment_is_an_error(path):
    for segment in segments(path):
        content = segment.read_bytes()
        segment.unlink()
        with pytest.raises(CorruptTableError, match=f"{segment.name}: missing"):
            opened(path)
        segment.write_bytes(content)
    assert came_of(path)[0] == 5 + COMMANDS


def test_each_truncation_of_a_segment_is_an_error_or_a_new_epoch(killed, tmp_path):
    """Each length at which a record, its head or the header page ends, and those around it."""
    begin, last = first_of(killed), segments(killed)[-1]
    came = {"error": 0, "epoch": 0}
    for segment in segments(killed):
        size = segment.stat().st_size
        for length in sorted({0, 1, 64, size - 1, size + 1, *range(PAGE_BYTES, size, 320)}):
            path = shutil.copytree(killed, tmp_path / "store")
            with (path / "commands" / segment.name).open("r+b") as file:
                file.truncate(length)
            try:
                t, epoch, lost = came_of(path)
                assert (epoch, f"{segment.name} has {length} bytes" in lost) == (2, True), length
                assert 5 <= t <= 5 + COMMANDS
                assert segment == last or t == 5 + COMMANDS
                came["epoch"] += 1
            except CorruptTableError:
                is_first = segment.name == f"{begin.segment:012d}.commands"
                assert length < (begin.offset if is_first else size) or segment != last
                came["error"] += 1
            shutil.rmtree(path)
    assert min(came.values()) > 10
    assert came["epoch"] > 10


def test_zeros_at_the_end_are_what_no_file_shows(path):
    last = segments(path)[-1]
    content = last.read_bytes()
    last.write_bytes(content[: PAGE_BYTES + 640].ljust(len(content), b"\0"))
    t, epoch, lost = came_of(path)
    assert t < 5 + COMMANDS and (epoch, lost) == (1, "")


@pytest.mark.parametrize("what", ["commands", "segment", "moved"])
def test_a_command_of_a_removed_segment_is_not_acknowledged(tmp_path, what):
    store = opened(tmp_path / "store")
    store.create_table("a", dim=4, rows=9, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(0, 1))
    folder = tmp_path / "store" / "commands"
    if what == "commands":
        shutil.rmtree(folder)
    elif what == "moved":
        folder.rename(tmp_path / "elsewhere")
    else:
        segments(tmp_path / "store")[-1].unlink()
    for error in (StorageError, StoreClosedError):
        with pytest.raises(error, match="was removed while the store was open"):
            update(store, 1)
    store.close()


@pytest.mark.parametrize("name", ["store.json", "CATALOGUE", "log", "base"])
def test_a_commit_names_nothing_that_was_removed(killed, tmp_path, name):
    path = shutil.copytree(killed, tmp_path / "store")
    limits = embstore.config.Limits(fold_bytes=PAGE_BYTES, fold_segments=1)
    store = opened(path, **({"limits": limits} if name == "base" else {}))
    store.checkpoint("two")
    store.executor.storage.merges.finish()
    removed = path / name
    shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
    update(store, 1)
    with pytest.raises(StorageError, match=f"{name}.* was removed while the store was open"):
        store.checkpoint("four")
    assert store.executor.failure is not None
    store.close()
