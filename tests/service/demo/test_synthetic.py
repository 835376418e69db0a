"""The written file: it is of the format, and holds what the planted model says."""

from pathlib import Path

import numpy as np
import pytest

from embstore_tools.demo.columns import CARDINALITIES, keys_by_table, scaled_rows, table_name
from embstore_tools.demo.criteo import Samples, read
from embstore_tools.demo.synthetic import write

SAMPLES = 10_000
ROWS = scaled_rows(0.001)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthetic") / "train.txt"
    write(path, samples=SAMPLES, rows=ROWS, seed=3)
    return path


@pytest.fixture(scope="module")
def samples(path: Path) -> Samples:
    return next(read(path, limit=2 * SAMPLES, block=2 * SAMPLES))


def test_some_fields_are_missing(path):
    lines = path.read_bytes().splitlines()
    empty = np.mean([[not f for f in line.split(b"\t")] for line in lines[:2000]], axis=0)
    assert empty[0] == 0
    assert 0.02 < empty[1:].mean() < 0.15


def test_a_small_column_keeps_its_categories(samples):
    keys = keys_by_table(samples.categories, ROWS)[table_name(8)]
    assert CARDINALITIES[8] == ROWS[8] == 3
    assert np.unique(keys).tolist() == [0, 1, 2]


def test_one_seed_is_one_file(path, tmp_path):
    write(tmp_path / "again", samples=SAMPLES, rows=ROWS, seed=3)
    write(tmp_path / "other", samples=100, rows=ROWS, seed=4)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert not path.read_bytes().startswith((tmp_path / "other").read_bytes()[:200])


def test_progress_adds_up_to_the_samples(tmp_path):
    told: list[int] = []
    write(tmp_path / "train.txt", samples=9000, rows=ROWS, advance=told.append)
    assert sum(told) == 9000
    assert len(told) > 1


def test_an_existing_file_is_not_overwritten(path):
    with pytest.raises(FileExistsError):
        write(path, samples=1, rows=ROWS)
    assert len(next(read(path, limit=2, block=2))) == 2


def test_rows_are_cardinalities_scaled_down():
    assert scaled_rows(1.0) == CARDINALITIES
    assert sum(CARDINALITIES) == 33_762_577
    assert scaled_rows(0.02)[2] == 202_624
    assert min(scaled_rows(1e-9)) == min(CARDINALITIES)


def test_keys_are_within_the_rows():
    categories = np.full((2, 26), 0xFFFFFFFF, np.int64)
    keys = keys_by_table(categories, ROWS)
    assert list(keys) == sorted(keys)
    assert all(0 <= k.max() < r for k, r in zip(keys.values(), ROWS, strict=True))
