"""Scrubbing: all rows are checked while the store is used, and damage is told with its rows."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embstore
from embstore.engine.scrubbing import PASS_S, Scrubber
from tests.conformance.backends import UnsyncedFiles
from tests.faults.damage import SEED, Damage, files_of
from tests.faults.training import open_store, train


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embstore.Store]:
    path = tmp_path / "store"
    with open_store(path, files=UnsyncedFiles(path)) as opened:
        train(opened, SEED, 30)
        opened.executor.storage.merges.finish()  # type: ignore[attr-defined]
        yield opened


def scrubber_of(store: embstore.Store, bytes_per_s: int = 1) -> Scrubber:
    engine: Any = store.executor
    return Scrubber(engine.storage, bytes_per_s)


def test_a_pass_checks_every_record(store):
    scrubber = scrubber_of(store)
    pauses = []
    while not scrubber.found.passes:
        before = scrubber.bytes
        pauses.append((scrubber.step(), scrubber.bytes - before))
    assert pauses.pop() == (PASS_S, 0)
    assert all(0 <= pause_s <= size for pause_s, size in pauses)  # at one byte a second
    assert scrubber.found.rows > 500
    assert not scrubber.found.problems


def test_damage_is_told_once_with_table_and_keys(store, tmp_path):
    scrubber = scrubber_of(store)
    found: list[list[str]] = []
    scrubber.found.after_problem = found.append
    names = [n for n in files_of(tmp_path / "store") if n.startswith("base/")]
    flip = Damage(names[-1], 4096 + 20, 3)  # of the newest run: no other file has the row
    flip.toggle(tmp_path / "store")
    while scrubber.found.passes < 2:
        scrubber.step()
    assert len(found) == 1
    assert found[0][0].startswith(f"{names[-1]}: 1 of ")
    assert set(scrubber.found.problems) == {names[-1]}
    assert "1 rows, keys " in found[0][1]
    flip.toggle(tmp_path / "store")
    while scrubber.found.passes < 3:
        scrubber.step()
    assert not scrubber.found.problems


def test_files_that_merges_remove_are_passed_over(store):
    scrubber = scrubber_of(store)
    while scrubber.found.passes < 3:
        scrubber.step()
        if store.command < 120:
            train(store, SEED, 4)
            store.executor.storage.merges.finish()  # type: ignore[attr-defined]
    assert not scrubber.found.problems


def test_an_open_store_scrubs_by_itself_and_stats_say_so(tmp_path):
    path = tmp_path / "store"
    with open_store(path) as store:
        train(store, SEED, 30)
    with open_store(path, scrub_bytes_per_s=1 << 30) as store:
        engine: Any = store.executor
        engine.scrubber.stop()
        engine.scrubber.join_threads()
        stats = store.stats()["scrubber"]
        assert stats["scrub_bytes_per_s"] == 1 << 30
        assert stats["scrub_errors"] == []
        assert engine.scrubber.bytes == stats["scrubbed_bytes"] > 0


def test_the_thread_keeps_no_store(tmp_path):
    store = open_store(tmp_path / "store", scrub_bytes_per_s=1 << 20)
    engine: Any = store.executor
    thread, dropped = engine.scrubber._thread, weakref.ref(engine.scrubber)
    stopping = engine.scrubber._stopping
    store.close()
    del store, engine
    gc.collect()
    stopping.set()
    thread.join()
    assert dropped() is None
