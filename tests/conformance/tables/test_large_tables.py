"""Tables far larger than the disk: there at once, as sparse files, trained on few scattered keys.

Source: "> 2^31 elements / bytes; > 2^32 rows", HKV#203, FBGEMM's int32 overflow tests, FBGEMM#5876;
"float32 slot ids; > 2^24 rows", FAE.
"""

import numpy as np
import pytest

from embstore.config import Adam, Limits, RowWiseAdagrad
from tests.conformance.cases import assert_same, config, generator, normal, ones

BILLION, MOST = 10**9, 2**40
EDGES = [2**power + step for power in (24, 31, 32, 39) for step in (-1, 0, 1)]
FOLDING = Limits(fold_bytes=4096, fold_segments=2)


def disk_bytes(path):
    return sum(p.stat().st_blocks for p in path.rglob("*")) * 512


def scattered(rng, rows, count=60):
    """Draw keys over all of a table, with its first and last and those where integers end."""
    edges = [0, 1, *(e for e in EDGES if e < rows), rows - 1]
    return np.concatenate([rng.integers(0, rows, count), edges])


def train(twin, keys, dim, rng):
    for _ in range(2):
        twin.on("a", "update", rng.permutation(keys), normal(rng, len(keys), dim))


@pytest.mark.parametrize("rows", [BILLION, MOST], ids=["billion", "most"])
@pytest.mark.parametrize("dim", [4, 64])
def test_trained_folded_and_opened_again(open_twin, backend, rows, dim):
    twin, rng = open_twin(limits=FOLDING, checkpoints_keep=1), generator(181)
    twin.create_table("a", **config(dim=dim, rows=rows, optimizer=RowWiseAdagrad(0.1)))
    assert disk_bytes(backend.path()) < 1 << 20
    keys = scattered(rng, rows)
    train(twin, keys, dim, rng)
    twin.checkpoint("c")
    twin.settle()
    assert twin.store.stats()["storage"]["folds"] > 0
    twin.check()
    twin.reopen()
    train(twin, keys[::2], dim, rng)
    fresh = np.setdiff1d(np.concatenate([keys - 1, keys + 1]) % rows, keys)
    assert_same(twin.store.table("a").lookup(fresh), twin.reference.table("a").lookup(fresh))
    twin.reopen()  # no crash: it copies the files, and a copy has no holes
    assert disk_bytes(backend.path()) < 8 << 20


def test_keys_in_more_segments_than_the_address_space_holds(open_twin):
    """A key space of 2**40 is for hashed ids, which fall everywhere: into all 4,682 segments of 64
    GiB that rows of 288 bytes make, 292 TiB. What is folded must stay readable, and open again."""
    twin = open_twin(limits=FOLDING, checkpoints_keep=1, cache_bytes=16 << 20)
    twin.create_table("a", **config(dim=64, rows=MOST, optimizer=RowWiseAdagrad(0.1)))
    segment_rows = ((64 << 30) // 4096 - 1) * (4096 // 288)
    keys = np.arange(segment_rows, MOST, segment_rows) - 1  # the last of each
    twin.on("a", "assign", keys, ones(len(keys), 64))
    twin.checkpoint("c")
    twin.settle()
    twin.reopen()


def test_rows_of_neighbouring_keys_beyond_2_to_the_24_are_their_own(open_table):
    """float32 has no number between 2**24 and 2**24 + 2."""
    twin, table = open_table(a=config(rows=2**25))
    keys = 2**24 + np.arange(-4, 5)
    twin.on("a", "update", keys, np.arange(36, dtype=np.float32).reshape(9, 4))
    assert len(np.unique(table.lookup(keys), axis=0)) == 9


def test_the_largest_row_at_the_last_key(open_twin):
    twin = open_twin(cache_bytes=4 << 20, a=config(dim=4096, rows=MOST, optimizer=Adam(0.1)))
    twin.on("a", "update", [0, MOST - 1], normal(generator(183), 2, 4096))
    twin.reopen()


def test_the_key_of_one_table_is_not_the_key_of_the_next(open_twin):
    """Row keys are table << 40 | key: the last key of one lies beside the first of another."""
    twin = open_twin(**dict.fromkeys("abc", config(rows=MOST)))
    edge = np.array([0, 255, MOST - 256, MOST - 1])
    twin.update({name: (edge, ones(4, 4, value)) for value, name in enumerate("abc")})
    twin.store.flush()
    twin.drop_table("b")
    twin.reopen()
