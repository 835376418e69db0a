"""Hot sets are pinned whole or not at all, through scans, resizes, drops, restores and openings.

What comes between two pieces of work is decided by the test, ahead of a job for which the engine is
taken (sessions/planner_jobs.py).
"""

import errno
import os
import signal
import threading
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import (
    CapacityError,
    CorruptTableError,
    InvalidArgumentError,
    StoreClosedError,
    TableHeldError,
)
from embstore.hotness.pins import PIECE_ROWS
from embstore.profiles.hotset import HotSet
from tests.conformance.backends import UnsyncedFiles
from tests.conformance.cases import (
    config,
    damage_first_row,
    engine_of,
    generator,
    hits,
    ones,
    refused,
    total,
)
from tests.conformance.hotness.profiles import (
    LARGE_BYTES,
    NARROW,
    ROWS,
    SMALL_BYTES,
    WIDE,
    begun,
    ended,
    fill,
    is_pinned,
    train,
)
from tests.conformance.sessions.planner_jobs import Jobs
from tests.conformance.sessions.training import PATIENCE_S, Plan, pinned_rows, until
from tests.faults.refusing import RefusingFiles

pytestmark = pytest.mark.needs("one_store")


def test_a_hot_set_stays_through_a_scan_and_a_swap_keeps_what_both_have(open_twin):
    twin, rng = open_twin(cache_bytes=64 << 10), generator(605)
    store = twin.store
    for name in "ab":
        twin.create_table(name, **config(rows=4000))
    train(twin, "a", rng)
    size = total(store, "slots") // 4
    one = HotSet({"a": np.arange(size), "b": np.arange(10)}, version=1)
    two = HotSet({"a": np.arange(size // 2, size + size // 2)}, version=2)
    for hot in (one, two):
        facts = store.pin_hot_set(hot)
        assert (facts.version, facts.rows) == (hot.version, hot.row_count)
        assert facts.pinned_rows == hot.row_count
        assert store.pin_hot_set(hot) == facts  # asked for again
        train(twin, "b", rng, calls=60)
        for name, keys in hot.tables.items():
            assert hits(store, lambda n=name, k=keys: store.lookup({n: k})) == len(keys)
    assert store.pin_hot_set(None).pinned_rows == 0
    assert store.hot_set() is None
    store.check_integrity()
    train(twin, "a", rng)


def test_a_hot_set_meets_drop_restore_and_a_smaller_cache(open_twin):
    twin, rng = open_twin(cache_bytes=SMALL_BYTES), generator(606)
    store = twin.store
    for name in "ab":
        twin.create_table(name, **config(rows=4000))
    train(twin, "a", rng)
    twin.checkpoint("one")
    size = total(store, "slots") // 3
    store.pin_hot_set(HotSet({"a": np.arange(size), "b": np.arange(50)}))
    store.resize_cache(SMALL_BYTES // 2)
    assert 0 < store.stats()["frequency"]["hot_set"]["pinned_rows"] <= size + 50
    for change in (lambda: None, partial(twin.drop_table, "b"), partial(twin.restore, "one")):
        change()
        store.check_integrity()
        train(twin, "a", rng)


def test_a_hot_table_is_dropped_restored_and_dropped_again(open_twin):
    """Found by the state machine: the set forgot the table's rows and not its id, with which a
    restore brings the table back."""
    twin = open_twin(a=config(), b=config())
    twin.checkpoint("one")
    twin.store.pin_hot_set(HotSet({"a": np.arange(3), "b": np.arange(5)}))
    twin.drop_table("b")
    twin.restore("one")
    twin.drop_table("b")
    assert list(twin.store.hot_set().tables) == ["a"]
    twin.drop_table("a")
    assert twin.store.hot_set() is None


def test_a_table_that_a_restore_takes_away_leaves_the_set(open_twin):
    """Review: The set went on naming it, and a version 1 was refused for it."""
    twin = open_twin(a=NARROW)
    twin.checkpoint("one")
    twin.create_table("b", **NARROW)
    twin.store.pin_hot_set({"a": [1, 2, 0, 1]})
    assert twin.store.hot_set().tables["a"].tolist() == [0, 1, 2]
    twin.store.pin_hot_set(HotSet({"a": np.arange(4), "b": np.arange(5)}, version=3))
    twin.restore("one")
    assert list(twin.store.hot_set().tables) == ["a"]


@pytest.mark.needs("plain_keys")
def test_a_set_is_checked_also_where_it_is_pinned_again(open_twin):
    """Review: The same set was taken unseen, though its table had fewer rows by then."""
    twin = open_twin(a=config(rows=10))
    twin.checkpoint("ten")
    twin.on("a", "grow", 20)
    hot_set = HotSet({"a": np.array([3, 15])})
    assert twin.store.pin_hot_set(hot_set).pinned_rows == 2
    twin.restore("ten")
    with refused(twin.store, InvalidArgumentError, "[0, 10)", "15"):
        twin.store.pin_hot_set(hot_set)


def test_a_set_of_tables_that_a_crash_took_is_gone(open_twin):
    """Review: An empty set of a high version stayed, and was a later table's of the same id."""
    twin = open_twin()
    twin.checkpoint("empty")
    twin.create_table("a", **NARROW)
    twin.store.pin_hot_set(HotSet({"a": np.arange(5)}, version=7))
    twin.kill()
    assert twin.store.hot_set() is None
    twin.create_table("b", **NARROW)
    twin.reopen()
    assert twin.store.hot_set() is None


# Tables that go while a set is pinned


class Meanwhile(UnsyncedFiles):
    """Does something before the next file is replaced, once."""

    def __init__(self, root):
        super().__init__(root)
        self.act = None

    def replace(self, path, content):
        act, self.act = self.act, None
        if act is not None:
            act()
        super().replace(path, content)


def open_over(backend, open_twin, kind, **given):
    """Return a new store over files of this kind, and the files."""
    made = []

    def files(path):
        made.append(kind(path))
        return made[-1]

    backend._files = files
    return open_twin(**given), made[0]


@pytest.fixture
def meanwhile(backend, open_twin):
    """A store with "a" and "b", and its files, which let something happen while a set is kept."""
    twin, files = open_over(backend, open_twin, Meanwhile, a=NARROW, b=NARROW)
    twin.checkpoint("one")
    return twin, files


@pytest.mark.needs("process")  # else the drop would wait for what waits for it
def test_a_table_is_dropped_while_its_set_is_kept(meanwhile):
    """Review: A KeyError came out of the call that pinned the set."""
    twin, files = meanwhile
    files.act = partial(twin.drop_table, "b")
    twin.store.pin_hot_set(HotSet({"a": np.arange(4), "b": np.arange(5)}))
    assert list(twin.store.hot_set().tables) == ["a"]
    twin.reopen()
    assert list(twin.store.hot_set().tables) == ["a"]


@pytest.mark.needs("process")  # else the drop would wait for what waits for it
def test_a_table_is_dropped_while_a_pin_fails(meanwhile):
    """Review: The set before came back with the table in it, and the refused one was kept."""
    twin, files = meanwhile
    twin.store.pin_hot_set(HotSet({"a": np.arange(4), "b": np.arange(5)}))

    def drop_and_fail():
        twin.drop_table("b")
        raise CapacityError("no room, says the test")

    files.act = drop_and_fail
    with pytest.raises(CapacityError, match="says the test"):
        twin.store.pin_hot_set(HotSet({"a": np.arange(9), "b": np.arange(9)}, version=2))
    assert is_pinned(twin.store, 1, 4)
    twin.reopen()
    until(lambda: is_pinned(twin.store, 1, 4))
    twin.restore("one")
    until(lambda: is_pinned(twin.store, 1, 4))


def test_a_first_set_that_cannot_be_kept_leaves_no_pins(meanwhile):
    """Review: Its rows stayed pinned, as no set was there to be pinned in its place."""
    twin, files = meanwhile

    def fail():
        raise CapacityError("no room, says the test")

    files.act = fail
    with refused(twin.store, CapacityError, "says the test"):
        twin.store.pin_hot_set(HotSet({"a": np.arange(9)}))
    assert twin.store.hot_set() is None
    assert pinned_rows(twin.store) == 0


@pytest.mark.needs("process")
def test_a_hot_table_is_made_anew_while_rows_are_pinned_again(open_twin):
    """Review: A KeyError came out of the call that had taken the pins."""
    twin = open_twin(a=NARROW, b=NARROW)
    twin.store.pin_hot_set(HotSet({"a": np.arange(4), "b": np.arange(5)}))
    pins = engine_of(twin.store).hot_pins
    possible = pins._possible

    def after_another_call(wanted):
        twin.drop_table("b")
        twin.create_table("b", **NARROW)
        return possible(wanted)

    pins._possible = after_another_call
    twin.store.resize_cache(SMALL_BYTES)
    assert is_pinned(twin.store, 1, 4)


# Pools and budgets that change while a set is pinned


def test_a_set_whose_pools_take_slabs_from_each_other_is_refused(open_twin):
    """Review: Each was asked whether it had room, and gave it away when the next one was.
    Its rows were pinned and unpinned for ever then."""
    twin = open_twin(cache_bytes=LARGE_BYTES)
    for dim in (8, 16, 32):
        twin.create_table(f"t{dim}", **config(dim=dim, rows=ROWS))
    fill(twin, "t8")
    before = HotSet({"t8": np.arange(500, 700), "t16": np.arange(40)})
    assert twin.store.pin_hot_set(before).pinned_rows == 240
    most = 3 * twin.store.stats()["cache"]["pools"][0]["slots"] // 4
    sizes = {"t8": most, "t16": most // 12, "t32": most // 18}  # each could be had alone
    hot_set = HotSet({name: np.arange(count) for name, count in sizes.items()}, version=2)
    with pytest.raises(CapacityError, match=f"{most} rows .* three quarters .* dim 8"):
        ended(lambda: twin.store.pin_hot_set(hot_set))
    until(lambda: is_pinned(twin.store, 1, 240))
    for name, keys in before.tables.items():
        fill(twin, name)
        assert hits(twin.store, partial(twin.store.table(name).lookup, keys)) == len(keys)


@pytest.mark.parametrize(("first", "second"), [(1500, 2400), (1500, 9000), (4000, 9000)])
def test_the_cache_may_become_smaller_while_a_set_is_pinned(open_twin, first, second):
    """Review: Rows that did not fit any more were tried again and again, and neither call ended."""
    twin = open_twin(cache_bytes=2 * LARGE_BYTES, a=NARROW)
    fill(twin, "a")
    twin.store.pin_hot_set(HotSet({"a": np.arange(first)}))
    resizing = []
    engine = engine_of(twin.store)

    def shrink():
        if not resizing and pinned_rows(twin.store) > first:
            resizing.append(begun(lambda: twin.store.resize_cache(SMALL_BYTES)))
            until(lambda: engine.tables.arena.budget_bytes == SMALL_BYTES)

    Jobs(twin.store).before = shrink
    keys = np.arange(ROWS - second, ROWS)
    with suppress(CapacityError):
        ended(lambda: twin.store.pin_hot_set(HotSet({"a": keys}, version=2)))
    resizing[0].result(PATIENCE_S)
    most = 3 * total(twin.store, "slots") // 4
    left = (2, second) if second <= most else (1, min(first, most))
    until(lambda: is_pinned(twin.store, *left))
    twin.store.check_integrity()


# Forks


@pytest.mark.needs("process")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12, with threads
def test_a_fork_made_while_a_call_runs_is_refused_and_can_close(open_table):
    """Review: It waited for the engine, which was held by a thread that forks do not have."""
    twin, table = open_table(cache_bytes=LARGE_BYTES, a=NARROW)
    twin.store.pin_hot_set(HotSet({"a": np.arange(100)}))
    with locked_elsewhere(twin.store.executor.tables.frame._lock):
        child = os.fork()
        if child == 0:
            leave(twin.store, table)
        assert status_of(child) == 0
    assert is_pinned(twin.store, 1, 100)


def status_of(child):
    """Return the status that a child ends with; one that does not end is killed."""
    ends = []

    def has_ended():
        ends.append(os.waitpid(child, os.WNOHANG))
        return ends[-1][0] == child

    try:
        until(has_ended)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return ends[-1][1]


@contextmanager
def locked_elsewhere(lock):
    """Have another thread own a lock."""
    is_locked, go = threading.Event(), threading.Event()

    def own():
        with lock:
            is_locked.set()
            assert go.wait(2 * PATIENCE_S)

    done = begun(own)
    assert is_locked.wait(PATIENCE_S)
    try:
        yield
    finally:
        go.set()
        done.result(PATIENCE_S)


def leave(store, table):
    """In a forked child: see every call refused, close, and end."""
    calls = [
        lambda: table.lookup([1]),
        lambda: store.table("a"),
        store.tables,
        store.stats,
        store.export_profile,
        store.warm_cache,
        lambda: store.pin_hot_set(None),
        lambda: store.drop_table("a"),
        lambda: store.resize_cache(SMALL_BYTES),
    ]
    code = 1
    try:
        for call in calls:
            with pytest.raises(StoreClosedError, match="fork"):
                call()
        store.close()
        code = 0
    finally:
        os._exit(code)


# Openings, and what is pinned when a swap fails


def test_a_set_over_two_layouts_is_whole_again_when_reopened(open_twin):
    """Review: The first pool took the slabs for the rows of all tables, and the second had none."""
    twin, size = open_twin(cache_bytes=2 * LARGE_BYTES), 3000
    for name, shape in (("a", NARROW), ("b", WIDE)):
        twin.create_table(name, **shape)
    hot_set = HotSet({"a": np.arange(size), "b": np.arange(size)})
    assert twin.store.pin_hot_set(hot_set).pinned_rows == 2 * size
    twin.reopen()
    until(lambda: is_pinned(twin.store, 1, 2 * size))
    twin.store.resize_cache(4 * LARGE_BYTES)
    assert is_pinned(twin.store, 1, 2 * size)
    for name in "ab":
        fill(twin, name)
        assert hits(twin.store, partial(twin.store.table(name).lookup, np.arange(size))) == size


@pytest.mark.parametrize("short_of", ["no room for log", "log_rows_max"])
def test_a_swap_that_finds_no_room_in_the_log_leaves_the_set_before(backend, open_twin, short_of):
    """Reviews: Half of the new set was pinned and half of the one before, for ever; or the
    new set was in the directory by then, and the one before could not be written again."""
    files = RefusingFiles(backend.path())
    backend._files = lambda path: files
    limits = Limits(log_rows_max=PIECE_ROWS * 2) if short_of == "log_rows_max" else None
    twin = open_twin(cache_bytes=LARGE_BYTES, limits=limits, host_cache_bytes=0)
    store, table = twin.store, twin.create_table("a", **NARROW)
    table.lookup(np.arange(ROWS))
    count, kept = total(store, "slots"), total(store, "slots") // 3  # so that both have room
    store.pin_hot_set(HotSet({"a": np.arange(kept)}))
    for low in range(kept, count, 500 if limits else count):
        keys = np.arange(low, min(low + 500, count) if limits else count)
        twin.on("a", "update", keys, ones(len(keys), 8))
    if limits is None:
        verbs = ("create", "write", "allocate", "rename")
        files.refuse(verbs, 1, errno.ENOSPC, lasting=True)
    with pytest.raises(CapacityError, match=short_of):
        ended(lambda: store.pin_hot_set(HotSet({"a": np.arange(ROWS - kept, ROWS)}, version=2)))
    assert store.hot_set().version == 1
    assert is_pinned(store, 1, kept) and pinned_rows(store) == kept
    files.relent()
    assert hits(store, lambda: table.lookup(np.arange(kept))) == kept
    store.resize_cache(LARGE_BYTES)
    assert is_pinned(store, 1, kept)
    twin.reopen()
    until(lambda: is_pinned(twin.store, 1, kept))


@pytest.mark.parametrize("verb", ["create", "write", "rename"])
def test_a_set_that_the_disk_has_no_room_for_leaves_the_set_before(backend, open_twin, verb):
    """Review: The new set was pinned, and the one before came back with the next opening."""
    twin, files = open_over(backend, open_twin, RefusingFiles, cache_bytes=LARGE_BYTES, a=NARROW)
    twin.store.pin_hot_set(HotSet({"a": np.arange(10)}))
    files.refuse((verb,), 1, errno.ENOSPC)
    with refused(twin.store, CapacityError, "HOTSET"):
        twin.store.pin_hot_set(HotSet({"a": np.arange(50, 70)}, version=2))
    assert twin.store.hot_set().version == 1
    assert is_pinned(twin.store, 1, 10)
    twin.reopen()
    assert twin.store.hot_set().tables["a"].tolist() == [*range(10)]
    until(lambda: is_pinned(twin.store, 1, 10))


@pytest.mark.needs("plain_keys")
def test_a_row_that_cannot_be_read_keeps_only_itself_out(backend):
    """Review: Nothing of the set was pinned that came after it, in silence."""
    count, shape = 2 * PIECE_ROWS + 100, config(dim=64, rows=ROWS)
    with backend.open_store(cache_bytes=8 * LARGE_BYTES) as store:
        store.create_table("a", **shape).assign(np.arange(count), ones(count, 64))
        store.create_table("b", **shape)
        store.pin_hot_set(HotSet({"a": np.arange(count), "b": np.arange(40)}))
    bad = damage_first_row(sorted(backend.path().rglob("*.log"))[0])
    store = backend.open_store(cache_bytes=8 * LARGE_BYTES)
    until(lambda: is_pinned(store, 1, count - 1 + 40))
    others = np.delete(np.arange(count), bad)
    assert hits(store, lambda: store.table("a").lookup(others)) == count - 1
    with pytest.raises(CorruptTableError):
        store.table("a").lookup([bad])
    with pytest.raises(CorruptTableError):  # a set that is asked for is pinned whole
        store.pin_hot_set(HotSet({"a": np.arange(PIECE_ROWS)}, version=2))
    assert store.hot_set().version == 1
    assert is_pinned(store, 1, count - 1 + 40)
    store.check_integrity()


# Whose rows they are


def test_a_table_made_anew_under_a_name_has_no_hot_rows(open_twin):
    """Review: The set was known by names: another table's rows were pinned in place of
    those dropped."""
    twin = open_twin(cache_bytes=LARGE_BYTES, **dict.fromkeys("ab", NARROW))
    twin.store.pin_hot_set(HotSet({"a": np.arange(2000), "b": np.arange(30)}, version=4))
    twin.drop_table("a")
    twin.create_table("a", **WIDE)
    for change in (
        lambda: None,
        lambda: twin.store.resize_cache(2 * LARGE_BYTES),
        twin.reopen,
        lambda: twin.store.resize_cache(LARGE_BYTES),
    ):
        change()
        until(lambda: is_pinned(twin.store, 4, 30))
        assert [*twin.store.hot_set().tables] == ["b"]
        assert pinned_rows(twin.store) == 30
    twin.drop_table("b")
    assert twin.store.hot_set() is None
    twin.reopen()
    assert is_pinned(twin.store, 0, 0)


def test_a_drop_that_is_refused_leaves_the_pins(open_table):
    """Review: Pins are taken when nothing can refuse any more; they were before the
    storage was asked."""
    twin, table = open_table(cache_bytes=LARGE_BYTES, a=NARROW)
    fill(twin, "a")
    keys = np.arange(3000, 5000)
    twin.store.pin_hot_set(HotSet({"a": keys}))
    member = twin.store.sessions.join(Plan(("a",)).open(twin.store).name, 0).member
    with refused(twin.store, TableHeldError, "'a'"):
        twin.store.drop_table("a")
    assert is_pinned(twin.store, 1, len(keys))
    table.lookup(np.arange(ROWS))
    assert hits(twin.store, lambda: table.lookup(keys)) == len(keys)
    twin.store.sessions.close(member)
