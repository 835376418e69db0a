"""Announced rows that fit are in the cache at their turn, whatever another client does meanwhile.

Its command comes when a lookup has seen that its step is ready, and has not got the engine yet.
"""

import numpy as np
import pytest

from embstore.config import Sgd
from embstore.lookahead.handles import StepLookup
from embstore.profiles.hotset import HotSet
from tests.conformance.cases import assert_same, config, engine_of, generator
from tests.conformance.sessions.planner_jobs import Holding, pool_of
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    expect,
    facts_of,
    steps_of,
    written,
)
from tests.conformance.twin import Twin

ROWS = 4000
TABLE = config(dim=16, rows=ROWS)


@pytest.fixture
def here(tmp_path):
    """An embedded store, whose planner can be held."""
    made = Holding(tmp_path)
    yield made
    made.files.let_go()
    made.close()


def tables(backend):
    """Return two tables that share slots for half of the rows of one."""
    made = Twin(backend, cache_bytes=220_000, threads=1, policy="rank", a=TABLE, others=TABLE)
    return written(made, generator(1001), "a")


class Others:
    """What another client does: one command of each kind after the other."""

    def __init__(self, twin):
        self._store, self._reference = twin.store, twin.reference
        self._rng, self._count = generator(1002), 0

    def act(self):
        self._count += 1
        kinds = (self.read, self.pin, self.make, self.unpin, self.drop)
        kinds[self._count % len(kinds)]()

    def read(self):
        self._store.table("others").lookup(self._rng.permutation(ROWS)[:1500])

    def pin(self):
        hot = self._rng.permutation(ROWS)[:1000]
        self._store.pin_hot_set(HotSet({"others": np.sort(hot)}, version=self._count))

    def unpin(self):
        self._store.pin_hot_set(None)

    def make(self):
        """Its pool takes slots from the other, whose steps lose their pins."""
        given = config(dim=24, rows=500, optimizer=Sgd(0.1))
        self._store.create_table("made", **given).lookup(np.arange(100))
        self._reference.command_number += 1

    def drop(self):
        self._store.drop_table("made")
        self._reference.command_number += 1


@pytest.mark.parametrize("planner", ["per_step", "group:8", "window"])
def test_rows_hit_whose_pins_others_take_after_they_were_ready(here, monkeypatch, planner):
    """They were read all the same, and missed; no figure said so."""
    twin = tables(here)
    sessions, others = engine_of(twin.store).sessions, Others(twin)
    wait = sessions._wait

    def wait_and_let_others_act(handle, *given):
        found = wait(handle, *given)
        if isinstance(handle, StepLookup) and handle.number not in acted:
            acted.add(handle.number)
            others.act()
        return found

    acted = set()
    monkeypatch.setattr(sessions, "_wait", wait_and_let_others_act)
    rng = generator(1003)
    steps = steps_of(1004, {"a": TABLE}, [rng.permutation(ROWS)[:150] for _ in range(20)])
    rank = Rank(twin.store, Plan(("a",), planner=planner, lookahead=3), 0)
    rank.train(steps, expect(twin.reference, steps))
    facts = facts_of(twin.store)
    assert facts["steps_planned_again"] > 0, "no step has lost its pins"
    assert (facts["lookup_hits"], facts["steps_in_parts"]) == (20 * 150, 0)
    rank.close()
    twin.check()


def test_rows_hit_over_every_way_to_look_them_up(backend, monkeypatch):
    """Each step loses its pins, and its rows, the first time that its rows are read."""
    twin, taken = tables(backend), set()
    engine, pool = engine_of(twin.store), pool_of(twin.store, "a")

    def takes_pins_before(read):
        def read_late(lookup, *given):
            with engine.tables.reading():
                if (read, lookup.number) not in taken:
                    taken.add((read, lookup.number))
                    pool.pins.reclaim()
                    pool.evictor.evict(pool.slots.count)
            return read(lookup, *given)

        return read_late

    for name in ("read", "some"):
        monkeypatch.setattr(StepLookup, name, takes_pins_before(getattr(StepLookup, name)))
    with twin.store.session(["a"], name="run") as run:
        batches = np.arange(300).reshape(6, 50)
        for step in run.steps(batches, keys=lambda keys: {"a": keys}):
            assert_same(step.lookup()["a"], twin.reference.table("a").lookup(step.batch))
            step.release()
            twin.reference.command_number += 1
        facts = facts_of(twin.store)
    assert (facts["lookup_hits"], facts["lookup_keys"]) == (300, 300)
    assert len(taken) >= 6
    twin.check()


def test_a_step_in_parts_is_counted_that_is_finished_before_it_is_planned(here):
    """It was done in parts from the moment that it was found not to fit, and counted later."""
    twin = Twin(here, cache_bytes=128 << 10, threads=1, a=TABLE)
    steps = steps_of(1006, {"a": TABLE}, [np.arange(pool_of(twin.store, "a").room + 50)])
    rank = Rank(twin.store, Plan(("a",)), 0)
    here.files.hold("lookahead:plan")
    rank.announce(steps)
    assert here.files.is_held.wait(PATIENCE_S)
    rank.train(steps, expect(twin.reference, steps))
    facts = facts_of(twin.store)
    here.files.let_go()
    rank.close()
    twin.check()
    assert facts["lookup_hits"] < facts["lookup_keys"]
    assert facts["steps_in_parts"] == 1
