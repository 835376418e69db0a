"""The last call's batch, kept: used again for the same call, and for no other."""

import numpy as np

from embstore import Sgd
from embstore.cache.finder import Finder
from embstore.device.cpu import CpuDevice
from embstore.device.cpu_keys import CpuKeys
from tests.unit.small_stores import generator, make_table, opened, pool_of, resident_keys, rows_of

SEED = 97


class CountingKeys(CpuKeys):
    """Counts the calls that were made unique."""

    calls = 0

    def unique(self, segments):
        self.calls += 1
        return super().unique(segments)


def counting_device():
    device = CpuDevice(1)
    device.keys = CountingKeys(device.work)
    return device


def keys_of(*values):
    return np.array(values, np.int64)


def same(batch, segments):
    """Check a batch against NumPy: its unique row keys, and the way back to every position."""
    row_keys = np.concatenate([keys | table_id << 40 for table_id, _, keys in segments])
    assert np.array_equal(batch.unique_keys[batch.inverse], row_keys)
    assert len(np.unique(batch.unique_keys)) == len(batch.unique_keys)


def test_the_same_call_is_made_unique_once():
    device = counting_device()
    recent, keys = Finder(device, None), keys_of(4, 9, 4)
    first = recent.unique([(1, 10, keys)])
    again = recent.unique([(1, 10, keys.copy())])
    assert again is first and again.found.outside == -1 and device.keys.calls == 1
    same(again, [(1, 10, keys)])


def test_another_call_is_another_batch():
    calls = [
        [(1, 10, keys_of(4, 9, 4))],
        [(1, 10, keys_of(4, 9))],
        [(2, 10, keys_of(4, 9))],
        [(2, 11, keys_of(4, 9))],
        [(2, 11, keys_of(9, 4))],
        [(2, 11, keys_of(9, 4)), (1, 10, keys_of(1))],
        [(2, 11, keys_of(9)), (1, 10, keys_of(4, 1))],
        [(1, 10, keys_of(4, 1)), (2, 11, keys_of(9))],
        [(1, 10, keys_of())],
        [],
    ]
    recent = Finder(counting_device(), None)
    for segments in calls:
        if segments:
            same(recent.unique(segments), segments)
    assert recent._device.keys.calls == len(calls) - 1


def test_a_callers_array_that_changes_in_place_is_another_call():
    """A trainer that reuses its key buffer; the store must have kept a copy."""
    recent, keys = Finder(counting_device(), None), keys_of(1, 2, 3)
    recent.unique([(0, 10, keys)])
    keys[1] = 7
    batch = recent.unique([(0, 10, keys)])
    same(batch, [(0, 10, keys)])


def test_a_wrong_call_is_not_kept():
    recent, wrong_keys = Finder(counting_device(), None), keys_of(1, 12)
    assert recent.unique([(0, 10, wrong_keys)]).found.outside == 1
    assert recent.unique([(0, 10, wrong_keys)]).found.outside == 1
    batch = recent.unique([(0, 20, wrong_keys)])
    assert batch.found.outside == -1
    same(batch, [(0, 20, wrong_keys)])


def test_repeated_calls_find_rows_where_they_are(tmp_path):
    """The shortcut past the index: between equal calls rows leave, tables grow, go and come."""
    rng = generator(SEED)
    with opened(tmp_path, cache_bytes=60_000) as store:
        table = make_table(store, rows=5_000, optimizer=Sgd(0.0))
        table.assign(np.arange(5_000), rows_of(np.arange(5_000)))
        calls = [rng.integers(0, 5_000, 200) for _ in range(3)]
        between = [
            lambda: None,
            lambda: table.lookup(rng.integers(0, 5_000, 700)),
            lambda: table.lookup(np.arange(5_000)),  # in parts
            lambda: table.read_rows(np.arange(300)),
            table.flush,
            lambda: make_table(store, "other", dim=24).lookup(np.arange(300)),
            lambda: [store.drop_table(name) for name in store.tables() if name == "other"],
            lambda: table.grow(table.rows + 1),
            lambda: store.checkpoint(f"{rng.integers(1 << 40)}"),
        ]
        for step in range(120):
            keys = calls[step % 3 if step % 2 else 0]
            assert np.array_equal(table.lookup(keys), rows_of(keys)), f"step {step}"
            between[rng.integers(len(between))]()
            table.update(keys, np.ones((len(keys), 4), np.float32))
            store.check_integrity()


def test_rows_that_left_with_their_slab_are_found_again(tmp_path):
    """Between two equal calls another layout takes the slabs in which their rows were."""
    with opened(tmp_path, cache_bytes=200_000) as store:
        table = make_table(store, optimizer=Sgd(1.0))
        table.assign(np.arange(5_000), rows_of(np.arange(5_000)))
        keys = pool_of(table).slots.keys[-100:].copy()
        assert np.array_equal(table.lookup(keys), rows_of(keys))
        make_table(store, "late", dim=24).lookup(np.arange(300))
        assert not set(keys.tolist()) & resident_keys(table)
        table.update(keys, -np.ones((100, 4), np.float32))
        store.check_integrity()
        assert set(keys.tolist()) <= resident_keys(table)
        assert np.array_equal(table.lookup(keys), rows_of(keys + 1))
        assert np.array_equal(table.read_rows(keys)[0], rows_of(keys + 1))


def test_the_rows_after_a_restore_are_the_checkpoints(tmp_path):
    with opened(tmp_path, cache_bytes=60_000) as store:
        table, keys = make_table(store), np.arange(200)
        table.assign(keys, rows_of(keys))
        store.checkpoint("a")
        table.assign(keys, rows_of(keys, version=1))
        table.lookup(keys)
        store.restore("a")
        assert np.array_equal(table.lookup(keys), rows_of(keys))
        store.check_integrity()
