"""Rows that a member deletes from the tables of its session: in the order of commands, whatever was
announced, planned, or sent early."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, SessionExpiredError, TableHeldError
from embstore.profiles.hotset import HotSet
from tests.conformance.cases import assert_same, config, generator, hits, normal
from tests.conformance.sessions.test_sparse_sessions import (
    IDS,
    TABLES,
    batches_of,
    every_id,
    named,
    trace_of,
)
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    apply_step,
    assert_always_hit,
    await_planned,
    expect,
    facts_of,
    finish,
    lookup_of,
    refused_step,
    rows_of,
    step_of,
    until,
)
from tests.conformance.traces import zipf_keys

pytestmark = pytest.mark.needs("plain_keys")
EARLY, READY = 1, 2
NAMES = tuple(TABLES)


@pytest.fixture
def twin(open_twin):
    made = open_twin(**TABLES)
    every_id(made, generator(601))
    return made


def acknowledged(twin, name, done, rows):
    """Compare the answer of a deletion with what the reference says of it."""
    reference = twin.reference
    found = done.command, done.t, done.rows
    assert found == (reference.command_number, reference.table(name).t, rows)


def delete(twin, member, name, keys):
    """Delete rows on both, by a member."""
    done = twin.store.sessions.delete_rows(member, name, keys)
    acknowledged(twin, name, done, twin.reference.table(name).delete(keys))


def clear(twin, member, name):
    """Delete all rows of a table on both, by a member."""
    done = twin.store.sessions.clear_table(member, name)
    acknowledged(twin, name, done, twin.reference.table(name).clear())


def delete_some(twin, member, rng, step):
    """Delete keys that many steps have, some of the step's own, and now and then a whole table."""
    for name in NAMES:
        if rng.random() < 0.1:
            clear(twin, member, name)
        else:
            own = step.keys[0].get(name, np.zeros(0, np.int64))[::4]
            drawn = named({name: np.unique(zipf_keys(rng, 900, 30))})[name]
            delete(twin, member, name, np.concatenate([own, drawn]))


@pytest.mark.parametrize("cache_bytes", [1 << 18, 1 << 20])
@pytest.mark.parametrize("planner", ["per_step", "window"])
def test_the_next_step_has_initial_rows(open_twin, planner, cache_bytes):
    twin, rng = open_twin(**TABLES, cache_bytes=cache_bytes), generator(602)
    every_id(twin, rng)
    steps = trace_of(rng, 24)
    rank = Rank(twin.store, Plan(NAMES, planner=planner), 0)
    for low in range(0, len(steps), 6):
        part = steps[low : low + 6]
        rank.announce(part)
        await_planned(twin.store, part[-1].number)
        for step in part:
            delete_some(twin, rank.member, rng, step)
            rank.train([step], expect(twin.reference, [step]))
    assert_always_hit(facts_of(twin.store))
    rank.close()
    twin.check()


def test_a_step_in_parts_has_initial_rows(open_twin):
    table = config(dim=30, rows=4000)
    twin, rng = open_twin(a=table, cache_bytes=64 << 10), generator(603)
    keys = np.arange(2500)
    twin.on("a", "assign", keys, normal(rng, len(keys), 30))
    rank = Rank(twin.store, Plan(("a",)), 0)
    steps = [step_of(rng, n, [{"a": rng.permutation(keys)}], {"a": table}) for n in (1, 2)]
    rank.announce(steps)
    for step in steps:
        delete(twin, rank.member, "a", step.keys[0]["a"][::3])
        rank.train([step], expect(twin.reference, [step]))
    assert facts_of(twin.store)["steps_in_parts"] == 2
    rank.close()
    twin.check()


def two_steps(twin):
    """Return two steps that share few keys."""
    rng, (a, b) = generator(604), IDS.values()
    first = step_of(rng, 1, [{"a": a[:40], "b": b[:10], "c": [5]}], TABLES)
    keys = {"a": a[30:200], "b": b[5:90], "c": np.arange(300)}
    return first, step_of(rng, 2, [keys], TABLES)


def finish_all(twin, step, members):
    """Finish a step by the updates of all ranks, here and there."""
    with ThreadPoolExecutor(len(members)) as pool:
        ranks = range(len(members))
        list(pool.map(lambda rank: finish(twin.store, members[rank], step, rank), ranks))
    apply_step(twin.reference, step)


@pytest.mark.parametrize("when", ["sent early", "sent whole"])
def test_rows_that_have_been_sent_for_are_those_after_the_deletion(twin, when):
    first, second = two_steps(twin)
    rank = Rank(twin.store, Plan(NAMES), 0)
    rank.announce([first, second])
    sessions, member = twin.store.sessions, rank.member
    sent = sessions.prefetch_step(member, 2)
    if when == "sent whole":
        finish(twin.store, member, first)
        apply_step(twin.reference, first)
        until(lambda: sent is None or sent.done())
    elif sent is not None:
        until(lambda: facts_of(twin.store)["early_rows"])
    delete(twin, member, "a", second.keys[0]["a"][5:100:2])
    clear(twin, member, "c")
    if when == "sent early":
        finish(twin.store, member, first)
        apply_step(twin.reference, first)
    rows = sessions.lookup_step(member, 2) if sent is None else sent.result(PATIENCE_S)
    for name, wanted in twin.reference.lookup(second.keys[0]).items():
        assert_same(rows[name], wanted)
    finish(twin.store, member, second)
    apply_step(twin.reference, second)
    rank.close()


