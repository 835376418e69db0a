"""Early rows: what no unfinished step touches is there before the step's turn has come, and is what
the step will be told."""

import numpy as np
import pytest

from embstore.errors import EmbstoreError
from embstore.handles.sessions import StepBags
from tests.conformance.cases import assert_same, config, generator, normal
from tests.conformance.sessions.training import (
    Plan,
    Rank,
    apply_step,
    expect,
    facts_of,
    finish,
    lookup_of,
    random_trace,
    rows_of,
    step_of,
    until,
)
from tests.rules import pool_bag

pytestmark = pytest.mark.needs("process")
TABLES = {"a": config(dim=8, rows=2000), "b": config(dim=5, rows=2000)}
WAIT, EARLY, READY = 0, 1, 2


@pytest.fixture
def twin(open_twin):
    made, rng = open_twin(), generator(501)
    for name, given in TABLES.items():
        made.create_table(name, **given)
        made.on(name, "assign", np.arange(1500), normal(rng, 1500, given["dim"]))
    return made


def two_steps(twin, **plan):
    """Return a rank with two announced steps that share some rows, and the steps."""
    rng = generator(502)
    first = step_of(rng, 1, [{"a": [1, 2, 3], "b": [7, 1600]}], TABLES)
    keys = {"b": [1600, 8, 1700, 7], "a": [9, 3, 4, 1, 1999]}
    second = step_of(rng, 2, [keys], TABLES)
    rank = Rank(twin.store, Plan(("a", "b"), **plan), 0)
    rank.announce([first, second])
    return rank, first, second


def await_ready(lookup):
    """Wait until a step's turn has come and its rows are there."""
    until(lambda: lookup.poll() == READY)


def test_rows_that_no_unfinished_step_has_are_early(twin):
    rank, first, second = two_steps(twin)
    lookup = lookup_of(twin.store, rank.member, 2)
    until(lambda: lookup.poll() >= EARLY)
    assert lookup.poll() == EARLY
    assert lookup.shapes == {"b": (4, 5), "a": (5, 8)} and list(lookup.shapes) == ["b", "a"]
    early = lookup.early()
    assert {name: sorted(found) for name, found in early.items()} == {"a": [0, 2, 4], "b": [1, 2]}
    outs = rows_of(lookup, early)
    apply_step(twin.reference, first)
    wanted = {n: twin.reference.table(n).lookup(k) for n, k in second.keys[0].items()}
    for name, positions in early.items():
        assert_same(outs[name], wanted[name][positions])
    assert lookup.poll() == EARLY
    finish(twin.store, rank.member, first)
    await_ready(lookup)
    rest = {n: np.setdiff1d(np.arange(len(wanted[n])), early[n]).astype(np.int32) for n in wanted}
    outs = rows_of(lookup, rest)
    facts = facts_of(twin.store)
    assert (facts["early_rows"], facts["late_rows"]) == (5, 4)
    for positions in (rest, early, None):
        outs = rows_of(lookup, positions)
        for name, rows in wanted.items():
            assert_same(outs[name], rows if positions is None else rows[positions[name]])
    early_again = lookup.early()
    assert all(np.array_equal(early[n], early_again[n]) for n in early)
    finish(twin.store, rank.member, second)
    apply_step(twin.reference, second)
    rank.close()


def test_pooled_at_ready(twin):
    rank, first, second = two_steps(twin)
    finish(twin.store, rank.member, first)
    apply_step(twin.reference, first)
    inverse, offsets = np.array([4, 0, 0, 3], np.int32), np.array([0, 0, 3, 4])
    weights = np.array([0.5, 2.0, -1.0, 3.0], np.float32)
    bags = {"a": StepBags(inverse, offsets, "sum", weights)}
    lookup = lookup_of(twin.store, rank.member, 2, bags)
    await_ready(lookup)
    outs = {"a": lookup.read().tables[0].rows}
    rows = twin.reference.table("a").lookup(second.keys[0]["a"])[inverse]
    bounds = [(0, 0), (0, 3), (3, 4)]
    wanted = np.stack([pool_bag(rows[i:j], "sum", weights[i:j]) for i, j in bounds])
    assert_same(outs["a"], wanted)
    rank.close()


