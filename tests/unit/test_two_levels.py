"""Lives of a cache of two levels: after every step each row of both is compared with a model.

The model is NumPy's: every row of every table, as a store on the CPU has it that was given the same
commands, and the keys whose newest row is not logged. A row is in one level or in none, its bits
are the model's, and it is dirty exactly where the model says so. A row that is logged is as it was
before the running command, or as it is after it.
"""

from itertools import count

import numpy as np
import pytest

import embstore
from embstore import Adam, Constant, RowWiseAdagrad, Uniform
from embstore.arrays import EMPTY_KEY, KEY_BITS, KEY_MASK
from embstore.cache.writing import Place
from embstore.device.gpu import GpuDevice
from embstore.device.runtime import COMPUTE
from embstore.engine.commits import OwnCommits
from embstore.errors import CapacityError
from tests.conformance.backends import TINY, UnsyncedFiles
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.unit.small_stores import generator

CACHE_BYTES = 110_000
SIZES = {"none": 0, "tiny": 12_000, "small": 30_000, "medium": 60_000, "large": 1 << 20}
"""Of level two, in bytes."""
TABLES = {
    "a": {"dim": 8, "rows": 900, "optimizer": RowWiseAdagrad(0.1), "initializer": Uniform(-1, 1)},
    "b": {"dim": 8, "rows": 700, "optimizer": RowWiseAdagrad(0.2), "initializer": Constant(0.5)},
    "c": {"dim": 12, "rows": 500, "optimizer": Adam(0.01), "initializer": Uniform(-1, 1)},
}
"""Of two layouts."""
STEPS = {
    "update": 6, "lookup": 4, "peek": 1, "pooled": 1, "put_rows": 1, "session": 2, "drop": 0.5,
    "resize": 1, "flush": 0.5, "checkpoint": 0.5, "restore": 0.5, "scan": 0.5, "hot_set": 0.5,
    "policy": 0.5, "write_back": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def without_a_writer(monkeypatch):
    """Rows are logged by calls, and where the test says so."""
    monkeypatch.setattr(OwnCommits, "start", lambda self: None)


def opened(path, device, cache_bytes, **options):
    return embstore.open(
        path, device=device, cache_bytes=cache_bytes, files=UnsyncedFiles(path), limits=TINY,
        **options,
    )  # fmt: skip


class Life:
    """A store of two levels, its twin on the CPU, and the model."""

    def __init__(self, path, seed, size, policy="lru", cache_bytes=CACHE_BYTES, **runtime):
        self.rng = generator(seed)
        device = GpuDevice(EmulatedRuntime(seed=seed, **runtime), 1)
        self.store = opened(
            path / "gpu", device, cache_bytes, host_cache_bytes=SIZES[size], policy=policy
        )
        self.twin = opened(path / "cpu", "cpu", 1 << 22, threads=1)
        self.dirty, self.logged = set(), []
        self.seen = dict.fromkeys(("rose", "sank", "logged"), 0)
        append = self.store.executor.storage.appender.append

        def noted(keys, rows, places):
            found = np.ascontiguousarray(rows[places])
            self.logged += zip(keys.tolist(), (row.tobytes() for row in found), strict=True)
            append(keys, rows, places)

        self.store.executor.storage.appender.append = noted
        for name, config in TABLES.items():
            for one in (self.store, self.twin):
                one.create_table(name, **config)
        self.rows = self.content()
        self.checkpoints = []

    # The model

    def content(self):
        """Return the bits of every row there is, by row key."""
        found = {}
        for table in self.store.executor.tables.by_id.values():
            keys = np.arange(TABLES[table.name]["rows"])
            rows = self.twin.table(table.name).read_rows(keys)
            bits = np.zeros((len(keys), table.pool.layout.stride), np.float32)
            bits[:, : rows[0].shape[1]] = rows[0]
            bits[:, rows[0].shape[1] : rows[0].shape[1] + rows[1].shape[1]] = rows[1]
            for key, row in zip((keys | table.table_id << KEY_BITS).tolist(), bits, strict=True):
                found[key] = row.tobytes()
        return found

    def row_keys(self, name, keys):
        table_id = self.store.table(name).table_id
        return (np.unique(keys) | table_id << KEY_BITS).tolist()

    def check(self, written=(), *, anew=False):
        """Compare everything, after a command that has written some row keys.

        anew : all rows were logged, or are gone, as of a restore
        """
        before, self.rows = self.rows, self.content()
        with self.store.executor.tables.reading():  # a planner may be at work
            self.check_rows(before, written, anew=anew)
        self.store.check_integrity()

    def check_rows(self, before, written, *, anew):
        self.dirty = {key for key in self.dirty | set(written) if key in self.rows}
        for key, row in self.logged:
            if key in self.rows and row == self.rows[key]:
                self.dirty.discard(key)
            else:
                assert row == before[key], "a row was logged that never was"
        self.seen["logged"] += len(self.logged)
        self.logged.clear()
        if anew:
            self.dirty.clear()
        held, dirty = [], set()
        for pool in self.store.executor.tables.pools.values():
            pool.finder.finish_arriving()
            levels = [pool] if pool.level_two is None else [pool, pool.level_two]
            for level in levels:
                keys, is_dirty = self.check_level(level)
                held += keys
                dirty |= is_dirty
        assert len(set(held)) == len(held), "a row is in two slots"
        assert dirty == self.dirty

    def check_level(self, level):
        """Compare the rows of a level with the model; return its keys, and those that are dirty."""
        here = level.slots.contents()
        slots = np.flatnonzero(here.keys != EMPTY_KEY)
        rows = level.device.rows.read_rows(
            level.slots.memory.rows, level.device.memory.upload(slots)
        )
        keys = here.keys[slots].tolist()
        for key, row in zip(keys, rows, strict=True):
            assert row.tobytes() == self.rows[key], f"row {key:#x}"
        return keys, set(here.keys[slots][here.dirty[slots]].tolist())

    # Steps

    def keys(self, name, most=300):
        """Return unique keys: often of the few hot ones."""
        rows = TABLES[name]["rows"]
        size = int(self.rng.integers(0, most)) if self.rng.random() < 0.95 else 0
        if self.rng.random() < 0.3:
            rows //= 4
        return self.rng.choice(rows, min(size, rows), replace=False)

    def shares(self, most=300):
        """Return keys by table, of some tables in any order."""
        names = self.rng.permutation([n for n in TABLES if self.rng.random() < 0.7] or ["a"])
        return {str(name): self.keys(str(name), most) for name in names}

    def gradients(self, keys, name):
        return self.rng.normal(1, 0.1, (len(keys), TABLES[name]["dim"])).astype(np.float32)

    def both(self, call):
        """Do the same with both stores; return what the first gives."""
        found, expected = call(self.store), call(self.twin)
        for name in expected if isinstance(expected, dict) else ():
            assert np.asarray(found[name]).tobytes() == np.asarray(expected[name]).tobytes()
        return found

    def update(self):
        shares = {n: (k, self.gradients(k, n)) for n, k in self.shares().items()}
        if self.rng.random() < 0.1:  # in parts
            keys = self.rng.choice(900, 880, replace=False)
            shares = {"a": (keys, self.gradients(keys, "a"))}
        self.both(lambda store: (store.update(shares), None)[1])
        return [key for n, (k, _) in shares.items() for key in self.row_keys(n, k)]

    def lookup(self, *, admit=True):
        shares = self.shares(900 if self.rng.random() < 0.1 else 300)
        self.both(lambda store: store.lookup(shares, admit=admit))

    def peek(self):
        before = self.where()
        self.lookup(admit=False)
        assert self.where() == before

    def where(self):
        """Return what is in which slot."""
        pools = self.store.executor.tables.pools.values()
        levels = [level for p in pools for level in (p, p.level_two) if level is not None]
        return [level.slots.contents().keys.tolist() for level in levels]

    def pooled(self):
        bags = {n: (k, np.array([0, len(k) // 2, len(k)])) for n, k in self.shares().items()}
        admit = self.rng.random() < 0.7
        self.both(lambda store: store.lookup_pooled(bags, admit=admit))

    def put_rows(self):
        name = str(self.rng.choice(list(TABLES)))
        keys = self.keys(name)
        weights, state = self.twin.table(name).read_rows(keys)
        weights, state = weights + np.float32(1), state + np.float32(1)
        self.both(lambda store: (store.table(name).put_rows(keys, weights, state, 1), None)[1])
        return self.row_keys(name, keys)

    def session(self):
        planner = str(self.rng.choice(["per_step", "group:2", "window"]))
        batches = [self.shares(150) for _ in range(4)]
        batches = [{n: b.get(n, np.arange(3)) for n in TABLES} for b in batches]
        gradients = [{n: self.gradients(k, n) for n, k in batch.items()} for batch in batches]

        with self.store.session(tables=list(TABLES), lookahead=3, planner=planner) as run:
            for step, given in zip(run.steps(list(batches), keys=dict), gradients, strict=True):
                step.lookup()
                step.update(given)
                shares = {n: (batches[0][n], given[n]) for n in TABLES}
                self.twin.update(shares)
                self.check([k for n, b in batches.pop(0).items() for k in self.row_keys(n, b)])

    def drop(self):
        name = str(self.rng.choice(list(TABLES)))
        for one in (self.store, self.twin):
            one.drop_table(name)
            one.create_table(name, **TABLES[name])

    def resize(self):
        self.store.resize_cache(int(CACHE_BYTES * self.rng.choice([0.8, 1, 1.5, 3])))

    def flush(self):
        self.store.flush()
        assert not self.dirty - {key for key, _ in self.logged}

    def checkpoint(self):
        self.both(lambda store: (store.checkpoint(f"at-{len(self.checkpoints)}"), None)[1])
        self.checkpoints.append(f"at-{len(self.checkpoints)}")

    def restore(self):
        if self.checkpoints:
            label = self.checkpoints[-1]
            self.both(lambda store: (store.restore(label), None)[1])
            return None

    def scan(self):
        name = str(self.rng.choice(list(TABLES)))
        scanned = [
            [
                np.concatenate(part)
                for part in zip(*one.table(name).scan(with_state=True), strict=True)
            ]
            for one in (self.store, self.twin)
        ]
        for found, expected in zip(*scanned, strict=True):
            assert np.array_equal(found, expected)
        for other in TABLES:
            assert self.store.table(other).digest() == self.twin.table(other).digest()

    def hot_set(self):
        is_pinned = self.store.hot_set() is not None
        self.store.pin_hot_set(None if is_pinned else {"a": np.arange(40), "c": np.arange(20)})

    def policy(self):
        self.store.set_policy(str(self.rng.choice(["lru", "lfu", "rank"])))

    def write_back(self):
        write_back = self.store.executor.commits.write_back
        with self.store.executor.tables.reading():
            for _ in range(write_back.is_on * int(self.rng.integers(1, 4))):
                write_back.write()

    def live(self, steps):
        chances = np.array(list(STEPS.values())) / sum(STEPS.values())
        for number in range(steps):
            name = str(self.rng.choice(list(STEPS), p=chances))
            try:
                written = getattr(self, name)() or []
                self.check(written, anew=name == "restore" and bool(self.checkpoints))
            except BaseException as exc:
                exc.add_note(f"at step {number}, {name}")
                raise

    def close(self):
        for pool in self.store.executor.tables.pools.values():
            self.seen["rose"] += pool.counters.misses_host
            self.seen["sank"] += pool.counters.evictions_host
        self.store.close()
        self.twin.close()


@pytest.mark.parametrize(
    ("seed", "size", "policy"),
    [(3, "none", "lru"), (3, "small", "lru"), (4, "small", "lfu"), (3, "large", "rank")],
)
def test_each_row_of_both_levels_is_the_models(tmp_path, seed, size, policy):
    life = Life(tmp_path, seed, size, policy)
    life.live(25)
    life.close()
    assert life.seen["logged"] > 0
    assert (life.seen["rose"] > 0) == (life.seen["sank"] > 0) == (size != "none")


def test_level_two_of_one_pool_gives_slabs_to_another_while_a_call_is_under_way(tmp_path):
    """What the call had asked before is void then: its rows below have left their slots."""
    life, given = Life(tmp_path, 1, "medium", cache_bytes=90_000), []
    for pool in life.store.executor.tables.pools.values():

        def noted(count, pool=pool, release=pool.level_two.evictor.release_slabs):
            given.append(pool.residency.exchange._asked is not None)
            release(count)

        pool.level_two.evictor.release_slabs = noted
    for names in [["c"], *10 * [["a", "b"]], *5 * [["c", "a"]]]:
        shares = {n: life.rng.choice(TABLES[n]["rows"], 150, replace=False) for n in names}
        shares = {n: (keys, life.gradients(keys, n)) for n, keys in shares.items()}
        life.both(lambda store, shares=shares: (store.update(shares), None)[1])
        life.check([key for n, (keys, _) in shares.items() for key in life.row_keys(n, keys)])
    assert True in given
    life.close()


def test_a_pool_takes_a_slab_that_another_has_released(tmp_path):
    """It had been refused one, and asks again."""
    life = Life(tmp_path, 2, "large")
    store, rng = life.store, life.rng
    store.lookup({"c": np.arange(300)})
    for _ in range(10):
        store.lookup({n: rng.choice(TABLES[n]["rows"], 40, replace=False) for n in ("a", "b")})
    one, two = store.executor.tables.pools.values()
    slots = one.slots.count
    with store.executor.tables.reading():
        two.evictor.release_slabs(3)
    for _ in range(4):
        store.lookup({n: rng.choice(TABLES[n]["rows"], 40, replace=False) for n in ("a", "b")})
    assert one.slots.count > slots
    life.close()


def test_a_call_of_no_keys_asks_nothing(tmp_path):
    life = Life(tmp_path, 2, "large")
    store, rng, none = life.store, life.rng, np.empty(0, np.int64)
    for _ in range(20):
        keys = rng.choice(900, 60, replace=False)
        life.both(lambda s, keys=keys: s.lookup({"a": keys}))
    assert store.executor.tables.by_id[0].pool.residency.exchange._full
    life.both(lambda s: s.lookup({"a": none, "c": none}))
    life.both(lambda s: s.lookup_pooled({"a": (none, [0, 0])}))
    life.both(lambda s: (s.update({"a": (none, np.empty((0, 8), np.float32))}), None)[1])
    life.check()
    life.close()


def test_level_two_is_as_large_as_the_budget_of_level_one_lets_it_be(tmp_path):
    """It grows and shrinks with it, as in a store opened so."""
    life = Life(tmp_path, 2, "large", cache_bytes=90_000)
    store = life.store
    store.create_table("long", **TABLES["a"] | {"rows": 4000})

    def resized(cache_bytes):
        """Return the slots of level two under a budget."""
        store.resize_cache(cache_bytes)
        for low in range(0, 4000, 100):
            store.lookup({"long": np.arange(low, low + 100)})
        store.check_integrity()
        pool = store.executor.tables.by_id[0].pool
        assert pool.level_two.slots.memory_bytes <= pool.slots.sizes.below_bytes
        return pool.level_two.slots.count

    small, large = resized(70_000), resized(250_000)
    assert small < large
    assert (resized(70_000), resized(250_000)) == (small, large)
    life.close()


@pytest.mark.parametrize(("nth", "size"), [(1, "small"), (2, "tiny")])
def test_a_call_without_room_in_the_log_moves_no_row_of_level_one(tmp_path, monkeypatch, nth, size):
    """The room is for rows of level two, then for victims that this has no place for. It is done
    when there is room."""
    life, refused = Life(tmp_path, 3, size), 0
    appender = life.store.executor.storage.appender
    reserve = appender.reserve
    for _ in range(12):
        life.check(life.update())
    for _ in range(6):
        keys, asked, raised = life.rng.choice(900, 280, replace=False), count(1), []

        def full(records, record_bytes, asked=asked, raised=raised, **options):
            if records and next(asked) == nth:
                raised.append(nth)
                raise CapacityError("the disk is full")
            reserve(records, record_bytes, **options)

        before = life.where()[0]
        monkeypatch.setattr(appender, "reserve", full)
        life.store.lookup({"a": keys})  # is answered around the cache
        if raised:
            refused += 1
            assert life.where()[0] == before
        life.check()
        monkeypatch.setattr(appender, "reserve", reserve)
        life.both(lambda s, keys=keys: s.lookup({"a": keys}))
        life.check()
    assert refused > 0
    life.close()


def test_rows_of_a_queued_exchange_are_logged_whole_and_again_once_they_are_written(tmp_path):
    """The emulated streams lag: nothing of the exchange is done when its rows are asked for."""
    life = Life(tmp_path, 5, "large")
    for low in range(0, 800, 100):
        keys = np.arange(low, low + 100)
        gradients = {"a": (keys, life.gradients(keys, "a"))}
        life.both(lambda s, given=gradients: (s.update(given), None)[1])
        life.check(life.row_keys("a", keys))
    pool = life.store.executor.tables.by_id[0].pool
    here = pool.level_two.slots.contents()
    rising = np.sort(here.keys[here.dirty])[:60]
    stream = pool.device.runtime.streams[COMPUTE]

    above = pool.slots.contents()
    dirty_above = set(above.keys[above.dirty].tolist())
    with life.store.executor.tables.reading():
        pool.residency.make_resident(pool.device.memory.upload(rising))
        pool.device.work.runtime.submit()
        assert stream.done < stream.given
        at = Place(1, 0)
        while at is not None:
            at, _ = pool.writer.flush_range(at)
    logged = {key for key, _ in life.logged}
    life.check()
    assert not logged & set(rising.tolist())
    sunk = np.array(sorted(logged & dirty_above))
    assert len(sunk) > 0
    keys = sunk & KEY_MASK
    gradients = {"a": (keys, life.gradients(keys, "a"))}
    life.both(lambda s: (s.update(gradients), None)[1])
    life.check(sunk.tolist())
    life.store.flush()
    assert set(sunk.tolist()) <= {key for key, _ in life.logged}
    life.check()
    assert not life.dirty
    life.close()
