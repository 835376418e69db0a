"""read_only=True: any number of readers at once, who change nothing, not even a file."""

import numpy as np
import pytest

from embstore.errors import StorageError, StoreInUseError
from tests.conformance.backends import TINY
from tests.conformance.cases import assert_same, batch, config, generator, normal

pytestmark = pytest.mark.needs("one_store")


@pytest.fixture
def trained(open_twin):
    """A closed store with rows in log and base, a checkpoint, and files that no commit names."""
    twin, rng = open_twin(limits=TINY, a=config(dim=64)), generator(141)
    for _ in range(6):
        keys = rng.integers(0, 1000, 60)
        twin.on("a", "update", keys, normal(rng, 60, 64))
        twin.store.flush()
    twin.checkpoint("c")
    twin.on("a", "update", *batch(rng, 100, dim=64))
    twin.settle()
    twin.reopen()
    return twin


@pytest.fixture
def reader(trained, backend):
    trained.settle()
    trained.reopen(read_only=True)
    return trained


def test_every_reading_call_is_answered(reader):
    table, wanted = reader.store.table("a"), reader.reference.table("a")
    keys = np.arange(1000)
    for admit in (True, False):
        assert_same(table.lookup(keys, admit=admit), wanted.lookup(keys))
        assert_same(reader.store.lookup({"a": keys}, admit=admit)["a"], wanted.lookup(keys))
        found = table.lookup_pooled(keys, [0, 500, 1000], admit=admit)
        assert_same(found, wanted.lookup_pooled(keys, [0, 500, 1000], "sum"))
    assert_same(table.read_rows(keys)[0], wanted.lookup(keys))
    assert (reader.store.flush(), table.flush()) == (0, 0)
    assert reader.store.stats()["read_only"]
    assert [c.label for c in reader.store.checkpoints()] == ["c"]


def files(path):
    found = [p for p in path.rglob("*") if p.is_file()]
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in found}


def test_no_file_is_changed_nor_removed(reader, backend):
    """Also those that no commit names: another reader may be reading them."""
    reader.store.close()
    leftover = backend.path() / "log" / "000000009999.log"
    leftover.write_bytes(b"what a killed writer left")
    before = files(backend.path())
    with backend.open_store(read_only=True, cache_bytes=64 << 10) as store:
        store.table("a").lookup(np.arange(1000))  # more than the cache holds
        store.table("a").digest()
        store.check_integrity()
    assert files(backend.path()) == before
    reader.reopen(read_only=False)
    assert not leftover.exists()


def test_two_readers_at_once_see_the_same(reader, backend):
    other = backend.open_store(read_only=True, cache_bytes=64 << 10, policy="lfu")
    rng = generator(142)
    for _ in range(5):
        keys, _ = batch(rng, 300)
        assert_same(other.table("a").lookup(keys), reader.store.table("a").lookup(keys))
    assert other.table("a").digest() == reader.store.table("a").digest()
    other.close()
    reader.check()  # goes on after the other has left


def test_readers_keep_a_writer_out_and_a_writer_readers(reader, backend):
    with pytest.raises(StoreInUseError, match="in use"):
        backend.open_store()
    other = backend.open_store(read_only=True)
    reader.store.close()
    with pytest.raises(StoreInUseError, match="in use"):
        backend.open_store()
    other.close()
    reader.reopen(read_only=False)
    for options in ({}, {"read_only": True}):
        with pytest.raises(StoreInUseError, match=str(backend.path())):
            backend.open_store(**options)


def test_where_there_is_no_store_none_is_made(backend):
    with pytest.raises(StorageError, match="expected a store"):
        backend.open_store("nothing", read_only=True)
    assert not backend.path("nothing").exists()
    backend.path("empty").mkdir()
    with pytest.raises(StorageError, match="expected a store"):
        backend.open_store("empty", read_only=True)
    assert list(backend.path("empty").iterdir()) == []
