"""Level two: rows that left a GPU come back from pinned memory, and are what storage has."""

from contextlib import suppress
from io import StringIO
from itertools import count

import numpy as np
import pytest
from rich.console import Console

import embstore
from embstore import Adam, RowWiseAdagrad, Uniform
from embstore.arrays import EMPTY_KEY
from embstore.device.gpu import GpuDevice
from embstore.device.gpu_memory import GpuMemory
from embstore.engine import opening
from embstore.errors import CapacityError, CorruptTableError, DeviceError, InvalidArgumentError
from embstore_server.cli.top_view import StatsSample, drawn
from tests.conformance.backends import TINY
from tests.kernels.emulation.runtime import EmulatedRuntime

ROWS, DIM = 4_000, 8
T1 = {"dim": DIM, "rows": ROWS, "optimizer": RowWiseAdagrad(0.1), "initializer": Uniform(-1, 1)}
CACHE_BYTES, LEVEL_TWO_BYTES = 90_000, 1 << 20


class FewPinned(EmulatedRuntime):
    """Has pinned memory for no slab more, once it is told."""

    refuses = False

    def allocate_host(self, byte_count):
        if self.refuses and byte_count == self.slab_bytes:
            raise CapacityError("no pinned memory")
        return super().allocate_host(byte_count)


def opened(path, *, host_cache_bytes=LEVEL_TWO_BYTES, runtime=None, tables=1, **options):
    device = GpuDevice(runtime or EmulatedRuntime(), 1)
    # Rows are small: what is known of a slot of level two takes about as much as the row.
    cache_bytes = CACHE_BYTES + min(CACHE_BYTES, host_cache_bytes or 0)
    store = embstore.open(
        path, device=device, cache_bytes=cache_bytes, host_cache_bytes=host_cache_bytes, **options
    )
    for number in range(tables):
        store.create_table(f"t{number}", **T1)
    return store


def train(store, *batches, table="t0"):
    for keys in batches:
        store.table(table).update(keys, np.ones((len(keys), store.table(table).dim), np.float32))


def batches_of(count, size=100, seed=7):
    rng = np.random.default_rng(seed)
    return [rng.choice(ROWS, size, replace=False) for _ in range(count)]


def pool_of(store):
    return store.executor.tables.by_id[0].pool


def counts(store):
    stats = store.stats()
    return stats["cache"]["pools"][0]["misses_host"], stats["storage"]["bytes_read"]


def check_level_two(store):
    """Compare every clean row of level two with what a miss would find without it: storage's row,
    or its initial one."""
    with store.executor.tables.reading():
        for pool in store.executor.tables.pools.values():
            if pool.level_two is not None:
                check_clean_rows(pool, pool.level_two.slots)


def check_clean_rows(pool, slots_below):
    here = slots_below.contents()
    slots = np.flatnonzero((here.keys != EMPTY_KEY) & ~here.dirty)
    keys, device = here.keys[slots], pool.device
    expected = np.zeros((len(keys), pool.layout.stride), pool.layout.element)
    found = np.zeros(len(keys), np.uint8)
    pool.storage.rows.read(keys, expected, found)
    new = np.flatnonzero(found == 0)
    if len(new):
        rows = device.memory.allocate_rows(len(new), pool.layout)
        pool.residency.initialize(rows, np.arange(len(new)), keys[new])
        expected[new] = device.rows.read_rows(rows, device.memory.upload(np.arange(len(new))))
    kept = device.rows.read_rows(slots_below.memory.rows, device.memory.upload(slots))
    assert kept.tobytes() == expected.tobytes()


