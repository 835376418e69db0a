"""Damage to the files of a closed store, and what comes of opening it afterwards."""

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embstore.errors import CorruptTableError, InvalidArgumentError, TableMismatchError
from tests.conformance.backends import UnsyncedFiles
from tests.faults.forks import Forks
from tests.faults.promises import Promise, check_content, content_of
from tests.faults.training import DenseStore, keys_of, open_store, rows_of, stir, train

PAGE_BYTES = 4096
SEED = 20260304


class Damage(NamedTuple):
    """A change to one file, made and unmade in place."""

    path: str
    offset: int
    bit: int

    def toggle(self, root: Path) -> None:
        """Flip the bit; twice is not at all."""
        with (root / self.path).open("r+b") as file:
            file.seek(self.offset)
            byte = file.read(1)[0]
            file.seek(self.offset)
            file.write(bytes([byte ^ 1 << self.bit]))


def make_store(path: Path, commands: int = 60) -> Promise:
    """Make a store with labels, segments, bases and bitmaps, closed; return what it holds."""
    dense = DenseStore()
    with open_store(path, files=UnsyncedFiles(path)) as store:
        for _ in range(commands):
            train(store, SEED, 1)
            stir(store, SEED)
            store.executor.storage.merges.finish()
    train(dense, SEED, commands)
    return content_of(dense)


def files_of(path: Path) -> list[str]:
    """Return every file of a store but its lock, sorted."""
    names = [str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()]
    return sorted(name for name in names if name != "LOCK")


def flips_of(path: Path, kind: str) -> Iterator[Damage]:
    """Yield one bit flip for each byte that matters of the files of a kind.

    Files without rows, headers, indexes and trailers are flipped at each byte, rows and the padding
    of pages at some.
    """
    rng = np.random.default_rng(SEED)
    for name in files_of(path):
        if not name.endswith(kind):
            continue
        size = (path / name).stat().st_size
        for offset in _offsets(name, size, rng):
            yield Damage(name, int(offset), int(rng.integers(8)))


def _offsets(name: str, size: int, rng: np.random.Generator) -> Any:
    every = np.arange(size)
    if not name.startswith(("log/", "base/", "ids/")):
        return every
    header, padding = every[:80], rng.integers(80, PAGE_BYTES, 4)
    if name.endswith(".log"):
        tail = every[max(PAGE_BYTES, size - 250) :]  # the trailer, and of the index some
        return np.concatenate([header, padding, rng.integers(PAGE_BYTES, size, 12), tail])
    return np.concatenate([header, padding, rng.integers(PAGE_BYTES, size, 60)])


def outcome(path: Path, expected: Promise, **options: Any) -> str:
    """Open a store, read all of it, and return "right" or the name of a proper error.

    Anything else is raised: another error, or the AssertionError of a wrong content.
    """
    try:
        with open_store(path, files=UnsyncedFiles(path), **options) as store:
            if not options.get("read_only"):
                store.executor.storage.merges.finish()
            check_content(store, expected)
            check_rows(store)
    except (CorruptTableError, TableMismatchError, InvalidArgumentError) as exc:
        return type(exc).__name__
    return "right"


def check_rows(store: Any) -> None:
    """Look up every row of every table, by way of the cache and around it: the same rows."""
    for name in store.tables():
        keys = keys_of(name, np.arange(rows_of(store, name)))
        weights, _ = store.table(name).read_rows(keys)
        found = store.table(name).lookup(keys)
        assert found.tobytes() == weights.tobytes()


def try_flips(reports: Any, path: str, kind: str, expected: Promise) -> None:
    """A child: report each flip before it is tried, and then what came of it."""
    for flip in flips_of(Path(path), kind):
        reports.send(("tries", flip))
        flip.toggle(Path(path))
        reports.send(("came", _came(Path(path), expected, read_only=True)))
        flip.toggle(Path(path))


def try_each(
    reports: Any, path: str, damages: Callable[..., Iterator[Any]], expected: Promise, *args: Any
) -> None:
    """A child: do each damage to a copy, open it for writing, and report as `try_flips` does.

    damages : a generator over (copy, *args) that damages the copy and yields what it did
    """
    copy = Path(f"{path}-copy")
    shutil.copytree(path, copy)
    for damage in damages(copy, *args):
        reports.send(("tries", damage))
        reports.send(("came", _came(copy, expected)))
        shutil.rmtree(copy)
        shutil.copytree(path, copy)
    shutil.rmtree(copy)


def results(forks: Forks, function: Any, *args: Any) -> dict[Any, str]:
    """Run one of these children to its end; return what came of each damage it tried."""
    child = forks.start(function, *args)
    came: dict[Any, str] = {}
    tried = None
    try:
        while True:
            word, what = child.reports.recv()
            if word == "tries":
                tried = what
            else:
                came[tried] = what
    except EOFError:
        assert child.wait() == 0, f"the process ended at {tried}"
    sys.stdout.write(f"{Counter(map(str, came.values()))}\n")
    return came


def _came(path: Path, expected: Promise, **options: Any) -> str:
    try:
        return outcome(path, expected, **options)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"[:300]
