"""What a session owes to others: rows that travel early, and lookups that nobody announced.

Traces of the first are Criteo-shaped: 26 tables of its true sizes, Zipf's law in each. Rows are
drawn by the inverse of the law's continuous form, whose ranks differ from the exact ones by less
than the noise.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from embstore.checks.sessions import LOOKAHEAD_STEPS_MAX
from tests.conformance.backends import Embedded, UnsyncedFiles
from tests.conformance.cases import config, generator, normal
from tests.conformance.sessions.planner_jobs import Jobs
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    facts_of,
    lookup_of,
    pause,
    rows_of,
    until,
)

EARLY, READY = 1, 2
SAMPLES = 2048
READ_S = 1e-3


def drawn(rng, rows, exponent):
    """Return the distinct keys of a batch: ranks of Zipf's law over so many rows."""
    u, power = rng.random(SAMPLES), 1.0 - exponent
    ranks = ((rows + 1.0) ** power * u + (1.0 - u)) ** (1.0 / power) - 1.0
    return np.unique(np.minimum(ranks.astype(np.int64), rows - 1))


@pytest.mark.needs("process")
@pytest.mark.parametrize("exponent", [1.05, 1.2])
def test_most_bytes_travel_early_on_criteo_shaped_traces(backend, exponent):
    columns = pytest.importorskip("embstore_tools.demo.columns")
    store, rng, steps = backend.open_store(cache_bytes=64 << 20), generator(900), 6
    tables = {f"c{i:02d}": rows for i, rows in enumerate(columns.CARDINALITIES)}
    for name, rows in tables.items():
        store.create_table(name, **config(rows=rows))
    rank = Rank(store, Plan(tuple(tables), lookahead=steps), 0)
    announced = [
        {n: drawn(rng, rows, exponent) for n, rows in tables.items()} for _ in range(steps)
    ]
    store.sessions.announce(rank.member, dict(enumerate(announced, 1)))
    train_with_early_rows(store, rank.member, announced)
    facts = facts_of(store)
    rank.close()
    share = facts["early_bytes"] / (facts["early_bytes"] + facts["late_bytes"])
    told(f"Zipf {exponent}: {share:.1%} of the bytes were early")
    key_count = sum(len(keys) for step in announced for keys in step.values())
    assert facts["lookup_hits"] == facts["lookup_keys"] == key_count
    store.check_integrity()
    assert share >= 0.6 * (steps - 1) / steps  # before the first step nothing can be early


def train_with_early_rows(store, member, announced):
    """Go through all steps; read what is early of the next one while this one is computed."""
    lookup, early = lookup_of(store, member, 1), None
    for number, keys in enumerate(announced, 1):
        await_rows(lookup, READY)
        rows_of(lookup, None if early is None else others(lookup, early))
        if number < len(announced):
            lookup = lookup_of(store, member, number + 1)
            await_rows(lookup, EARLY)
            early = lookup.early()
            rows_of(lookup, early)
        gradients = {name: np.ones((len(k), 4), np.float32) for name, k in keys.items()}
        store.sessions.update_step(member, number, gradients)


def await_rows(lookup, readiness):
    """Wait until so much of a step can be read."""
    until(lambda: lookup.poll() == readiness)


def others(lookup, early):
    """Return the positions of a lookup that were not early."""
    return {
        name: np.setdiff1d(np.arange(count), early[name]).astype(np.int32)
        for name, (count, _) in lookup.shapes.items()
    }


# Lookups beside a session


class SlowFiles(UnsyncedFiles):
    """Every read of rows takes a while."""

    def reached(self, point):
        if point == "read":
            pause(READ_S)


class Slow(Embedded):
    """Embedded stores whose reads take a while."""

    def _files(self, path):
        return SlowFiles(path)


@pytest.fixture
def slow_store(tmp_path):
    """A store with a table "a" that is a few times its cache, and a small one, "plain"."""
    backend = Slow(tmp_path)
    store, rng = backend.open_store(threads=1), generator(903)
    of_a = store.create_table("a", **config(dim=16, rows=50_000))
    for part in np.split(np.arange(50_000), 10):
        of_a.assign(part, normal(rng, len(part), 16))
    store.create_table("plain", **config(dim=16, rows=1000))
    yield store
    backend.close()


def test_plain_lookups_get_on_beside_the_deepest_look_ahead(slow_store, monkeypatch):
    """A call that waits for the engine goes ahead of the planner's next jobs.

    Counted and not timed: how long a call takes depends on who else has the cores, and so does
    whether it comes while the planner has patience.
    """
    monkeypatch.setattr("embstore.tables.frame._PATIENCE_S", PATIENCE_S)
    rng, count = generator(904), LOOKAHEAD_STEPS_MAX
    steps = {n: {"a": rng.permutation(50_000)[:200]} for n in range(1, count + 1)}
    plain, calls = slow_store.table("plain"), 0
    plain.lookup(np.arange(1000))
    rank, jobs = Rank(slow_store, Plan(("a",), lookahead=count), 0), Jobs(slow_store)
    slow_store.sessions.announce(rank.member, steps)

    def train():
        for number in steps:
            slow_store.sessions.lookup_step(rank.member, number, timeout_s=PATIENCE_S)
            slow_store.sessions.release_step(rank.member, number, timeout_s=PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        trainer = pool.submit(train)
        while not trainer.done():
            plain.lookup(rng.integers(0, 1000, 64))
            calls += 1
        trainer.result()
    passed = np.bincount(jobs.passed)
    rank.close()
    told(f"{jobs.count} jobs; so many calls waited for 0, 1, ... of them: {passed.tolist()}")
    assert jobs.count > count, "the planner was at work"
    assert len(jobs.passed) >= calls, "each call was seen"
    assert max(jobs.passed) <= 1, "the planner goes on only with what it had begun"


def told(line):
    """Show a figure, which pytest does with -s."""
    sys.stdout.write(f"{line}\n")
