"""The base: runs of rows by key, the newer run winning, wherever the keys are."""

from itertools import pairwise

import numpy as np

from embstore.storage.base import Base
from embstore.storage.run import RunWriter
from tests.conformance.backends import UnsyncedFiles
from tests.unit.small_stores import generator
from tests.unit.storage_samples import (
    STORE_ID,
    addresses_of,
    records_for,
    rows_for,
    same_rows,
    unpacked,
)

SEED = 67
TABLE = 4 << 40
PART_BYTES = 1 << 20


def new_base(path):
    return Base(UnsyncedFiles(path), STORE_ID)


def written(path, number, keys, version=0, stride=4, part_bytes=PART_BYTES, pieces=1):
    """Write a run of row keys; return its entries."""
    writer = RunWriter(UnsyncedFiles(path), STORE_ID, number, 1, part_bytes)
    for piece in np.array_split(np.unique(np.asarray(keys, np.int64)) | TABLE, pieces):
        writer.append(piece, records_for(piece, version, stride))
    writer.close()
    return tuple(writer.entries)


def base_of(path, *runs):
    base = new_base(path)
    base.use(base.open(runs))
    return base


def read(base, keys, stride=4):
    """Return which keys the base has, and their rows, every record checked."""
    keys = np.asarray(keys, np.int64) | TABLE
    addresses = addresses_of(keys, base=base)
    have = addresses != 0
    return have.tolist(), unpacked(addresses, keys, stride)[have]


def check_has(base, keys, version=0, stride=4):
    have, rows = read(base, keys, stride)
    assert all(have)
    assert same_rows(rows, rows_for(np.asarray(keys, np.int64) | TABLE, version, stride))


def test_a_run_has_as_many_parts_as_its_bytes_need(tmp_path):
    keys = np.arange(0, 90_000, 3)
    entries = written(tmp_path, 7, keys, part_bytes=1 << 18, pieces=5)
    assert len(entries) == -(-len(keys) * 32 // (1 << 18))
    assert [entry.part for entry in entries] == list(range(len(entries)))
    assert all(a.high <= b.low for a, b in pairwise(entries))
    base = base_of(tmp_path, entries)
    check_has(base, keys)
    assert not any(read(base, keys + 1)[0])


def test_a_part_may_be_cut_and_have_a_hole(tmp_path):
    """What the catalogue names is what there is; the rest of the file is dead."""
    (run,) = new_base(tmp_path).open((written(tmp_path, 1, range(2_000)),))
    left = run[0].without(TABLE | 500, TABLE | 1_500)
    assert [part.bytes for part in left] == [500 * 32, 500 * 32]
    assert left[0].without(TABLE, TABLE | 500) == ()
    assert left[0].without(TABLE | 500, TABLE | 900) == left[:1]
    base = new_base(tmp_path)
    base.use((left,))
    assert len(base.maps) == 1
    check_has(base, [0, 499, 1_500, 1_999])
    assert not any(read(base, [500, 1_000, 1_499])[0])
    assert (base.blocks(4, 8) - (TABLE >> 8)).tolist() == [0, 1, 5, 6, 7]


def test_what_was_located_stays_when_its_file_is_gone(tmp_path):
    entries = written(tmp_path, 1, range(10), version=5)
    base = base_of(tmp_path, entries)
    keys = np.arange(10) | TABLE
    addresses, maps = addresses_of(keys, base=base), base.maps
    base.use(())
    (tmp_path / entries[0].path).unlink()
    assert same_rows(unpacked(addresses, keys), rows_for(keys, 5))
    assert len(maps) == 1


def test_keys_of_blocks(tmp_path):
    rng = generator(SEED)
    dense, few = np.arange(90_000), rng.choice(1 << 40, 3_000, replace=False)
    half = np.flatnonzero(rng.random(1 << 16) < 0.5) + (1 << 20)
    every = [np.concatenate([dense, few]), np.concatenate([half, few[:1_500], [3, 1 << 39]])]
    base = base_of(
        tmp_path, *(written(tmp_path, n, keys, part_bytes=1 << 18) for n, keys in enumerate(every))
    )
    keys = np.unique(np.concatenate(every)) | TABLE
    for shift in (8, 3, 11):
        blocks = np.unique(keys >> shift)
        assert np.array_equal(base.blocks(4, shift), blocks)
        assert np.array_equal(base.keys_in(blocks, shift), keys)
        some = np.unique(np.append(rng.choice(blocks, 40), [0, (TABLE >> shift) + 77_777]))
        expected = keys[np.isin(keys >> shift, some)]
        assert np.array_equal(base.keys_in(some, shift), expected)
