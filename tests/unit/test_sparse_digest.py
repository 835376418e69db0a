"""The digest of a sparse table: each row once, wherever it is and whatever happens meanwhile."""

import numpy as np
import pytest

from embstore.arithmetic import LEAF_RECORD, root
from embstore.cache import writing
from embstore.device.gpu import GpuDevice
from embstore.errors import StoreClosedError
from embstore.tables import hashing
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.rules import Row, sparse_leaves
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    pool_of,
    rows_of,
    settle,
    small_limits,
)
from tests.unit.test_long_digests import Between, long_digest

SEED = 101
ROWS = 12_000
OPTIONS = {"cache_bytes": 120_000, "limits": small_limits()}


def ids_of(numbers):
    """Return ids all over 64 bits, another one for each number."""
    return np.asarray(numbers).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


class Filled:
    """A store with a table whose rows are dirty, logged, folded, or not there."""

    def __init__(self, path, **options):
        self.store = opened(path, **OPTIONS | options)
        self.table = make_table(self.store, rows=None, key_space="sparse")
        self.state = self.store.executor.tables.find("t")
        self.numbers = pool_of(self.table).storage.rows.numbers
        self.keys = set()

    def fill(self):
        for low in range(0, ROWS // 2, 500):
            self.assign(ids_of(np.arange(low, low + 500)))
        self.store.checkpoint("folded")
        settle(self.store)
        self.assign(ids_of(np.arange(0, ROWS // 2, 5)), version=1)
        self.assign(ids_of(np.arange(ROWS - 300, ROWS)))
        return self

    def assign(self, keys, version=0):
        self.table.assign(keys, rows_of(keys % np.uint64(10_007), version=version))
        self.keys |= set(keys.tolist())

    def update(self, keys):
        self.table.update(keys, np.ones((len(keys), 4), np.float32))
        self.keys |= set(keys.tolist())

    def leaves(self):
        """Return the leaves by the reference."""
        keys = np.array(sorted(self.keys), np.uint64)
        weights, state = self.table.read_rows(keys)
        rows = zip(keys.tolist(), weights, state, strict=True)
        return sparse_leaves(self.table.seed, {key: Row(w, s) for key, w, s in rows})

    def digest(self):
        """Return the digest by the reference."""
        leaves = self.leaves()
        whole = np.frombuffer(b"".join(leaves.values()), np.uint8).reshape(-1, 32)
        return root(self.state.identity_json, self.table.t, np.array([*leaves], np.int64), whole)

    def looked(self, monkeypatch):
        """Return a list to which the numbers of keys are added that are looked for."""
        asked, reader = [], pool_of(self.table).reader
        look = reader.look
        monkeypatch.setattr(reader, "look", lambda keys: asked.append(len(keys)) or look(keys))
        return asked


@pytest.fixture
def slices(monkeypatch):
    """Slices of a few rows, and of a few slots that are looked at for dirty ones."""
    monkeypatch.setattr(hashing, "SLICE_ROWS", 600)
    monkeypatch.setattr(writing, "_LOOKED_AT", 250)


def test_an_empty_table_and_one_whose_rows_were_never_logged(tmp_path, monkeypatch):
    filled = Filled(tmp_path, cache_bytes=4 << 20)
    with filled.store:
        assert filled.table.digest() == filled.digest()
        filled.table.lookup(ids_of(np.arange(50)))
        assert filled.table.digest() == filled.digest(), "nothing is written"
        filled.update(ids_of(np.arange(0, 3_000, 2)))
        assert filled.numbers.count == 0
        assert filled.table.digest() == filled.digest()


def test_each_row_counts_once_wherever_it_is(tmp_path, monkeypatch, slices):
    rng, filled = generator(SEED), Filled(tmp_path)
    with filled.store:
        filled.fill()
        assert 0 < filled.numbers.count < len(filled.keys)
        for number in range(12):
            filled.update(ids_of(rng.integers(0, ROWS, 10 if number % 3 else 3_000)))
            if number % 4 == 0:
                filled.table.flush()
            if number % 5 == 0:
                filled.store.checkpoint(str(number))
                settle(filled.store)
            assert filled.table.digest() == filled.digest()
        filled.store.check_integrity()


def test_leaves_are_those_of_the_root(tmp_path, monkeypatch):
    filled = Filled(tmp_path).fill()
    with filled.store:
        filled.table.digest()
        found = np.frombuffer(filled.state.digest.records(0, 0, 1 << 14), LEAF_RECORD)
        assert {int(block): leaf.tobytes() for block, leaf in found} == filled.leaves()
        some = np.frombuffer(filled.state.digest.records(0, 500, 7), LEAF_RECORD)
        assert some.tobytes() == found[found["block"] >= 500][:7].tobytes()


@pytest.mark.parametrize("device", ["cpu", "gpu of two levels"])
def test_updates_between_slices_are_not_in_it(tmp_path, monkeypatch, slices, device):
    """Those of rows that were passed, and that were not, of rows that were never written, and calls
    larger than the cache; rows that are logged, commits and merges too."""
    rng, options = generator(SEED), {}
    if device != "cpu":
        runtime = GpuDevice(EmulatedRuntime(), 1)
        options = {"device": runtime, "host_cache_bytes": 120_000}
    filled = Filled(tmp_path, **options)
    with filled.store as store:
        filled.fill()
        expected, command, t = filled.digest(), store.command, filled.table.t

        def change(number):
            filled.update(ids_of(rng.integers(0, ROWS, 3_000 if number % 7 == 0 else 40)))
            if number % 3 == 0:
                filled.table.flush()
            if number % 5 == 0:
                store.checkpoint(f"at {number}")

        numbered = filled.numbers.count
        between = Between(store, monkeypatch, change)
        found = long_digest(store, filled.table)
        assert between.slices > 5 and filled.numbers.count > numbered
        assert (found.digest, found.command, found.t) == (expected, command, t)
        assert store.command > command
        monkeypatch.setattr(store.executor.tables.frame, "background", between._background)
        assert filled.table.digest() == filled.digest() != expected
        store.check_integrity()


def test_rows_that_a_digest_has_read_are_not_set_aside(tmp_path, monkeypatch, slices):
    filled, kept = Filled(tmp_path).fill(), []
    first = filled.numbers.first_ids(0, 40).copy()
    with filled.store as store:

        def change(_):
            reading = filled.state.digest.reading
            if reading is not None and reading._next >= 40:
                filled.update(first)
                kept.append(reading._aside._count)

        Between(store, monkeypatch, change)
        filled.table.digest()
        assert len(kept) > 5 and not any(kept)


def test_a_digest_of_what_has_not_changed_reads_nothing(tmp_path, monkeypatch):
    filled = Filled(tmp_path).fill()
    with filled.store as store:
        asked = filled.looked(monkeypatch)
        first = filled.table.digest()
        assert sum(asked) == len(filled.keys)
        filled.table.lookup(ids_of(np.arange(0, ROWS, 2)))
        filled.table.flush()
        store.checkpoint("a")
        settle(store)
        del asked[:]
        assert filled.table.digest() == first
        assert asked == []
        filled.update(ids_of([3]))
        assert filled.table.digest() == filled.digest() != first
        assert sum(asked) == len(filled.keys)


def test_a_slice_reads_so_many_rows_at_most(tmp_path, monkeypatch, slices):
    filled = Filled(tmp_path).fill()
    with filled.store:
        asked = filled.looked(monkeypatch)
        filled.table.digest()
        assert max(asked) <= hashing.SLICE_ROWS


@pytest.mark.parametrize("at", [1, 3_000, ROWS // 2])
def test_it_ends_between_slices_and_the_next_one_is_right(tmp_path, monkeypatch, slices, at):
    filled = Filled(tmp_path).fill()

    def ended(done, of):
        assert done <= of
        if done >= at:
            raise StoreClosedError("enough")

    with filled.store as store:
        for _ in range(2):
            with pytest.raises(StoreClosedError, match="enough"):
                long_digest(store, filled.table, ended)
            assert filled.state.digest.reading is None
            assert filled.table.digest() == filled.digest()
            filled.update(ids_of(np.arange(0, ROWS // 2, 100)))
