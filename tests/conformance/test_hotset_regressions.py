"""Defects of hot sets, warming, forks and ranks that a review has shown.

Each test is named for what holds now and says what went wrong. What comes between two pieces of
work is decided by the test: by what it does when progress is told, when a profile has been read, or
ahead of a job for which the engine is taken (planner_jobs.py).
"""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

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
from embstore.frequency.hotset import HotSet
from embstore.hotpins import PIECE_ROWS
from tests.conformance.cases import config, generator, normal, ones, refused
from tests.conformance.planner_jobs import Jobs
from tests.conformance.sessions import (
    PATIENCE_S,
    Plan,
    Rank,
    apply_step,
    facts_of,
    finish,
    pinned_rows,
    step_of,
    until,
)
from tests.conformance.test_popularity import falling, hits, profile, slots
from tests.conformance.twin import Twin
from tests.faults.refusing import RefusingFiles

Open = Callable[..., Twin]
ROWS = 20_000
NARROW, WIDE = config(dim=8, rows=ROWS), config(dim=16, rows=ROWS)
SMALL_BYTES, LARGE_BYTES = 256 << 10, 1 << 20
"""Of caches: room for some thousand rows, of which a hot set takes a few pieces, and four times
that."""


def ended(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or raise what it raises; one that does not end is an error."""
    return begun(call).result(PATIENCE_S)


def begun(call: Callable[[], Any]) -> "Future[Any]":
    """Begin a call in a thread of its own."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as exc:
            done.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return done


def inner(store: Any) -> Any:
    """Return the store itself, of which a client's is the other end."""
    return store.server.store if hasattr(store, "server") else store


def hot_facts(store: Any) -> dict[str, Any]:
    return dict(store.stats()["frequency"]["hot_set"])


def is_pinned(store: Any, version: int, rows: int) -> bool:
    """Say whether so many rows are pinned, and are of the set of that version."""
    facts = hot_facts(store)
    return (facts["version"], facts["pinned_rows"]) == (version, rows)


def fill(twin: Twin, name: str) -> None:
    """Have a table's pool take the slabs that there are, and give some rows other bits."""
    twin.store.table(name).lookup(np.arange(ROWS))
    rows = twin.reference.table(name).config.dim
    twin.on(name, "update", np.arange(0, ROWS, 37), ones(-(-ROWS // 37), rows))


# Tables that go while the cache is warmed


def drop_first(twin: Twin) -> None:
    twin.drop_table("a")


def drop_second(twin: Twin) -> None:
    twin.drop_table("b")


def restore(twin: Twin) -> None:
    twin.restore("one")


GOING = pytest.mark.parametrize("go", [drop_first, drop_second, restore])


@pytest.fixture
def profiled(open_twin: Open) -> Twin:
    """Two tables, each of a pool of its own, all of whose rows have a profile."""
    twin, rng = open_twin(cache_bytes=LARGE_BYTES), generator(1001)
    for name, shape in (("a", NARROW), ("b", WIDE)):
        twin.create_table(name, **shape)
        twin.on(name, "assign", np.arange(3000), normal(rng, 3000, shape["dim"]))
    twin.store.import_profile(profile(a=falling(ROWS), b=falling(ROWS)))
    twin.checkpoint("one")
    return twin


@contextmanager
def once_a_profile_is_read(store: Any, act: Callable[[], None]) -> Iterator[None]:
    """Do something when the next profile has been read; nobody has the engine then."""
    kept = inner(store)._engine.frequencies.kept
    read = kept.profile

    def read_and_act(kind: str, table_id: int) -> Any:
        kept.profile = read
        found = read(kind, table_id)
        act()
        return found

    kept.profile = read_and_act
    try:
        yield
    finally:
        kept.profile = read


def check_goes_on(twin: Twin) -> None:
    """Check that what is left is warmed and trained, within the cache's bytes."""
    cache = twin.store.stats()["cache"]
    assert cache["memory_bytes"] <= cache["budget_bytes"]
    assert ended(lambda: twin.store.warm_cache(0.5)) > 0
    for name in twin.store.tables():
        ended(partial(fill, twin, name))
    twin.store.check_integrity()


@GOING
def test_tables_may_go_while_rows_to_warm_are_chosen(
    profiled: Twin, go: Callable[[Twin], None]
) -> None:
    """A pool that was closed by then grew for ever, with the memory of nobody, or was written to
    when it had no more."""
    with once_a_profile_is_read(profiled.store, lambda: go(profiled)):
        ended(lambda: profiled.store.warm_cache(0.7))
    check_goes_on(profiled)


@GOING
def test_tables_may_go_while_rows_are_warmed(profiled: Twin, go: Callable[[Twin], None]) -> None:
    """As while they are chosen: of what was chosen, the tables that are left are warmed."""
    told: list[int] = []

    def progress(done: int, of: int) -> None:
        if not told:
            go(profiled)
        told.append(of)

    ended(lambda: profiled.store.warm_cache(0.7, progress=progress))
    assert told
    check_goes_on(profiled)


# Pools and budgets that change while a set is pinned


def test_a_set_whose_pools_take_slabs_from_each_other_is_refused(open_twin: Open) -> None:
    """Each was asked whether it had room, and gave it away when the next one was. Its rows were
    pinned and unpinned for ever then."""
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
def test_the_cache_may_become_smaller_while_a_set_is_pinned(
    open_twin: Open, first: int, second: int
) -> None:
    """Rows that did not fit any more were tried again and again, and neither call ended."""
    twin = open_twin(cache_bytes=LARGE_BYTES)
    twin.create_table("a", **NARROW)
    fill(twin, "a")
    twin.store.pin_hot_set(HotSet({"a": np.arange(first)}))
    resizing: list[Future[Any]] = []
    engine = inner(twin.store)._engine

    def shrink() -> None:
        if not resizing and pinned_rows(twin.store) > first:
            resizing.append(begun(lambda: twin.store.resize_cache(SMALL_BYTES)))
            until(lambda: engine.arena.budget_bytes == SMALL_BYTES)

    Jobs(inner(twin.store)).before = shrink
    keys = np.arange(ROWS - second, ROWS)
    with suppress(CapacityError):
        ended(lambda: twin.store.pin_hot_set(HotSet({"a": keys}, version=2)))
    resizing[0].result(PATIENCE_S)
    most = 3 * slots(twin.store) // 4
    left = (2, second) if second <= most else (1, min(first, most))
    until(lambda: is_pinned(twin.store, *left))
    twin.store.check_integrity()


# Closing, and forks


def test_close_when_progress_is_told_ends(open_twin: Open) -> None:
    """Opening's warm-up waited for the one that told its progress, which waited for it to end."""
    twin = open_twin(cache_bytes=LARGE_BYTES)
    twin.create_table("a", **NARROW)
    twin.store.import_profile(profile(a=falling(ROWS)))

    def close(done: int, of: int) -> None:
        inner(twin.store)._warming.start(0.5)  # as opening does
        twin.store.close()

    with suppress(StoreClosedError):
        ended(lambda: twin.store.warm_cache(0.7, progress=close))
    twin.reopen()


@pytest.mark.needs("process")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12, with threads
def test_a_fork_made_while_a_call_runs_is_told_and_can_close(open_twin: Open) -> None:
    """It waited for the engine, which was held by a thread that forks do not have."""
    twin = open_twin(cache_bytes=LARGE_BYTES)
    table = twin.create_table("a", **NARROW)
    twin.store.import_profile(profile(a=falling(ROWS)))
    twin.store.pin_hot_set(HotSet({"a": np.arange(100)}))
    with held(twin.store._engine._lock):
        child = os.fork()
        if child == 0:
            leave(twin.store, table)
        status = end_of(child)
    assert status == 0
    assert is_pinned(twin.store, 1, 100)


def end_of(child: int) -> int:
    """Return the status that a child ends with; one that does not end is killed."""
    ends: list[tuple[int, int]] = []

    def has_ended() -> bool:
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
def held(lock: Any) -> Iterator[None]:
    """Have another thread hold a lock."""
    is_held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            assert go.wait(2 * PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(PATIENCE_S)
    try:
        yield
    finally:
        go.set()
        holder.join()


def leave(store: Any, table: Any) -> None:
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


# What is there again when a store is opened


def test_a_set_over_two_layouts_is_whole_again_when_reopened(open_twin: Open) -> None:
    """The first pool took the slabs for the rows of all tables, and the second had none."""
    twin = open_twin(cache_bytes=LARGE_BYTES)
    for name, shape in (("a", NARROW), ("b", WIDE)):
        twin.create_table(name, **shape)
    size = 3000
    hot_set = HotSet({"a": np.arange(size), "b": np.arange(size)})
    assert twin.store.pin_hot_set(hot_set).pinned_rows == 2 * size
    twin.reopen()
    until(lambda: is_pinned(twin.store, 1, 2 * size))
    twin.store.resize_cache(2 * LARGE_BYTES)
    assert is_pinned(twin.store, 1, 2 * size)
    for name in "ab":
        fill(twin, name)
        assert hits(twin.store, partial(twin.store.table(name).lookup, np.arange(size))) == size


@pytest.mark.needs("limits")
def test_a_swap_that_finds_no_room_in_the_log_leaves_the_set_before(open_twin: Open) -> None:
    """Half of the new set was pinned and half of the one before, for ever."""
    twin = open_twin(cache_bytes=LARGE_BYTES, limits=Limits(log_rows_max=PIECE_ROWS * 2))
    store = twin.store
    twin.create_table("a", **NARROW)
    store.table("a").lookup(np.arange(ROWS))
    count, kept = slots(store), slots(store) // 2
    store.pin_hot_set(HotSet({"a": np.arange(kept)}))
    for low in range(kept, count, 500):
        keys = np.arange(low, min(low + 500, count))
        twin.on("a", "update", keys, ones(len(keys), 8))
    with pytest.raises(CapacityError, match="log_rows_max"):
        ended(lambda: store.pin_hot_set(HotSet({"a": np.arange(ROWS - kept, ROWS)}, version=2)))
    assert store.hot_set().version == 1
    assert is_pinned(store, 1, kept)
    assert pinned_rows(store) == kept
    assert hits(store, lambda: store.table("a").lookup(np.arange(kept))) == kept
    twin.reopen()
    until(lambda: is_pinned(twin.store, 1, kept))


@pytest.mark.parametrize("verb", ["create", "write", "rename"])
def test_a_set_that_the_disk_has_no_room_for_leaves_the_set_before(
    backend: Any, open_twin: Open, verb: str
) -> None:
    """The new set was pinned, and the one before came back with the next opening."""
    made: list[RefusingFiles] = []

    def files(path: Path) -> RefusingFiles:
        made.append(RefusingFiles(path))
        return made[-1]

    backend._files = files
    twin = open_twin(cache_bytes=LARGE_BYTES)
    twin.create_table("a", **NARROW)
    twin.store.pin_hot_set(HotSet({"a": np.arange(10)}))
    made[0].refuse((verb,), 1, errno.ENOSPC)
    with refused(twin.store, CapacityError, "HOTSET"):
        twin.store.pin_hot_set(HotSet({"a": np.arange(50, 70)}, version=2))
    assert twin.store.hot_set().version == 1
    assert is_pinned(twin.store, 1, 10)
    twin.reopen()
    assert twin.store.hot_set().tables["a"].tolist() == [*range(10)]
    until(lambda: is_pinned(twin.store, 1, 10))


def test_a_swap_on_a_disk_that_stays_full_leaves_the_set_before(
    backend: Any, open_twin: Open
) -> None:
    """The new set was in the directory by then, and the one before could not be written again."""
    files = RefusingFiles(backend.path())
    backend._files = lambda path: files
    twin = open_twin(cache_bytes=LARGE_BYTES)
    twin.create_table("a", **NARROW)
    twin.store.table("a").lookup(np.arange(ROWS))
    count, kept = slots(twin.store), slots(twin.store) // 2
    twin.store.pin_hot_set(HotSet({"a": np.arange(kept)}))
    twin.on("a", "update", np.arange(kept, count), ones(count - kept, 8))
    files.refuse(("create", "write", "allocate", "rename"), 1, errno.ENOSPC, lasting=True)
    with pytest.raises(CapacityError, match="no room for log"):
        ended(lambda: twin.store.pin_hot_set(HotSet({"a": np.arange(ROWS - kept, ROWS)}, 2)))
    assert twin.store.hot_set().version == 1
    assert is_pinned(twin.store, 1, kept)
    files.relent()
    twin.store.resize_cache(LARGE_BYTES)
    assert is_pinned(twin.store, 1, kept)


@pytest.mark.needs("directory")
def test_a_row_that_cannot_be_read_keeps_only_itself_out(backend: Any) -> None:
    """Nothing of the set was pinned that came after it, and nobody was told."""
    count, shape = 2 * PIECE_ROWS + 100, config(dim=64, rows=ROWS)
    with backend.open_store(cache_bytes=8 * LARGE_BYTES) as store:
        store.create_table("a", **shape).assign(np.arange(count), ones(count, 64))
        store.create_table("b", **shape)
        store.pin_hot_set(HotSet({"a": np.arange(count), "b": np.arange(40)}))
    bad = damage_first_row(backend.path())
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


def damage_first_row(path: Path) -> int:
    """Flip a bit in the first record of the log; return its key."""
    file = sorted(path.rglob("*.log"))[0]
    content = bytearray(file.read_bytes())
    content[4096 + 16 + 21] ^= 4
    file.write_bytes(content)
    return int.from_bytes(content[4096 + 8 : 4096 + 12], "little")


# Ranks beside a session that knows its next uses


def test_rows_used_by_others_beside_a_window_session_keep_their_levels(open_twin: Open) -> None:
    """Their rank by next use had taken the place of the level, and a use ended it: what had been
    among the hottest left before rows that no profile knew."""
    twin = open_twin(cache_bytes=SMALL_BYTES, policy="rank")
    store = twin.store
    table = twin.create_table("a", **NARROW)
    table.lookup(np.arange(ROWS))
    count, hot, used = slots(store), np.arange(200), np.arange(100)
    store.import_profile(profile(a=np.where(np.arange(ROWS) < len(hot), 1000, 0)))
    unpinned = count // 16
    many = np.arange(1000, 1000 + count - unpinned - len(hot) // 2)  # with the hot ones too many
    steps = [
        step_of(generator(1002), n, [{"a": keys}], {"a": NARROW}, verb="release")
        for n, keys in enumerate((hot, many, hot), 1)
    ]
    rank = Rank(store, Plan(("a",), planner="window"), 0)
    rank.announce(steps)
    for step in steps:
        store.sessions.lookup_step(rank.member, step.number, timeout_s=PATIENCE_S)
        if step.number == 2:
            check_stay_beside_others(store, used, calls=10, size=unpinned - len(hot) // 2 - 10)
        finish(store, rank.member, step)
        apply_step(twin.reference, step)
        until(partial(is_settled, store, step.number))
    rank.close()


def is_settled(store: Any, finished: int) -> bool:
    """Say whether the next step is planned, and the one after it waits for room."""
    facts = facts_of(store)
    return finished != 1 or (facts["planned_step"] == 2 and facts["held_back"])


def check_stay_beside_others(store: Any, used: Any, *, calls: int, size: int) -> None:
    """Use rows, then many of which no profile knows; the first are still there."""
    table = store.table("a")
    assert hits(store, lambda: table.lookup(used)) == len(used)
    for low in range(10_000, 10_000 + calls * size, size):
        table.lookup(np.arange(low, low + size))
    assert hits(store, lambda: table.lookup(used)) == len(used)


# Small shares


def test_a_share_of_less_than_a_row_warms_nothing(
    open_twin: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy's partition by a place that is not there was a traceback, of a thread at opening."""
    errors: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    twin = open_twin(cache_bytes=LARGE_BYTES)
    twin.create_table("a", **NARROW)
    twin.store.import_profile(profile(a=[0, 3, 2]))
    resident = twin.store.stats()["cache"]["pools"][0]["resident_rows"]
    assert ended(lambda: twin.store.warm_cache(1e-9)) == 0
    twin.reopen(warm_up=1e-9)
    assert twin.store.stats()["cache"]["pools"][0]["resident_rows"] == resident == 0
    twin.reopen(warm_up=0.0)  # closing waits for the warm-up's thread
    assert not errors


# What is no hot set, and whose it is


@pytest.mark.parametrize("given", [{"a": np.arange(3)}, "a", b"", 3])
def test_what_is_no_hot_set_is_an_invalid_argument(open_twin: Open, given: Any) -> None:
    """It was an AttributeError."""
    twin = open_twin()
    twin.create_table("a", **NARROW)
    with refused(twin.store, InvalidArgumentError, "HotSet", type(given).__name__):
        twin.store.pin_hot_set(given)


def test_a_table_made_anew_under_a_name_has_no_hot_rows(open_twin: Open) -> None:
    """The set was known by names: another table's rows were pinned in place of those dropped."""
    twin = open_twin(cache_bytes=LARGE_BYTES)
    for name in "ab":
        twin.create_table(name, **NARROW)
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


def test_a_drop_that_is_refused_leaves_the_pins(open_twin: Open) -> None:
    """Pins are taken when nothing can refuse any more; they were before the storage was asked."""
    twin = open_twin(cache_bytes=LARGE_BYTES)
    twin.create_table("a", **NARROW)
    fill(twin, "a")
    keys = np.arange(3000, 5000)
    twin.store.pin_hot_set(HotSet({"a": keys}))
    member = twin.store.sessions.join(Plan(("a",)).open(twin.store).name, 0).member
    with refused(twin.store, TableHeldError, "'a'"):
        twin.store.drop_table("a")
    assert is_pinned(twin.store, 1, len(keys))
    twin.store.table("a").lookup(np.arange(ROWS))
    assert hits(twin.store, lambda: twin.store.table("a").lookup(keys)) == len(keys)
    twin.store.sessions.close(member)
