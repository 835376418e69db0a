"""Writes of other clients between two openings of a session: its trainer can notice each of them."""

import numpy as np
import pytest

from tests.conformance.cases import config
from tests.conformance.sessions.training import Plan, Rank, expect, expire, steps_of, train

TABLE = config(dim=6, rows=200)
PLAN = Plan(("a",))
STEPS = steps_of(641, {"a": TABLE}, [[number, 107] for number in range(1, 6)])
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


def trained(twin, steps):
    """Open a session, train and stay away; return `written` as it was at the opening."""
    before = PLAN.open(twin.store).written
    if steps:
        rank = Rank(twin.store, PLAN, 0)
        rank.announce(steps)
        rank.train(steps, expect(twin.reference, steps))
    return before


def end(twin, ending):
    if ending == "lease":
        expire(twin.store)
    else:
        getattr(twin, ending)()


@pytest.mark.parametrize("ending", ["reopen", "crash"])
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_of_another_client_is_noticed(twin, write, count, ending):
    before = trained(twin, STEPS[:count])
    end(twin, ending)
    WRITES[write](twin)
    if ending == "crash" and twin.is_logged:
        twin.crash()
    assert was_written(twin.store, before)


@pytest.mark.parametrize("ending", ["reopen", "crash"])
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("other", OTHERS)
def test_a_session_without_other_writers_goes_on(twin, other, count, ending):
    before = trained(twin, STEPS[:count])
    end(twin, ending)
    OTHERS[other](twin)
    if twin.is_logged:
        twin.crash()
    assert not was_written(twin.store, before)


def test_rows_that_a_member_puts_and_deletes_are_its_own(twin):
    before, sessions = trained(twin, []), twin.store.sessions
    member = sessions.join(PLAN.name, 0).member
    sessions.put_rows(member, {"a": (KEYS, ROWS, np.zeros((2, 0), np.float32), 1)})
    expire(twin.store)
    assert not was_written(twin.store, before)
    member = sessions.join(PLAN.name, 0).member
    sessions.delete_rows(member, "a", KEYS)
    if twin.is_logged:
        twin.crash()
        assert not was_written(twin.store, before)
