"""The digest kept by block: the same as computed whole, wherever rows are, for what changed."""

import numpy as np
import pytest

from embstore import Adagrad, Adam, Constant, Normal, RowWiseAdagrad, Sgd, Uniform
from embstore.arithmetic import BLOCK_KEYS
from embstore.arrays import KEY_BITS, KEY_MASK
from embstore.digest import KeySet, TableDigest
from tests.reference import ReferenceStore
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    pool_of,
    rows_of,
    settle,
    small_limits,
    storage_of,
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

    def peek_written(self, keys):
        self.blocks += np.unique((keys & KEY_MASK) // BLOCK_KEYS).tolist()
        return self._pool.peek_written(keys)


def state_of(table):
    return table._engine.table(table._id, table.name)


def computed(table, digest=None):
    """Return a digest and the blocks that were hashed for it; a whole one where none is given."""
    state, pool = state_of(table), CountingPool(pool_of(table))
    found = (digest or TableDigest()).compute(
        pool, state.table_id, state.rows, state.identity_json, state.t
    )
    return found, sorted(pool.blocks)


def whole(table):
    return computed(table)[0]


def blocks_of(keys):
    return np.unique(np.asarray(keys) // BLOCK_KEYS).tolist()


# The same as whole


def test_incremental_digests_are_those_computed_whole(tmp_path):
    rng = generator(SEED)
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=ROWS, optimizer=Adagrad(0.1), initializer=Uniform(-1, 1))
        seen = {table.digest()}
        for step in range(25):
            keys = rng.integers(0, ROWS, int(rng.integers(1, 400)))
            table.update(keys, rng.standard_normal((len(keys), 4)).astype(np.float32))
            if step % 4 == 0:
                table.flush()
            if step % 10 == 5:
                store.checkpoint(f"{step}")
                settle(store)
            found = table.digest()
            assert found == whole(table)
            seen.add(found)
        assert len(seen) == 26
        store.check_integrity()


LAYOUTS = {
    "sgd": (Sgd(0.5), Constant(1.0)),
    "row-wise": (RowWiseAdagrad(0.5, initial_accumulator=0.1), Uniform(-1, 1)),
    "adam": (Adam(0.5), Normal(0.0, 1.0)),
}


@pytest.mark.parametrize("optimizer, initializer", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dim", [1, 7])
def test_the_digest_is_the_references(tmp_path, dim, optimizer, initializer):
    """tests/reference.py hashes row by row, from its own arrays."""
    rng, reference = generator(SEED), ReferenceStore()
    options = {"dim": dim, "rows": 700, "optimizer": optimizer, "initializer": initializer}
    twin = reference.create_table("t", **options)
    with opened(tmp_path, cache_bytes=20_000 + 2_000 * dim) as store:
        table = make_table(store, **options)
        assert table.digest() == twin.digest()
        for _ in range(4):
            keys = rng.integers(0, 700, 60)
            gradients = rng.standard_normal((60, dim)).astype(np.float32)
            for each in (table, twin):
                each.update(keys, gradients)
            assert table.digest() == twin.digest() == whole(table)
        for each in (table, twin):
            each.assign(keys[:9], gradients[:9])
        assert table.digest() == twin.digest() == whole(table)


def test_rows_count_in_all_three_places(tmp_path):
    """In the cache and dirty, in the log alone, in the base alone, and in the cache but clean."""
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=ROWS)
        table.assign(np.arange(0, 3_000), rows_of(np.arange(0, 3_000)))
        store.checkpoint("folded")
        settle(store)
        table.assign(np.arange(2_000, 6_000), rows_of(np.arange(2_000, 6_000), version=1))
        table.flush()
        table.assign(np.arange(5_900, 6_100), rows_of(np.arange(5_900, 6_100), version=2))
        table.lookup(np.arange(0, 100))
        keys, pool = np.arange(6_100), pool_of(table)
        slots = np.empty(len(keys), np.int64)
        pool.device.find(pool.index.arrays, keys, slots)
        cached = slots >= 0
        dirty = cached & (pool.memory.dirty[slots] != 0)
        found = np.empty(len(keys), np.uint8)
        storage_of(store).read(keys, np.empty((len(keys), 4), np.float32), found)
        places = {
            "dirty": dirty,
            "clean": cached & ~dirty,
            "log": ~cached & (found == 1),
            "base": ~cached & (found == 2),
        }
        assert all(where.sum() > 50 for where in places.values()), "the test must reach all"
        in_parts = table.digest()
        assert in_parts == whole(table)
    with opened(tmp_path / "one place", cache_bytes=8 << 20) as store:
        table = make_table(store, rows=ROWS)
        for low, high, version in ((0, 3_000, 0), (2_000, 6_000, 1), (5_900, 6_100, 2)):
            table.assign(np.arange(low, high), rows_of(np.arange(low, high), version=version))
        assert table.digest() == in_parts


def test_moving_rows_changes_nothing(tmp_path):
    """Eviction, flush, commit, fold and compaction move rows between places only."""
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=ROWS)
        table.assign(np.arange(500), rows_of(np.arange(500)))
        before = table.digest()
        moves = {
            "evict": lambda: table.lookup(np.arange(1_000, 4_000)),
            "flush": table.flush,
            "commit": lambda: store.checkpoint("a"),
            "fold": lambda: settle(store),
            "read": lambda: table.lookup(np.arange(500)),
            "grow": lambda: table.grow(ROWS + 1),
        }
        for name, move in moves.items():
            move()
            assert table.digest() == before, name
            assert whole(table) == before, name


