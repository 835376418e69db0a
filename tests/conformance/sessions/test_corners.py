"""Corners of look-ahead sessions: windows that fill the cache, steps larger than it, steps of
nothing, and what goes on beside a session."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from tests.conformance.cases import OPTIMIZERS, assert_same, config, generator, pool_stats
from tests.conformance.sessions.training import (
    Plan,
    Rank,
    Step,
    assert_always_hit,
    assert_nothing_pinned,
    await_planned,
    expect,
    facts_of,
    finish,
    random_trace,
    step_of,
    steps_of,
    train,
    until,
    written,
)
from tests.conformance.traces import values

TABLE = config(dim=30, rows=4000)
TABLES = dict.fromkeys("ab", TABLE)
SMALL = 64 << 10
"""Room for a few hundred rows of TABLE."""
PLANNERS = pytest.mark.parametrize("planner", ["per_step", "group:4", "window"])


def slots(store):
    """Return how many slots the only pool has when it has taken all that the budget allows."""
    store.table("a").lookup(np.arange(TABLE["rows"]))
    return int(pool_stats(store)["slots"])


@contextmanager
def looking_up(store, table, wanted):
    """Look up random rows of a table all the while, and compare them."""
    stop, found = threading.Event(), []

    def look():
        rng = np.random.default_rng(7)
        while not stop.is_set():
            keys = rng.integers(0, len(wanted), 40)
            assert_same(store.table(table).lookup(keys), wanted[keys])
            found.append(len(keys))

    with ThreadPoolExecutor(1) as pool:
        looker = pool.submit(look)
        try:
            yield
        finally:
            stop.set()
        looker.result()
    assert found


def trained(twin, plan, steps):
    """Train on a trace, and see that a step is a command, in order."""
    first = twin.reference.command_number
    facts = train(twin.store, plan, steps, expect(twin.reference, steps))
    assert twin.store.command == first + len(steps)
    twin.check()
    return facts


@PLANNERS
def test_whole_cache_pinned_by_the_window_with_plain_lookups_beside_it(open_twin, planner):
    """The rows of all announced steps together are as many as there are slots."""
    twin = written(open_twin(cache_bytes=SMALL, **TABLES), generator(301), *TABLES)
    count = slots(twin.store) // 8
    keys = generator(302).permutation(TABLE["rows"])[: 24 * count].reshape(24, count)
    plan = Plan(("a",), planner=planner, lookahead=8)
    wanted = twin.reference.table("b").lookup(np.arange(300))
    with looking_up(twin.store, "b", wanted):
        facts = trained(twin, plan, steps_of(303, TABLES, keys))
    assert_always_hit(facts)
    assert_nothing_pinned(twin.store, "a")


def test_window_larger_than_the_cache_is_held_back_and_never_misses(open_twin):
    """Each step fits, the window does not: planning waits until pins are free again."""
    twin = written(open_twin(cache_bytes=SMALL, a=TABLE), generator(304), "a")
    count = slots(twin.store) // 3
    rng = generator(305)
    keys = [rng.permutation(TABLE["rows"])[:count] for _ in range(12)]
    steps = steps_of(306, TABLES, keys)
    answers = expect(twin.reference, steps)
    plan = Plan(("a",), planner="window", lookahead=12)
    rank = Rank(twin.store, plan, 0)
    rank.announce(steps)
    until(lambda: facts_of(twin.store)["held_back"])
    rank.train(steps, answers)
    facts = facts_of(twin.store)
    rank.close()
    assert_always_hit(facts)
    assert facts["held_back_s"] > 0
    assert_nothing_pinned(twin.store, "a")


@pytest.mark.parametrize("cache_bytes", [SMALL, 4 << 20])
def test_two_sessions_on_one_pool(open_twin, cache_bytes):
    twin = written(open_twin(cache_bytes=cache_bytes, **TABLES), generator(307), *TABLES)
    first = twin.reference.command_number
    plans = {n: Plan((n,), name=f"run of {n}", lookahead=16, seed=ord(n)) for n in "ab"}
    traces = {}
    for name in "ab":
        steps = random_trace(generator(ord(name)), {name: TABLE}, 30, draws_max=100)
        traces[name] = steps, expect(twin.reference, steps)
    # The reference counted one trace after the other; of the other table, t stood still meanwhile.
    with ThreadPoolExecutor(2) as pool:
        facts = list(pool.map(lambda n: train(twin.store, plans[n], *traces[n]), "ab"))
    assert twin.store.command == first + 60
    twin.check()
    for found in facts:
        if cache_bytes > SMALL:
            assert_always_hit(found)
        assert found["steps_in_parts"] or found["lookup_hits"] == found["lookup_keys"]


@PLANNERS
@pytest.mark.needs("one_store")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_step_larger_than_the_cache(open_twin, planner, optimizer):
    twin = open_twin(cache_bytes=SMALL)
    table = TABLE | {"optimizer": OPTIMIZERS[optimizer]}
    twin.create_table("a", **table)
    rng = generator(308)
    sizes = (20, 900, 30, 900, 900, 10)
    keys = [rng.permutation(TABLE["rows"])[:n] for n in sizes]
    facts = trained(twin, Plan(("a",), planner=planner), steps_of(309, TABLES, keys))
    assert facts["steps_in_parts"] == 3
    assert_nothing_pinned(twin.store, "a")


@PLANNERS
def test_rows_that_a_step_writes_are_read_by_the_next_though_collected_before(open_twin, planner):
    """Every step has the same rows, collected when none of them was written."""
    twin = written(open_twin(cache_bytes=SMALL, a=TABLE), generator(322), "a")
    steps = steps_of(323, TABLES, [generator(324).permutation(4000)[:80]] * 8)
    rank = Rank(twin.store, Plan(("a",), planner=planner), 0)
    rank.announce(steps)
    await_planned(twin.store, len(steps))
    rank.train(steps, expect(twin.reference, steps))
    assert_always_hit(facts_of(twin.store))
    rank.close()


@PLANNERS
def test_300_deep_window_of_tiny_steps(open_twin, planner):
    twin = written(open_twin(cache_bytes=SMALL, a=TABLE), generator(316), "a")
    rng = generator(317)
    keys = [rng.permutation(TABLE["rows"])[: rng.integers(1, 4)] for _ in range(330)]
    steps = steps_of(318, TABLES, keys)
    rank = Rank(twin.store, Plan(("a",), planner=planner, lookahead=300), 0)
    rank.announce(steps[:300])
    rank.train(steps, expect(twin.reference, steps))
    facts = facts_of(twin.store)
    rank.close()
    assert facts["announced_step"] == facts["last_step"] == 330
    assert facts["steps_in_parts"] or facts["lookup_hits"] == facts["lookup_keys"]


@PLANNERS
def test_steps_and_tables_without_keys(open_twin, planner):
    """A step of no table, a table of no key (its t grows), a rank that has nothing."""
    twin = open_twin()
    tables = {"a": TABLE, "b": TABLE}
    for name in tables:
        twin.create_table(name, **TABLE)
    rng, some, none = generator(319), [3, 1, 2], np.empty(0, np.int64)
    ranks = [
        [{}, {}],
        [{"a": none, "b": none}, {}],
        [{"a": some}, {"b": some}],
        [{"a": none}, {"a": some, "b": none}],
        [{}, {"a": some}],
        [{}, {}],
    ]
    steps = [step_of(rng, n, keys, TABLES) for n, keys in enumerate(ranks, 1)]
    trained(twin, Plan(("a", "b"), planner=planner, ranks=2, lookahead=3), steps)
    assert {n: twin.store.table(n).t for n in TABLES} == {"a": 4, "b": 3}


def test_rows_are_written_to_the_callers_arrays(open_twin):
    twin = open_twin(a=TABLE)
    (step,) = steps_of(325, TABLES, [[5, 4, 9]])
    (answer,) = expect(twin.reference, [step])
    rank = Rank(twin.store, Plan(("a",)), 0)
    rank.announce([step])
    out = {"a": np.empty((3, TABLE["dim"]), np.float32)}
    found = twin.store.sessions.lookup_step(rank.member, 1, out=out, timeout_s=300)
    assert found["a"] is out["a"]
    assert_same(out["a"], answer.rows[0]["a"])
    finish(twin.store, rank.member, step)
    rank.close()


def test_plain_lookups_of_the_sessions_own_table(open_twin):
    """Others read a held table; they see whole steps."""
    twin = written(open_twin(cache_bytes=SMALL, a=TABLE), generator(326), "a")
    keys = np.arange(60)
    twin.on("a", "assign", keys, np.zeros((60, 30), np.float32))
    ones = -np.ones((60, 30), np.float32)
    steps = [
        Step(n, ({"a": keys},), ({"a": ones},), options={"learning_rate": 1.0})
        for n in range(1, 31)
    ]
    answers, stop, seen = expect(twin.reference, steps), threading.Event(), set()

    def look():
        while not stop.is_set():
            found = np.unique(twin.store.table("a").lookup(keys))
            assert len(found) == 1
            seen.add(float(found[0]))

    with ThreadPoolExecutor(1) as pool:
        looker = pool.submit(look)
        train(twin.store, Plan(("a",)), steps, answers)
        stop.set()
        looker.result()
    assert seen <= {float(n) for n in range(31)}


def test_shared_session_reads_what_others_write(open_twin):
    """Between two steps another writer changes rows that the window has collected already."""
    twin = written(open_twin(cache_bytes=SMALL, a=TABLE), generator(327), "a")
    rng = generator(328)
    hot = rng.permutation(4000)[:70]
    steps = steps_of(329, TABLES, [hot] * 10)
    plan = Plan(("a",), shared=True)
    rank = Rank(twin.store, plan, 0)
    for place, step in enumerate(steps):
        (answer,) = expect(twin.reference, [step])
        rank.train([step], [answer])
        if place == 0:
            rank.announce(steps[1:8])
            await_planned(twin.store, 8)
        twin.on("a", "update", hot[::2], values(rng, 35, 30))
        twin.on("a", "assign", hot[1::7], values(rng, 10, 30))
        twin.on("a", "delete", hot[3::9])
    rank.close()
