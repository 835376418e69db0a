"""Look-ahead sessions over tables of sparse keys and of dense ones together."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from embstore.config import Adam, RowWiseAdagrad
from embstore.errors import InvalidArgumentError
from tests.conformance.cases import assert_same, config, generator, normal, raising
from tests.conformance.meeting import Meeting
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    apply_step,
    assert_always_hit,
    expect,
    facts_of,
    finish,
    lookup_of,
    random_trace,
    rows_of,
    step_of,
    train,
    until,
)
from tests.conformance.sessions.ways import WAYS
from tests.conformance.tables.test_sparse import EXTREMES, sparse
from tests.conformance.traces import zipf_keys

pytestmark = pytest.mark.needs("plain_keys")

ROWS = 900
"""Of each table: the dense one has so many, of the others so many ids are used."""
DENSE = {
    "a": config(dim=12, rows=ROWS, optimizer=RowWiseAdagrad(0.05), key_space="dense"),
    "b": config(dim=5, rows=ROWS, optimizer=Adam(0.01), key_space="dense"),
    "c": config(dim=12, rows=ROWS, optimizer=RowWiseAdagrad(0.05), key_space="dense"),
}
TABLES = DENSE | {
    name: sparse(dim=DENSE[name]["dim"], optimizer=DENSE[name]["optimizer"]) for name in "ab"
}
DRAWN = np.random.default_rng(1).integers(0, 2**64 - 1, (2, ROWS - len(EXTREMES)), np.uint64)
IDS = {n: np.concatenate([EXTREMES, d]).view(np.int64) for n, d in zip("ab", DRAWN, strict=True)}
"""Those at the ends of 64 bits are those that `zipf_keys` draws now and then."""


def named(keys):
    """Return the ids of keys by table, where the table has ids."""
    return {name: IDS[name][of] if name in IDS else of for name, of in keys.items()}


def trace_of(rng, steps, **how):
    """Return random steps over all tables."""
    steps = random_trace(rng, DENSE, steps, **how)
    return [replace(step, keys=tuple(map(named, step.keys))) for step in steps]


def batches_of(rng, count, draws=120):
    """Return keys by table, many of them repeated."""
    return [named({n: zipf_keys(rng, ROWS, draws) for n in DENSE}) for _ in range(count)]


@pytest.fixture
def twin(open_twin):
    return open_twin(**TABLES)


def every_id(twin, rng):
    """Give some rows bits of their own, those of all of the ids at the ends."""
    for name in TABLES:
        keys = named({name: np.arange(ROWS - 100)})[name]
        dim = twin.reference.table(name).config.dim
        twin.on(name, "assign", keys, normal(rng, len(keys), dim))


@pytest.mark.parametrize("planner", ["per_step", "window"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_steps_of_ids_are_as_the_reference_has_them(twin, ranks, planner):
    rng = generator(1)
    every_id(twin, rng)
    steps = trace_of(rng, 25, ranks=ranks)
    answers = expect(twin.reference, steps)
    assert_always_hit(
        train(twin.store, Plan(tuple(TABLES), ranks=ranks, planner=planner), steps, answers)
    )
    twin.check()


def test_ids_hit_although_others_scan(open_twin):
    twin, rng = open_twin(**TABLES, cache_bytes=1 << 18), generator(2)
    every_id(twin, rng)
    steps = trace_of(rng, 20, is_wide=True)
    steps = [replace(step, verb="update") for step in steps]
    rank = Rank(twin.store, Plan(tuple(TABLES)), 0)
    for low in range(0, len(steps), 4):
        part = steps[low : low + 4]
        rank.announce(part)
        for step in part:
            answer = twin.reference.lookup(step.keys[0])
            twin.store.lookup({name: rng.permutation(ids)[:300] for name, ids in IDS.items()})
            found = twin.store.sessions.lookup_step(rank.member, step.number, timeout_s=PATIENCE_S)
            for name, rows in answer.items():
                assert_same(found[name], rows)
            finish(twin.store, rank.member, step)
            apply_step(twin.reference, step)
    assert_always_hit(facts_of(twin.store))
    rank.close()
    twin.check()


@pytest.mark.needs("process")
def test_rows_of_ids_that_no_unfinished_step_has_are_early(twin):
    rng = generator(3)
    every_id(twin, rng)
    ids = EXTREMES.view(np.int64)
    first = step_of(rng, 1, [{"a": ids[:6], "c": [1, 2]}], TABLES)
    second = step_of(rng, 2, [{"a": ids[4:], "b": ids, "c": [2, 3]}], TABLES)
    rank = Rank(twin.store, Plan(tuple(TABLES)), 0)
    rank.announce([first, second])
    lookup = lookup_of(twin.store, rank.member, 2)
    until(lambda: lookup.poll() >= 1)
    early = lookup.early()
    assert sorted(early["a"]) == [*range(2, len(ids) - 4)]
    assert sorted(early["b"]) == [*range(len(ids))]
    assert sorted(early["c"]) == [1]
    outs = rows_of(lookup, early)
    apply_step(twin.reference, first)
    wanted = twin.reference.lookup(second.keys[0])
    for name, positions in early.items():
        assert_same(outs[name], wanted[name][positions])
    finish(twin.store, rank.member, first)
    until(lambda: lookup.poll() == 2)
    for name, rows in rows_of(lookup).items():
        assert_same(rows, wanted[name])


def test_a_restore_ends_a_session_of_ids_and_another_goes_on(twin):
    rng, plan = generator(4), Plan(tuple(TABLES))
    steps = trace_of(rng, 12)

    def go(part):
        rank = Rank(twin.store, plan, 0)
        rank.train(part, expect(twin.reference, part))
        return rank

    rank = go(steps[:5])
    rank.close()
    twin.checkpoint("five")
    go(steps[5:8])
    twin.restore("five", force=True)
    go(steps[5:]).close()
    twin.check()
    twin.reopen()


@pytest.mark.parametrize("waits", ["late", "none"])
def test_every_way_in_a_session_of_ids(twin, waits):
    rng = generator(5)
    with twin.store.session([*TABLES], waits=waits, lookahead=4) as run:
        for step in run.steps(batches_of(rng, 24), lambda keys: keys):
            WAYS[step.number % len(WAYS)](twin, step, step.batch, rng)
    twin.check()


def test_unsigned_ids_are_the_same_ids(twin):
    rng = generator(6)
    with twin.store.session(["a", "b"], lookahead=3) as run:
        told = [
            {n: k.view(np.uint64) for n, k in keys.items() if n != "c"}
            for keys in batches_of(rng, 8)
        ]
        for step in run.steps(told, lambda keys: keys):
            keys = {name: of.view(np.int64) for name, of in step.batch.items()}
            rows = step.lookup()
            for name, wanted in twin.reference.lookup(keys).items():
                assert_same(rows[name], wanted)
            gradients = {name: normal(rng, *of.shape) for name, of in rows.items()}
            step.update(gradients)
            twin.reference.update({name: (keys[name], of) for name, of in gradients.items()})
    twin.check()


def test_ranks_that_run_ahead_have_the_same_rows_of_ids(twin):
    """Each finds the other's ids among its rows in flight."""
    ranks, count = 2, 16
    meeting = Meeting(ranks)
    told = [batches_of(generator(7 + rank), count) for rank in range(ranks)]
    sent = [[] for _ in range(ranks)]

    def work(rank):
        rng = np.random.default_rng(rank)
        how = {"rank": rank, "world_size": ranks, "all_gather": meeting.of(rank)}
        try:
            with twin.store.session([*TABLES], name="run", waits="none", lookahead=4, **how) as run:
                for step in run.steps(told[rank], lambda keys: keys):
                    rows = step.lookup()
                    gradients = {name: normal(rng, *of.shape) for name, of in rows.items()}
                    step.update(gradients)
                    sent[rank].append((step.batch, rows, gradients))
        except BaseException:
            meeting.leave()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(work, range(ranks)))
    for of_ranks in zip(*sent, strict=True):
        for keys, rows, _ in of_ranks:
            for name, wanted in twin.reference.lookup(keys).items():
                assert_same(rows[name], wanted)
        twin.reference.update_ranks([{n: (k[n], g[n]) for n in k} for k, _, g in of_ranks])
    twin.check()


def test_what_is_no_key_cannot_be_announced(twin):
    rank = Rank(twin.store, Plan(("a",)), 0)
    with raising(InvalidArgumentError, "18446744073709551615"):
        twin.store.sessions.announce(rank.member, {1: {"a": [5, -1]}})
    rank.close()
