"""The base: rows by key in sparse segments, and the bitmap of which there are any."""

import numpy as np
import pytest

from embstore.storage.base import Base
from embstore.storage.format import BaseGeometry
from embstore.storage.written import BITMAP_PAGE_KEYS, Written
from tests.unit.small_stores import UnsyncedFiles, generator
from tests.unit.storage_samples import (
    STORE_ID,
    layout_of,
    records_for,
    rows_for,
    same_rows,
    unpacked,
)

SEED = 67
TABLE = 4
BITMAP = f"base/{TABLE}/000000000001.written"


def new_base(path, stride=4, segment_bytes=2 << 20, rows=1 << 40):
    geometry = BaseGeometry(layout_of(stride).record_bytes, segment_bytes)
    base = Base(UnsyncedFiles(path), STORE_ID, TABLE, geometry)
    base.create(rows)
    return base


def fold(base, keys, version=0, stride=4, path=BITMAP):
    """Do what a fold does: rows, then the bitmap; then what a commit does: use it."""
    keys = np.unique(np.asarray(keys, np.int64))
    base.write(keys, records_for(keys, version, stride))
    base.sync(int(keys[0]), int(keys[-1]))
    written, path = base.save_written(keys, path)
    base.map_rows(written)
    base.use(written, path)
    return keys


def read(base, keys, stride=4):
    """Return which keys the base has, and their rows, every record checked."""
    keys = np.asarray(keys, np.int64)
    addresses = np.zeros(len(keys), np.uint64)
    count = base.locate(keys | TABLE << 40, np.arange(len(keys)), addresses)
    have = addresses != 0
    assert count == have.sum()
    return have.tolist(), unpacked(addresses, keys, stride)[have]


def check_has(base, keys, version=0, stride=4):
    have, rows = read(base, keys, stride)
    assert all(have)
    assert same_rows(rows, rows_for(np.asarray(keys), version, stride))


def loaded(path, base, stride=4, segment_bytes=2 << 20):
    geometry = BaseGeometry(layout_of(stride).record_bytes, segment_bytes)
    again = Base(UnsyncedFiles(path), STORE_ID, TABLE, geometry)
    again.load(base.written_path)
    return again


def test_a_table_never_folded_has_no_rows(tmp_path):
    base = new_base(tmp_path)
    assert read(base, [0, 1, 1 << 39]) == ([False] * 3, pytest.approx(np.empty((0, 4))))
    assert base.written.blocks(256).tolist() == []


def test_folded_rows_are_found_and_no_others(tmp_path):
    keys = generator(SEED).choice(200_000, 3_000, replace=False)
    base = new_base(tmp_path)
    keys = fold(base, keys)
    check_has(base, keys)
    others = np.setdiff1d(np.arange(200_000), keys)
    assert not any(read(base, others)[0])
    check_has(loaded(tmp_path, base), keys)


def test_a_second_fold_keeps_and_replaces(tmp_path):
    base = new_base(tmp_path)
    fold(base, range(0, 1_000, 2), version=1)
    fold(base, range(0, 1_000, 3), version=2, path=BITMAP.replace("1", "2"))
    check_has(base, range(0, 1_000, 3), version=2)
    check_has(base, [key for key in range(0, 1_000, 2) if key % 3], version=1)
    assert not any(read(base, [1, 5, 7, 997])[0])


def test_rows_fold_over_several_segments(tmp_path):
    base = new_base(tmp_path)
    per_segment = base.geometry.rows_per_segment
    assert per_segment > BITMAP_PAGE_KEYS
    edges = [0, per_segment - 1, per_segment, 2 * per_segment - 1, 5 * per_segment + 3]
    fold(base, edges)
    check_has(base, edges)
    check_has(loaded(tmp_path, base), edges)
    names = sorted(p.name for p in (tmp_path / base.directory).glob("*.rows"))
    assert names == ["000000.rows", "000001.rows", "000005.rows"]
    assert not any(read(base, [1, per_segment + 1, 3 * per_segment, 9 * per_segment])[0])


