"""Files that were cut, overwritten or lost: CorruptTableError with the file's name, never a wrong
row, never a crash of the process."""

import gc
import zlib
from dataclasses import replace

import numpy as np
import pytest

from embstore.errors import CorruptTableError, TableMismatchError
from tests.conformance.backends import TINY
from tests.conformance.cases import (
    assert_same,
    config,
    damage_first_row,
    each,
    generator,
    normal,
    ones,
)

pytestmark = pytest.mark.needs("one_store")


@pytest.fixture
def path(backend):
    """A closed store with a segment of its log, a folded base, and a checkpoint."""
    limits = replace(TINY, fold_bytes=3 * 4096, fold_segments=100)  # the second checkpoint is small
    with backend.open_store(limits=limits, checkpoints_keep=1) as store:
        table = store.create_table("a", **config(dim=64))
        table.assign(np.arange(0, 100, 2), ones(50, 64))
        store.checkpoint("c")
        backend.settle(store)
        assert store.stats()["storage"]["folds"] > 0
        table.assign([1, 3], ones(2, 64, 3.0))
    assert {".log", ".rows"} <= {p.suffix for p in backend.path().rglob("*")}
    return backend.path()


def one_of(path, pattern):
    return sorted(path.rglob(pattern))[0]


def assert_corrupt(backend, name, *parts):
    """Expect opening to be refused, again and again, and the file left as it is."""
    for read_only in (False, True, False):
        with pytest.raises(CorruptTableError) as caught:
            backend.open_store(read_only=read_only)
        for part in (name, *parts):
            assert part in str(caught.value)