def test_a_reopened_store_gives_the_same_digest(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=ROWS)
        table.assign(np.arange(0, ROWS, 7), rows_of(np.arange(0, ROWS, 7)))
        before = table.digest()
    for options in (OPTIONS, OPTIONS | {"read_only": True}):
        with opened(tmp_path, **options) as store:
            assert store.table("t").digest() == before


def test_a_restore_gives_the_checkpoints_digest(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=ROWS)
        table.assign(np.arange(300), rows_of(np.arange(300)))
        before = table.digest()
        store.checkpoint("a")
        table.assign(np.arange(200, 900), rows_of(np.arange(200, 900), version=1))
        assert table.digest() != before
        store.restore("a")
        assert table.digest() == before == whole(table)


def test_the_bits_of_a_row_count_and_not_their_value(tmp_path):
    """0.0 and -0.0 are equal numbers and different rows; an untouched row is no row."""
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, initializer=Constant(0.0))
        never = table.digest()
        table.assign([5], np.zeros((1, 4), np.float32))
        written = table.digest()
        table.assign([5], np.full((1, 4), -0.0, np.float32))
        assert len({never, written, table.digest()}) == 3
        table.assign([5], np.zeros((1, 4), np.float32))
        assert table.digest() == written == whole(table)


def test_t_counts_though_no_row_was_written(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store)
        before = table.digest()
        table.update([], np.empty((0, 4), np.float32))
        assert table.t == 1
        assert table.digest() != before


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 1_000])
def test_the_last_block_may_be_short(tmp_path, rows):
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, rows=rows)
        table.assign(np.arange(rows), rows_of(np.arange(rows)))
        before = table.digest()
        assert before == whole(table)
        table.grow(rows + 300)
        assert whole(table) == before


def test_keys_up_to_the_last_one_have_a_block(tmp_path):
    keys = np.array([0, 255, 256, 1 << 32, (1 << 40) - 257, (1 << 40) - 256, (1 << 40) - 1])
    with opened(tmp_path, cache_bytes=1 << 20) as store:
        table = make_table(store, rows=1 << 40)
        table.digest()
        table.assign(keys, rows_of(keys))
        found, hashed = computed(table)
        assert table.digest() == found
        assert hashed == blocks_of(keys)


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


def test_tables_of_one_pool_keep_apart(tmp_path):
    """A call over both tables changes blocks of both, each its own."""
    with opened(tmp_path, **OPTIONS) as store:
        first, second = make_table(store, "a"), make_table(store, "b")
        for table in (first, second):
            table.digest()
        ones = np.ones((2, 4), np.float32)
        store.update({"a": ([3, 900], ones), "b": ([5_000, 3], ones)})
        for table, keys in ((first, [3, 900]), (second, [5_000, 3])):
            found, hashed = computed(table, state_of(table).digest)
            assert hashed == blocks_of(keys)
            assert found == whole(table)


def test_before_the_first_digest_nothing_is_kept():
    digest = TableDigest()
    digest.note_written(np.arange(100_000) | 5 << KEY_BITS)
    assert digest._changed.members().tolist() == []


def test_key_set_holds_what_a_set_holds():
    rng, keys, model = generator(SEED), KeySet(), set()
    for _ in range(40):
        added = rng.integers(0, 1 << 20, int(rng.integers(0, 3_000)))
        keys.add(added, 8)
        model |= set((added >> 8).tolist())
        assert keys.members().tolist() == sorted(model)