def test_early_rows_of_a_rank_are_sent_again_where_another_rank_deletes(twin):
    first, second = (
        replace(step, keys=step.keys * 2, gradients=step.gradients * 2) for step in two_steps(twin)
    )
    ranks = [Rank(twin.store, Plan(NAMES, ranks=2), rank) for rank in range(2)]
    for rank in ranks:
        rank.announce([first, second])
    sessions, members = twin.store.sessions, [rank.member for rank in ranks]
    one, other = members
    sent = sessions.prefetch_step(one, 2)
    if sent is not None:
        until(lambda: facts_of(twin.store)["early_rows"])
    delete(twin, other, "b", second.keys[0]["b"][10:60])
    finish_all(twin, first, members)
    rows = sessions.lookup_step(one, 2) if sent is None else sent.result(PATIENCE_S)
    again = sessions.lookup_step(other, 2)
    for name, wanted in twin.reference.lookup(second.keys[0]).items():
        assert_same(rows[name], wanted)
        assert_same(again[name], wanted)
    finish_all(twin, second, members)
    for rank in ranks:
        rank.close()


@pytest.mark.needs("process")
def test_early_rows_that_were_given_are_late_again(twin):
    first, second = two_steps(twin)
    rank = Rank(twin.store, Plan(NAMES), 0)
    rank.announce([first, second])
    lookup = lookup_of(twin.store, rank.member, 2)
    until(lambda: lookup.poll() == EARLY)
    rows_of(lookup, lookup.early())
    late = lookup.late()
    assert {name: len(of) for name, of in late.items()} == {"a": 10, "b": 5, "c": 1}
    delete(twin, rank.member, "a", second.keys[0]["a"][50:60])
    finish(twin.store, rank.member, first)
    apply_step(twin.reference, first)
    until(lambda: lookup.poll() == READY)
    assert lookup.some(late, None) is None
    assert lookup.late() is None
    for name, wanted in twin.reference.lookup(second.keys[0]).items():
        assert_same(rows_of(lookup)[name], wanted)
    rank.close()


@pytest.mark.needs("process")
def test_what_was_deleted_before_is_early(twin):
    first, second = two_steps(twin)
    rank = Rank(twin.store, Plan(NAMES), 0)
    rank.announce([first, second])
    delete(twin, rank.member, "a", second.keys[0]["a"])
    lookup = lookup_of(twin.store, rank.member, 2)
    until(lambda: lookup.poll() == EARLY)
    early = lookup.early()
    outs = rows_of(lookup, early)
    finish(twin.store, rank.member, first)
    apply_step(twin.reference, first)
    wanted = twin.reference.lookup(second.keys[0])
    for name, positions in early.items():
        assert_same(outs[name], wanted[name][positions])
    until(lambda: lookup.poll() == READY)
    assert {name: len(of) for name, of in lookup.late().items()} == {"a": 10, "b": 5, "c": 1}
    rank.close()


def test_an_update_after_a_deletion_begins_at_initial_rows(twin):
    """The rows were looked up before: the gradients are those of the trainer."""
    first, _ = two_steps(twin)
    rank = Rank(twin.store, Plan(NAMES), 0)
    rank.announce([first])
    twin.store.sessions.lookup_step(rank.member, 1, timeout_s=PATIENCE_S)
    for name, keys in first.keys[0].items():
        delete(twin, rank.member, name, keys)
    finish(twin.store, rank.member, first)
    apply_step(twin.reference, first)
    rank.close()
    twin.check()


@pytest.mark.parametrize("durability", ["commands", "interval"])
def test_a_kill_loses_no_logged_deletion_of_a_member(open_twin, durability):
    twin, rng = open_twin(**TABLES, durability=durability), generator(605)
    every_id(twin, rng)
    steps = trace_of(rng, 9)
    for low in range(0, len(steps), 3):
        part = steps[low : low + 3]
        rank = Rank(twin.store, Plan(NAMES), 0)
        rank.announce(part)
        for step in part:
            delete_some(twin, rank.member, rng, step)
            rank.train([step], expect(twin.reference, [step]))
        if low == 0:
            twin.checkpoint("first")
            delete(twin, rank.member, "a", IDS["a"][:300])
            clear(twin, rank.member, "c")
        twin.settle()
        twin.kill()
        twin.check()