@pytest.mark.parametrize("name", ["store.json", "CATALOGUE"])
def test_cut_at_any_length(path, backend, name):
    whole = (path / name).read_bytes()
    lengths = {0, 1, 10, len(whole) // 2, len(whole) - 2} | set(range(0, 90, 7))
    for length in sorted(n for n in lengths if n < len(whole) - 1):
        (path / name).write_bytes(whole[:length])
        assert_corrupt(backend, name)
    (path / name).write_bytes(whole)
    backend.open_store().close()


GARBAGE = {
    "zeros": bytes(4096),
    "noise": bytes(range(256)) * 16,
    "no UTF-8": b"\xff\xfe" * 100,
    "text": b"hello\n",
    "a list": b"[1, 2]\n",
    "a number": b"7",
    "null": b"null",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", ["store.json", "CATALOGUE"])
def test_garbage(path, backend, name):
    for garbage in each(GARBAGE.values()):
        gc.collect()  # else finalizers of older stores run, and fail, where the deep one recurses
        (path / name).write_bytes(garbage)
        assert_corrupt(backend, name)


def test_any_flipped_bit_of_the_catalogue(path, backend):
    whole, rng = (path / "CATALOGUE").read_bytes(), generator(161)
    for place in [*range(90), *rng.integers(0, len(whole), 60).tolist()]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        (path / "CATALOGUE").write_bytes(damaged)
        with pytest.raises((CorruptTableError, TableMismatchError), match="CATALOGUE"):
            backend.open_store()


@pytest.mark.parametrize("pattern", ["*.log", "*.rows"])
@pytest.mark.parametrize("length", ["lost", 0, 63, 4095, 4096, -1])
def test_cut_or_lost(path, backend, pattern, length):
    file = one_of(path, pattern)
    used = file.read_bytes().rstrip(b"\0")  # a base is longer than its rows, by a hole
    file.unlink() if length == "lost" else file.write_bytes(used[:length])
    assert_corrupt(backend, file.name, *["found"] * (length == "lost"))


@pytest.mark.parametrize("pattern", ["*.log", "*.rows"])
def test_overwritten_header(path, backend, pattern):
    file = one_of(path, pattern)
    whole = file.read_bytes()
    for place in (0, 9, 16, 18, 20, 33, 40, 50, 57, 65, 75, 100):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert_corrupt(backend, file.name)


@pytest.mark.parametrize("pattern", ["*.log", "*.rows"])
@pytest.mark.parametrize(("place", "value"), [(8, 9), (12, 0x04030201)], ids=["format", "order"])
def test_header_of_another_format_or_byte_order(path, backend, pattern, place, value):
    file = one_of(path, pattern)
    whole = bytearray(file.read_bytes())
    whole[place : place + 4] = value.to_bytes(4, "little")
    whole[72:80] = zlib.crc32(whole[:72]).to_bytes(8, "little")
    file.write_bytes(whole)
    form = 5 if pattern == "*.rows" else 4
    with pytest.raises(TableMismatchError, match=f"{file.name}.*format {form}, little-endian"):
        backend.open_store()


@pytest.mark.parametrize("pattern", ["*.log", "*.rows"])
def test_any_flipped_bit_of_an_index(path, backend, pattern):
    file, rng = one_of(path, pattern), generator(162)
    whole = file.read_bytes()
    first = 4096 + (2 if pattern == "*.log" else 50) * (16 + 256)  # what follows the records
    for place in rng.integers(first, len(whole), 25).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        try:
            store = backend.open_store()
        except CorruptTableError as exc:
            assert file.name in str(exc)
            continue
        assert not any(whole[place:]), "only padding may be damaged unnoticed"
        store.close()


@pytest.mark.parametrize("pattern", ["*.log", "*.rows"])
@pytest.mark.needs("plain_keys")
def test_damaged_record_is_refused_and_the_others_are_read(path, backend, pattern):
    """A flipped bit in a row is found when the row is read: by its checksum."""
    key = damage_first_row(one_of(path, pattern))
    store = backend.open_store()
    table = store.table("a")
    before = store.command, table.t
    for call in (
        lambda: table.lookup([51, key]),
        lambda: table.lookup([key], admit=False),
        lambda: table.lookup_pooled([key], [0, 1]),
        lambda: table.read_rows([key]),
        lambda: table.update([2, key], ones(2, 64)),
        lambda: store.update({"a": ([key], ones(1, 64))}),
        lambda: table.digest(),
    ):
        with pytest.raises(CorruptTableError, match=f"table.*key {key} fails"):
            call()
    assert (store.command, table.t) == before
    other = 1 if key == 3 else 3
    assert_same(table.lookup([2, other]), np.concatenate([ones(1, 64), ones(1, 64, 3.0)]))
    store.check_integrity()


@pytest.mark.needs("plain_keys")
def test_a_row_in_the_wrong_place_is_found_out(path, backend):
    """A record that moved is whole, but its key is another."""
    file = one_of(path, "*.rows")
    data = bytearray(file.read_bytes())
    size = 16 + 256
    first, third = slice(4096, 4096 + size), slice(4096 + 2 * size, 4096 + 3 * size)
    data[first], data[third] = data[third], data[first]
    file.write_bytes(data)
    store = backend.open_store()
    for key in (0, 4):
        with pytest.raises(CorruptTableError, match=f"key {key}"):
            store.table("a").lookup([key])


@pytest.mark.needs("plain_keys")
def test_fold_of_a_damaged_log_fails_and_says_so(backend):
    """The merge is given up and reported; the rows that are whole stay readable."""
    store = backend.open_store(checkpoints_keep=1)
    table = store.create_table("a", **config(dim=64))
    table.assign(np.arange(100), normal(generator(163), 100, 64))
    store.close()
    key = damage_first_row(one_of(backend.path(), "*.log"))
    store = backend.open_store(limits=TINY)
    backend.settle(store)
    stats = store.stats()["storage"]
    assert (stats["folds"], stats["merge_failures"]) == (0, 1)
    assert "checksum" in stats["merge_error"]
    table = store.table("a")
    with pytest.raises(CorruptTableError):
        table.lookup([key])
    assert table.lookup(np.delete(np.arange(100), key)).shape == (99, 64)