def test_shared_session_has_no_early_rows(twin):
    rank, first, _ = two_steps(twin, shared=True)
    lookup = lookup_of(twin.store, rank.member, 2)
    ready = lookup_of(twin.store, rank.member, 1)
    await_ready(ready)
    assert lookup.poll() == WAIT or not any(map(len, lookup.early().values()))
    finish(twin.store, rank.member, first)
    apply_step(twin.reference, first)
    await_ready(lookup)
    rank.close()


@pytest.mark.parametrize(
    ("options", "said"), [({}, True), ({"lookahead": 1}, False), ({"shared": True}, False)]
)
def test_a_session_says_whether_rows_may_come_early(twin, options, said):
    with twin.store.session(["a"], name="run", **options) as run:
        for step in run.steps([[n] for n in range(5)], keys=lambda keys: {"a": keys}):
            step.lookup()
            step.release()
            twin.reference.command_number += 1
        found = facts_of(twin.store)
    assert found["may_come_early"] is said
    assert said or found["early_rows"] == 0


@pytest.mark.parametrize("how", ["update", "release", "skip"])
def test_late_rows_come_however_the_step_before_is_finished(twin, how):
    rank, first, second = two_steps(twin)
    step = step_of(generator(503), 1, [first.keys[0]], TABLES, verb=how)
    lookup = lookup_of(twin.store, rank.member, 2)
    until(lambda: lookup.poll() == EARLY)
    finish(twin.store, rank.member, step)
    apply_step(twin.reference, step)
    await_ready(lookup)
    outs = rows_of(lookup)
    for name, keys in second.keys[0].items():
        assert_same(outs[name], twin.reference.table(name).lookup(keys))
    rank.close()


def test_watcher_hears_of_progress(twin):
    """What a handle says changes only after its watcher was called."""
    heard = []
    unwatch = twin.store.executor.sessions.watch(lambda: heard.append(1))
    rank, first, _ = two_steps(twin)
    lookup = lookup_of(twin.store, rank.member, 2)
    until(lambda: lookup.poll() == EARLY)
    before = len(heard)
    assert before
    finish(twin.store, rank.member, first)
    apply_step(twin.reference, first)
    await_ready(lookup)
    until(lambda: len(heard) > before)
    rank.close()
    unwatch()
    before = len(heard)
    Rank(twin.store, Plan(("a",), name="other"), 0).close()
    assert len(heard) == before


def test_handle_of_a_closed_session(twin):
    rank, _, _ = two_steps(twin)
    lookup = lookup_of(twin.store, rank.member, 2)
    rank.close()
    with pytest.raises(EmbstoreError):
        lookup.poll()


@pytest.mark.parametrize("seed", [511, 512, 513])
def test_early_rows_of_a_random_trace_are_what_the_step_is_told(open_twin, seed):
    """The cache is a tenth of the tables, and the next two steps are looked up ahead of time."""
    twin, rng = open_twin(cache_bytes=64 << 10), generator(seed)
    for name, given in TABLES.items():
        twin.create_table(name, **given)
        twin.on(name, "assign", np.arange(2000), normal(rng, 2000, given["dim"]))
    steps = random_trace(rng, TABLES, 25, draws_max=60)
    answers = expect(twin.reference, steps)
    rank = Rank(twin.store, Plan(("a", "b"), lookahead=len(steps)), 0)
    rank.announce(steps)
    handles = [lookup_of(twin.store, rank.member, step.number) for step in steps]
    for place, (step, answer) in enumerate(zip(steps, answers, strict=True)):
        await_ready(handles[place])
        for handle, later in zip(
            handles[place : place + 3], answers[place : place + 3], strict=True
        ):
            if handle.poll() >= EARLY:
                early = handle.early()
                outs = rows_of(handle, early)
                for name, positions in early.items():
                    assert_same(outs[name], later.rows[0][name][positions])
        outs = rows_of(handles[place])
        for name, wanted in answer.rows[0].items():
            assert_same(outs[name], wanted)
        finish(twin.store, rank.member, step)
    rank.close()
