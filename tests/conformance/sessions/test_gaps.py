"""Writes of other clients between two openings of a session: the second one shows them."""

import numpy as np
import pytest

from tests.conformance.cases import config
from tests.conformance.sessions.training import Plan, Rank, expect, expire, steps_of

TABLE = config(dim=6, rows=200)
PLAN = Plan(("a",))
STEPS = steps_of(641, {"a": TABLE}, [[number, 107] for number in range(1, 8)])
KEYS, ROWS = [3, 150], np.ones((2, 6), np.float32)


def drop_and_create(twin):
    twin.drop_table("a")
    twin.create_table("a", **TABLE)


WRITES = {
    "update": lambda twin: twin.on("a", "update", KEYS, ROWS),
    "assign": lambda twin: twin.on("a", "assign", KEYS, ROWS),
    "delete": lambda twin: twin.on("a", "delete", [1, 107]),
    "clear": lambda twin: twin.on("a", "clear"),
    "restore": lambda twin: twin.restore("first"),
    "another table of the name": drop_and_create,
}
OTHERS = {
    "no write": lambda twin: None,
    "a write to another table": lambda twin: twin.on("b", "assign", KEYS, ROWS),
    "a lookup": lambda twin: twin.store.table("a").lookup(KEYS),
}


@pytest.fixture
def twin(open_twin):
    twin = open_twin(a=TABLE, b=TABLE)
    twin.on("a", "assign", KEYS, ROWS)
    twin.checkpoint("first")
    return twin


def was_written(store, before):
    """Open the session again; return whether another client wrote since `before`."""
    now = PLAN.open(store).written
    assert len(now) == len(before) > 0
    return any(one not in (0, then) for one, then in zip(now, before, strict=True))


def trained(twin, count):
    """Open a session, train and stay away; return `written` as it was at the opening."""
    facts = PLAN.open(twin.store)
    steps = STEPS[facts.last_step : facts.last_step + count]
    if steps:
        rank = Rank(twin.store, PLAN, 0)
        rank.announce(steps)
        rank.train(steps, expect(twin.reference, steps))
    return facts.written


def go_away(twin, ending):
    """Close the store, or kill it where that loses no command: the epoch shows lost ones."""
    if ending == "crash" and twin.is_logged:
        twin.crash()
    else:
        twin.reopen()


@pytest.mark.parametrize(("ending", "count"), [("reopen", 0), ("crash", 1)])
def test_each_write_of_another_client_is_noticed(twin, ending, count):
    for write, do in WRITES.items():
        before = trained(twin, count)
        go_away(twin, ending)
        do(twin)
        go_away(twin, ending)
        assert was_written(twin.store, before), write
        twin.store.sessions.end(PLAN.name)


@pytest.mark.parametrize(("ending", "count"), [("reopen", 0), ("crash", 1)])
def test_a_session_without_other_writers_goes_on(twin, ending, count):
    before = trained(twin, count)
    for other, do in OTHERS.items():
        go_away(twin, ending)
        do(twin)
        go_away(twin, ending)
        assert not was_written(twin.store, before), other


def test_rows_that_a_member_puts_and_deletes_are_its_own(twin):
    before, sessions = trained(twin, 0), twin.store.sessions
    member, put = sessions.join(PLAN.name, 0).member, (KEYS, ROWS, np.zeros((2, 0), np.float32), 1)
    sessions.put_rows(member, {"a": put})
    twin.reference.table("a").put_rows(*put)
    expire(twin.store)
    assert not was_written(twin.store, before)
    member = sessions.join(PLAN.name, 0).member
    sessions.delete_rows(member, "a", KEYS)
    twin.reference.table("a").delete(KEYS)
    if twin.is_logged:
        twin.crash()
        assert not was_written(twin.store, before)