@pytest.mark.parametrize("segment_bytes", [8192, 40_960, 1 << 18])
def test_segments_may_be_smaller_than_a_bitmap_page(tmp_path, segment_bytes):
    """A bitmap page spans many segments; each that has a row must be mapped, or reads crash."""
    base = new_base(tmp_path, segment_bytes=segment_bytes)
    per_segment = base.geometry.rows_per_segment
    keys = fold(base, [0, 3 * per_segment + 1, 9 * per_segment, 25_000, 40_000, 70_000])
    assert set(base._maps) == set((keys // per_segment).tolist())
    check_has(base, keys)
    check_has(loaded(tmp_path, base, segment_bytes=segment_bytes), keys)


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_bitmap_page_may_straddle_two_segments(tmp_path, offset):
    """Rows on one side of the border only: that side's segment is needed, and mapped."""
    for side in (0, 1):
        base = new_base(tmp_path / f"{side}")
        border = base.geometry.rows_per_segment
        assert border % BITMAP_PAGE_KEYS
        keys = fold(base, [border + 500 * (2 * side - 1) + offset])
        assert set(base._maps) == {side}
        check_has(base, keys)
        check_has(loaded(tmp_path / f"{side}", base), keys)


def test_keys_up_to_the_last_one_have_a_place(tmp_path):
    base = new_base(tmp_path, segment_bytes=1 << 30)
    keys = fold(base, [0, (1 << 39) + 7, (1 << 40) - 1])
    check_has(base, keys)
    assert not any(read(base, [(1 << 40) - 2, 1 << 39])[0])
    assert base.written.blocks(256).tolist() == [0, 1 << 31, (1 << 32) - 1]
    assert base.written.keys_between(0, 1 << 40).tolist() == keys.tolist()
    assert base.written.bits.nbytes == 3 * 4096, "the bitmap grows with rows, not with the table"


@pytest.mark.parametrize("stride", [4, 16, 1016, 1020, 1024, 3072, 12288])
def test_rows_of_every_size_are_kept(tmp_path, stride):
    base = new_base(tmp_path, stride)
    per_segment = base.geometry.rows_per_segment
    keys = [0, 1, 2, 3, 7, per_segment - 1, per_segment, per_segment + 1]
    keys = fold(base, keys, version=3, stride=stride)
    check_has(base, keys, version=3, stride=stride)
    check_has(loaded(tmp_path, base, stride), keys, version=3, stride=stride)


def test_many_neighbouring_pages_are_written_whole(tmp_path):
    """More pages than one system call takes, with and without gaps."""
    base = new_base(tmp_path, stride=1020, segment_bytes=8 << 20)
    dense, gaps = np.arange(0, 700), np.arange(800, 1_600, 2)
    keys = fold(base, np.concatenate([dense, gaps]), stride=1020)
    check_has(base, keys, stride=1020)


def test_the_file_is_sparse(tmp_path):
    base = new_base(tmp_path, segment_bytes=1 << 30)
    fold(base, [base.geometry.rows_per_segment - 1])
    (file,) = (tmp_path / base.directory).glob("*.rows")
    assert file.stat().st_size > 1_000_000_000
    assert file.stat().st_blocks * 512 < 1 << 20


# The written bitmap


def random_keys(rng, count=500):
    return np.unique(rng.integers(0, 20 * BITMAP_PAGE_KEYS, count))


def test_bitmap_is_a_set_of_keys():
    rng, written, model = generator(SEED), Written.none(), set()
    for _ in range(10):
        keys = random_keys(rng, 200)
        written = written.with_keys(keys)
        model |= set(keys.tolist())
        assert written.keys_between(0, 1 << 40).tolist() == sorted(model)
    assert (np.diff(written.pages) > 0).all()
    for _ in range(20):
        low, high = np.sort(rng.integers(0, 21 * BITMAP_PAGE_KEYS, 2)).tolist()
        expected = sorted(key for key in model if low <= key < high)
        assert written.keys_between(low, high).tolist() == expected
    for block in (256, 8, BITMAP_PAGE_KEYS):
        assert written.blocks(block).tolist() == sorted({key // block for key in model})


def test_a_bitmap_does_not_change_the_one_it_came_from():
    first = Written.none().with_keys(np.array([1, 5]))
    first.with_keys(np.array([2, 1 << 30]))
    assert first.keys_between(0, 1 << 40).tolist() == [1, 5]