def test_a_row_that_comes_back_is_no_call_to_storage(tmp_path):
    store = opened(tmp_path / "store")
    keys = np.arange(ROWS // 2)
    for low in range(0, len(keys), 100):
        train(store, keys[low : low + 100])
    pool = store.stats()["cache"]["pools"][0]
    assert pool["slots"] < ROWS // 3
    assert pool["resident_rows"] == len(keys)
    for low in range(0, len(keys), 100):
        store.table("t0").lookup(keys[low : low + 100])
    came, bytes_read = counts(store)
    assert bytes_read == 0
    assert came >= len(keys) - pool["slots"]
    check_level_two(store)
    store.close()


def test_without_level_two_the_same_calls_read_storage(tmp_path):
    store = opened(tmp_path / "store", host_cache_bytes=0)
    for _ in range(2):
        train(store, *batches_of(20))
    came, bytes_read = counts(store)
    assert came == 0
    assert bytes_read > 0
    assert store.stats()["cache"]["host_budget_bytes"] == 0
    store.close()


def misses_of(store):
    return sum(pool["misses_host"] for pool in store.stats()["cache"]["pools"])


def digests_of(path, **options):
    """Return digests after a life in which rows leave, come back, and change in between."""
    store = opened(path, limits=TINY, tables=2, **options)
    store.create_table("wide", dim=33, rows=ROWS, optimizer=Adam(0.01), initializer=Uniform(-1, 1))
    batches, found, came = batches_of(30), [], 0
    for number, keys in enumerate(batches):
        train(store, keys, keys[:50])
        train(store, keys, table="t1")
        train(store, keys[:20], table="wide")
        if number == 10:
            store.checkpoint("ten")
        if number == 15:
            store.drop_table("t1")
            store.create_table("t1", **T1)
        if number == 20:
            store.flush()
        if number == 25:
            found.append({name: store.table(name).digest() for name in store.tables()})
            came += misses_of(store)  # pools are made anew
            store.restore("ten")
        store.check_integrity()
        check_level_two(store)
    found.append({name: store.table(name).digest() for name in store.tables()})
    came += misses_of(store)
    store.close()
    return found, came


def test_level_two_of_any_size_changes_no_bit(tmp_path):
    expected, _ = digests_of(tmp_path / "without", host_cache_bytes=0)
    shares = []
    for size in (1 << 17, 1 << 19, 1 << 22):
        found, came = digests_of(tmp_path / str(size), host_cache_bytes=size)
        assert found == expected
        shares.append(came)
    assert 0 < shares[0] < shares[2]


def test_level_two_smaller_than_what_one_call_moves(tmp_path):
    store = opened(tmp_path / "store", host_cache_bytes=20_000)
    level_two = pool_of(store).level_two
    for keys in batches_of(5, 700):
        train(store, keys)
        assert level_two.slots.count < 400
        check_level_two(store)
    store.check_integrity()
    store.close()


def test_rows_of_steps_come_back_from_level_two(tmp_path):
    store = opened(tmp_path / "store")
    batches = batches_of(20)
    train(store, *batches)
    came = counts(store)[0]
    with store.session(tables=["t0"], lookahead=4) as run:
        for step in run.steps(batches, keys=lambda batch: {"t0": batch}):
            rows = step.lookup()
            step.update(rows)
    assert counts(store)[0] > came
    store.check_integrity()
    check_level_two(store)
    store.close()


def test_a_row_that_cannot_be_read_leaves_the_others_where_they_are(tmp_path):
    """Those of level two had come, and are read from storage then."""
    store = opened(tmp_path / "store")
    first, second = np.arange(100), np.arange(1000, 1100)
    train(store, first)
    store.checkpoint("a")
    store.close()
    for log in (tmp_path / "store" / "log").iterdir():
        content = bytearray(log.read_bytes())
        content[4096 + 60] ^= 1
        log.write_bytes(content)
    store = opened(tmp_path / "store")
    train(store, second, *[np.setdiff1d(keys, first) for keys in batches_of(8, 200, seed=3)])
    table = store.table("t0")
    with store.executor.tables.reading():
        kept = pool_of(store).level_two.slots.keys
    mixed = np.union1d(first, np.intersect1d(second, kept)[:50])
    before = table.read_rows(np.setdiff1d(mixed, first))
    with pytest.raises(CorruptTableError):
        table.lookup(mixed)
    store.check_integrity()
    for found, wanted in zip(table.read_rows(np.setdiff1d(mixed, first)), before, strict=True):
        assert np.array_equal(found, wanted)
    check_level_two(store)
    store.close()


def test_where_pinned_memory_ends_level_two_stays_as_large_as_it_is(tmp_path):
    runtime = FewPinned()
    store = opened(tmp_path / "store", runtime=runtime)
    train(store, *batches_of(20))  # buffers have their size
    slots = pool_of(store).level_two.slots.count
    runtime.slab_bytes = (
        pool_of(store).level_two.slots.sizes.slab_slots * pool_of(store).layout.row_bytes
    )
    runtime.refuses = True
    train(store, *batches_of(20, seed=8))
    assert pool_of(store).level_two.slots.count == slots
    runtime.refuses = False
    store.check_integrity()
    check_level_two(store)
    store.close()


def test_without_any_pinned_memory_tables_are_made_restored_and_used(tmp_path):
    runtime = FewPinned()
    store = opened(tmp_path / "store", runtime=runtime)
    level_two = pool_of(store).level_two
    runtime.slab_bytes = level_two.slots.sizes.slab_slots * level_two.layout.row_bytes
    runtime.refuses = True
    store.checkpoint("a")
    train(store, *batches_of(20))
    store.restore("a")
    train(store, *batches_of(20))
    assert pool_of(store).level_two.slots.count == 0
    store.check_integrity()
    expected = store.table("t0").digest()
    store.close()
    store = opened(tmp_path / "other", host_cache_bytes=0)
    train(store, *batches_of(20))
    assert store.table("t0").digest() == expected
    store.close()


@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize("refused", [[2], [5, 6], [11, 14]])
def test_a_call_without_memory_for_its_exchange_moves_no_row(
    tmp_path, monkeypatch, refused, lookahead
):
    """It is refused, and done when it is tried again; a plan is tried again by itself."""
    calls, secure = count(1), GpuMemory.secure

    def some(self, rows):
        if next(calls) in refused:
            raise CapacityError("no memory for an exchange")
        secure(self, rows)

    def patiently(call, *arguments):
        while True:
            with suppress(CapacityError):
                return call(*arguments)

    def life(store):
        batches = batches_of(12, 150, seed=9)
        if not lookahead:
            for keys in batches:
                patiently(train, store, keys)
            return store.table("t0").digest()
        with store.session(tables=["t0"], lookahead=lookahead) as run:
            for step in run.steps(batches, keys=lambda batch: {"t0": batch}):
                patiently(step.lookup)
                patiently(step.update, {"t0": np.ones((150, DIM), np.float32)})
        return store.table("t0").digest()

    store = opened(tmp_path / "without", host_cache_bytes=0)
    expected = life(store)
    store.close()
    monkeypatch.setattr(GpuMemory, "secure", some)
    store = opened(tmp_path / "with", host_cache_bytes=100_000)
    assert life(store) == expected
    assert next(calls) > max(refused)
    monkeypatch.undo()
    store.check_integrity()
    check_level_two(store)
    store.close()


def test_a_store_whose_level_two_cannot_have_one_slab_is_not_opened(tmp_path):
    with pytest.raises(CapacityError, match="host_cache_bytes is 1000, of which 0 are in use"):
        opened(tmp_path / "store", host_cache_bytes=1000)


def test_a_checkpoint_whose_tables_have_no_room_in_level_two_is_refused(tmp_path):
    store = opened(tmp_path / "store")
    store.create_table("wide", **(T1 | {"dim": 900}))
    store.checkpoint("both")
    store.drop_table("wide")
    store.close()
    store = opened(tmp_path / "store", host_cache_bytes=20_000)
    before = store.table("t0").digest()
    with pytest.raises(CapacityError, match="host_cache_bytes is 20000, the tables up to this one"):
        store.restore("both")
    assert store.table("t0").digest() == before
    store.close()


def test_the_cpu_has_nothing_below(tmp_path):
    with pytest.raises(InvalidArgumentError, match="no host_cache_bytes on device 'cpu'"):
        embstore.open(tmp_path / "store", device="cpu", host_cache_bytes=1 << 20)
    for none in (None, 0):
        with embstore.open(tmp_path / "store", device="cpu", host_cache_bytes=none) as store:
            cache = store.stats()["cache"]
            assert cache["host_budget_bytes"] == 0
            assert cache["host_budget_reason"].startswith("none: on device cpu")


@pytest.mark.parametrize(
    ("free", "given", "size", "reason"),
    [
        (1 << 30, None, 1 << 28, "a quarter of the host's free memory, 1073741824 bytes"),
        (99, None, 0, "none: a quarter of the host's free memory, 99 bytes, is too little"),
        (1 << 30, 0, 0, "none, as given"),
        (99, 1 << 19, 1 << 19, "as given"),
    ],
)
def test_the_size_of_level_two_and_why_it_has_it(tmp_path, monkeypatch, free, given, size, reason):
    monkeypatch.setattr(opening, "free_bytes", lambda: free)
    store = opened(tmp_path / "store", host_cache_bytes=given)
    for keys in (np.arange(600), np.arange(600, 1200), np.arange(600)):
        train(store, keys)
    cache = store.stats()["cache"]
    assert (cache["host_budget_bytes"], cache["host_budget_reason"]) == (size, reason)
    (pool,) = cache["pools"]
    assert (pool["host_rows"] > 0) == (pool["misses_host"] > 0) == (size > 0)
    store.close()


def test_rows_and_misses_are_counted_by_level(tmp_path):
    store = opened(tmp_path / "store", tables=2)
    for low in range(0, 1000, 100):
        train(store, np.arange(low, low + 100))
    train(store, np.arange(50), table="t1")
    stats = store.stats()
    (pool,), tables = stats["cache"]["pools"], stats["tables"]
    above, below = (pool_of(store).slots, pool_of(store).level_two.slots)
    assert (pool["slots"], pool["host_slots"]) == (above.count, below.count)
    assert pool["resident_rows"] == pool["dirty_rows"] == 1050
    assert pool["host_rows"] == pool["host_dirty_rows"] == below.resident_count > 0
    assert pool["occupancy"] == above.resident_count / above.count
    for name in ("resident_rows", "host_rows", "dirty_rows", "host_dirty_rows"):
        assert sum(table[name] for table in tables.values()) == pool[name]
    assert (tables["t1"]["resident_rows"], tables["t1"]["host_rows"]) == (50, 0)
    assert store.table("t0").stats() == tables["t0"]
    assert pool["host_hit_rate"] == 0.0
    train(store, np.arange(100))
    after = store.stats()["cache"]
    (pool,) = after["pools"]
    assert (
        after["host_hit_rate"]
        == pool["host_hit_rate"]
        == pool["misses_host"] / (1050 + pool["misses_host"])
        > 0
    )
    console = Console(file=StringIO(), width=200)
    console.print(drawn(StatsSample(store.stats(), 0.0)))
    shown = " ".join(console.file.getvalue().split())
    for text in (
        "level two",
        "its hits",
        "missed: host / log / base / new",
        "of 1 MiB of the host's",
    ):
        assert text in shown
    store.close()


def test_a_device_that_fails_while_rows_move_loses_nothing_committed(tmp_path):
    runtime = EmulatedRuntime()
    store = opened(tmp_path / "store", runtime=runtime)
    train(store, *batches_of(10))
    store.checkpoint("a")
    digest = store.table("t0").digest()
    runtime.fail_at(30)
    with pytest.raises(DeviceError):
        train(store, *batches_of(10, seed=8))
    store.close()
    store = opened(tmp_path / "store")
    assert store.table("t0").digest() == digest
    store.close()