def test_a_loop_deletes_rows(twin):
    rng, ends = generator(606), 0
    with twin.store.session([*NAMES], lookahead=4) as run:
        for step in run.steps(batches_of(rng, 20), lambda keys: keys):
            if step.number % 4 == 0:
                name = NAMES[step.number // 4 % len(NAMES)]
                done = run.clear(name)
                acknowledged(twin, name, done, twin.reference.table(name).clear())
            keys = step.batch
            rows = step.lookup()
            for name, wanted in twin.reference.lookup(keys).items():
                assert_same(rows[name], wanted)
            for name, of in keys.items():
                if rng.random() < 0.5:
                    done = run.delete(name, of[::3])
                    acknowledged(twin, name, done, twin.reference.table(name).delete(of[::3]))
                    ends += 1
            gradients = {name: normal(rng, *of.shape) for name, of in rows.items()}
            step.update(gradients)
            twin.reference.update({name: (keys[name], of) for name, of in gradients.items()})
            name = NAMES[step.number % len(NAMES)]
            done = run.delete(name, keys[name][1::5])
            acknowledged(twin, name, done, twin.reference.table(name).delete(keys[name][1::5]))
    assert ends
    twin.check()


def test_bags_that_are_looked_up_again_have_initial_rows(twin):
    """Their rows may have come to the trainer whole, to be pooled there."""
    with twin.store.session(["a"], lookahead=3) as run:
        for step in run.steps(batches_of(generator(607), 6), lambda keys: {"a": keys["a"]}):
            keys, table = step.batch["a"], twin.reference.table("a")
            offsets = np.arange(0, len(keys) + 1, 2)
            for _ in range(2):
                found = step.lookup_pooled({"a": offsets})["a"]
                assert_same(found, table.lookup_pooled(keys, offsets, "sum", None))
                done = run.delete("a", keys[step.number :: 4])
                acknowledged(twin, "a", done, table.delete(keys[step.number :: 4]))
            step.release()
            twin.reference.command_number += 1
    twin.check()


def test_others_are_refused(twin):
    rank = Rank(twin.store, Plan(("a", "c")), 0)
    for name in ("a", "c"):
        with refused_step(twin.store, TableHeldError, f"'{name}'", "'run'", "shared=True"):
            twin.store.table(name).delete([1])
        with refused_step(twin.store, TableHeldError, f"'{name}'", "'run'", "shared=True"):
            twin.store.table(name).clear()
    rank.close()
    for member in ("0" * 32, rank.member, ""):
        with refused_step(twin.store, SessionExpiredError):
            twin.store.sessions.delete_rows(member, "a", [1])
        with refused_step(twin.store, SessionExpiredError):
            twin.store.sessions.clear_table(member, "a")


def test_what_a_member_cannot_delete(twin):
    rank, sessions = Rank(twin.store, Plan(("a", "c")), 0), twin.store.sessions
    with refused_step(twin.store, InvalidArgumentError, "'run'", "['a', 'c']", "'b'"):
        sessions.delete_rows(rank.member, "b", [1])
    with refused_step(twin.store, InvalidArgumentError, "'run'", "['a', 'c']", "'b'"):
        sessions.clear_table(rank.member, "b")
    with refused_step(twin.store, InvalidArgumentError, "'c'", "keys in [0, 900)"):
        sessions.delete_rows(rank.member, "c", [900])
    with refused_step(twin.store, InvalidArgumentError, "'a'", "18446744073709551615"):
        sessions.delete_rows(rank.member, "a", [-1])
    rank.close()


def test_a_trainer_that_runs_ahead_deletes_nothing(twin):
    """It has rows of its own, which no deletion reaches."""
    with twin.store.session(["a"], name="run", waits="none", lookahead=4) as run:
        for step in run.steps(batches_of(generator(608), 3), lambda keys: {"a": keys["a"]}):
            step.lookup()
            with pytest.raises(InvalidArgumentError, match=r"'run'.*waits='none'.*'late'"):
                run.delete("a", step.batch["a"])
            with pytest.raises(InvalidArgumentError, match=r"'run'.*waits='none'.*'late'"):
                run.clear("a")
            step.release()
            twin.reference.command_number += 1
        run.synchronize()
        with refused_step(twin.store, InvalidArgumentError, "waits='none'"):
            twin.store.sessions.delete_rows(run.member, "a", [1])
    twin.check()


def test_members_of_a_shared_session_delete_as_anybody_may(twin):
    first, second = two_steps(twin)
    rank = Rank(twin.store, Plan(NAMES, shared=True), 0)
    rank.announce([first, second])
    await_planned(twin.store, 2)
    delete(twin, rank.member, "a", first.keys[0]["a"][::2])
    twin.on("a", "delete", second.keys[0]["a"][::3])
    clear(twin, rank.member, "c")
    for step in (first, second):
        rank.train([step], expect(twin.reference, [step]))
    rank.close()
    twin.check()


@pytest.mark.needs("one_store")
def test_pinned_rows_of_a_hot_set_stay_where_they_are(open_twin):
    twin, rng = open_twin(**TABLES), generator(609)
    every_id(twin, rng)
    hot = np.sort(IDS["a"][:60])
    twin.store.pin_hot_set(HotSet({"a": hot}, version=1))
    rank = Rank(twin.store, Plan(("a",)), 0)
    delete(twin, rank.member, "a", hot[::2])
    assert hits(twin.store, lambda: twin.store.table("a").lookup(hot)) == len(hot)
    assert_same(twin.store.table("a").lookup(hot), twin.reference.table("a").lookup(hot))
    rank.close()
