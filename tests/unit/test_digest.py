"""The digest kept by block: the same as computed whole, wherever rows are, for what changed."""

import numpy as np
import pytest

from embstore.arithmetic import BLOCK_KEYS
from embstore.arrays import KEY_MASK
from embstore.cache import followers
from embstore.device.gpu import GpuDevice
from embstore.tables.digest import KeySet, TableDigest
from embstore.tables.slices import Slices
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    pool_of,
    rows_of,
    settle,
    small_limits,
)

SEED = 83
OPTIONS = {"cache_bytes": 60_000, "limits": small_limits()}
ROWS = 20_000


class CountingPool:
    """A pool that notes the keys that a digest asks for; all else is the pool behind it."""

    def __init__(self, pool):
        self._pool = pool
        self.blocks = []

    def __getattr__(self, name):
        return getattr(self._pool, name)

    @property
    def reader(self):
        return self

    def look(self, keys):
        self.blocks += np.unique((keys & KEY_MASK) // BLOCK_KEYS).tolist()
        return self._pool.reader.look(keys)


def state_of(table):
    return table._executor.tables.find(table.name, table.table_id)


def computed(table, digest=None):
    """Return a digest and the blocks that were hashed for it; a whole one where none is given."""
    state, pool = state_of(table), CountingPool(pool_of(table))
    digest = digest or TableDigest()
    digest.begin(pool, state.table_id)
    slices = Slices(table._executor.tables.frame)
    return digest.compute(slices, state.identity_json, state.t), sorted(pool.blocks)


def whole(table):
    return computed(table)[0]


def blocks_of(keys):
    return np.unique(np.asarray(keys) // BLOCK_KEYS).tolist()


# The same as whole


# The cost


def test_a_digest_hashes_the_blocks_that_changed(tmp_path):
    rng = generator(SEED)
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=ROWS)
        table.assign(np.arange(0, ROWS, 3), rows_of(np.arange(0, ROWS, 3)))
        kept = state_of(table).digest
        assert computed(table, kept)[1] == blocks_of(np.arange(ROWS))
        assert computed(table, kept)[1] == []
        for _ in range(10):
            keys = rng.integers(0, ROWS, 5)
            table.update(keys, np.ones((5, 4), np.float32))
            found, hashed = computed(table, kept)
            assert hashed == blocks_of(keys)
            assert found == whole(table)


def test_reading_costs_no_digest_anything(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=ROWS)
        table.assign(np.arange(1_000), rows_of(np.arange(1_000)))
        kept = state_of(table).digest
        computed(table, kept)
        table.lookup(np.arange(0, ROWS, 2))
        table.flush()
        store.checkpoint("a")
        settle(store)
        assert computed(table, kept)[1] == []


def test_before_the_first_digest_nothing_is_kept(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=ROWS)
        table.assign(np.arange(1_000), rows_of(np.arange(1_000)))
        assert state_of(table).digest._changed.members().tolist() == []


def test_key_set_holds_what_a_set_holds():
    rng, keys, model = generator(SEED), KeySet(), set()
    for _ in range(40):
        added = rng.integers(0, 1 << 20, int(rng.integers(0, 3_000)))
        keys.add(added, 8)
        model |= set((added >> 8).tolist())
        assert keys.members().tolist() == sorted(model)


@pytest.mark.parametrize("room", [50, 1 << 21])
def test_keys_that_wait_on_a_gpu_are_in_the_next_digest(tmp_path, monkeypatch, room):
    """Collected in little room, which a call of more keys makes larger, and in much."""
    monkeypatch.setattr(followers, "COLLECTED_KEYS", room)
    found, options = [], {"cache_bytes": 1 << 20, "host_cache_bytes": 0}
    for device in (GpuDevice(EmulatedRuntime(), 1), "cpu"):
        rng = generator(SEED)
        with opened(tmp_path / str(len(found)), device=device, **options) as store:
            tables = [make_table(store, name, rows=ROWS) for name in ("a", "b")]
            found.append([table.digest() for table in tables])
            for size in (20, 40, 300, 10):
                for table in tables:
                    table.update(rng.integers(0, ROWS, size), np.ones((size, 4), np.float32))
                found[-1] += [table.digest() for table in tables]
    assert found[0] == found[1]
