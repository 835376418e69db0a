"""Files cut short, grown, swapped or from elsewhere: an error, or exactly the right rows.

Each damage is tried in a child process, because a map beyond the end of a file would end it.
"""

import os
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from tests.faults.damage import PAGE_BYTES, SEED, files_of, make_store, outcome, results, try_each
from tests.faults.promises import content_of
from tests.faults.training import DenseStore, open_store, train

PROPER = {"right", "CorruptTableError"}


def cut_or_grown(store: Path) -> Iterator[tuple[str, int]]:
    """Give each file each of some lengths."""
    for name in files_of(store):
        size = (store / name).stat().st_size
        for length in {0, 1, 64, PAGE_BYTES, size // 2, size - 512, size - 64, size - 1, size + 1}:
            if 0 <= length != size:
                os.truncate(store / name, length)
                yield name, length


def swapped(store: Path) -> Iterator[tuple[str, str]]:
    """Let two files of a kind change places."""
    for first, second in combinations(files_of(store), 2):
        if Path(first).suffix == Path(second).suffix != "":
            (store / first).rename(store / "between")
            (store / second).rename(store / first)
            (store / "between").rename(store / second)
            yield first, second


def foreign(store: Path, other: str) -> Iterator[str]:
    """Replace each file by one of its kind of another store with the same tables and history."""
    for name in files_of(store):
        kin = Path(other, name).parent.glob(f"*{Path(name).suffix or name}")
        shutil.copyfile(min(kin, key=lambda path: path.name != Path(name).name), store / name)
        yield name


def test_cut_or_grown_file_is_an_error_or_harmless(forks, made):
    path, expected = made
    came = results(forks, try_each, str(path), cut_or_grown, expected)
    assert {damage: what for damage, what in came.items() if what not in PROPER} == {}


def test_swapped_files_are_an_error(forks, made):
    path, expected = made
    came = results(forks, try_each, str(path), swapped, expected)
    assert {pair: what for pair, what in came.items() if what != "CorruptTableError"} == {}


def test_foreign_file_is_an_error(forks, made, quick_path):
    path, expected = made
    other = quick_path / "other"
    assert make_store(other) == expected
    came = results(forks, try_each, str(path), foreign, expected, str(other))
    assert {name: what for name, what in came.items() if what != "CorruptTableError"} == {}


def test_older_file_under_a_newer_name_is_an_error(quick_path):
    """As a backup put back in part would leave it; the newer rows would be initial again."""
    path = quick_path / "store"
    older: list[bytes] = []
    dense = DenseStore()
    with open_store(path) as store:
        while not older or store.command < 60:
            train(store, SEED, 1)
            store.executor.storage.merges.finish()
            older += [file.read_bytes() for file in path.glob("base/*")]
    train(dense, SEED, 60)
    for file in path.glob("base/*"):
        right = file.read_bytes()
        assert right != older[0], "expected rows to have been folded since"
        file.write_bytes(older[0])
        assert outcome(path, content_of(dense)) == "CorruptTableError"
        file.write_bytes(right)
    assert outcome(path, content_of(dense)) == "right"
