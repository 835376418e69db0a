"""Going back to a checkpoint while sessions are open: refused, waiting for them, or ending them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from embstore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    SessionExpiredError,
    TableHeldError,
)
from tests.conformance.cases import config, each, refused
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    expect,
    expire,
    steps_of,
    train,
)

TABLE = config(dim=6, rows=200)
PLAN = Plan(("a",))
STEPS = steps_of(631, {"a": TABLE}, [[number, 107] for number in range(1, 10)])


@pytest.fixture
def twin(open_twin):
    """Three steps, kept; then two more by a rank that does not leave."""
    twin = open_twin(a=TABLE)
    train(twin.store, PLAN, STEPS[:3], expect(twin.reference, STEPS[:3]))
    twin.checkpoint("three")
    PLAN.open(twin.store)
    rank = Rank(twin.store, PLAN, 0)
    rank.announce(STEPS[3:8])
    rank.train(STEPS[3:5], expect(twin.reference, STEPS[3:5]))
    twin.member = rank.member
    return twin


def test_open_session_forbids_it(twin):
    with refused(twin.store, TableHeldError, "session 'run'", "close it, then restore"):
        twin.store.restore("three")
    assert twin.store.sessions.renew(twin.member).last_step == 5


def test_force_ends_open_sessions_who_are_told(twin):
    twin.restore("three", force=True)
    with pytest.raises(SessionExpiredError, match="ended by a restore"):
        twin.store.sessions.lookup_step(twin.member, 6)
    assert PLAN.open(twin.store).last_step == 3


def test_force_without_sessions(twin):
    twin.store.sessions.close(twin.member)
    twin.restore("three", force=True)
    assert PLAN.open(twin.store).last_step == 3


def test_force_of_a_label_that_is_not_kept_ends_nothing(twin):
    with refused(twin.store, CheckpointNotFoundError, "'four'"):
        twin.store.restore("four", force=True)
    assert twin.store.sessions.renew(twin.member).last_step == 5


@pytest.mark.needs("process")
def test_waiting_for_the_lease_of_a_trainer_that_was_killed(twin):
    with ThreadPoolExecutor(1) as pool:
        restoring = pool.submit(twin.restore, "three", wait_s=PATIENCE_S)
        assert not restoring.done()
        expire(twin.store)
        restoring.result(PATIENCE_S)
    assert PLAN.open(twin.store).last_step == 3


def test_waiting_in_vain(twin):
    with refused(twin.store, TableHeldError, "session 'run'"):
        twin.store.restore("three", wait_s=0.01)
    assert twin.store.sessions.renew(twin.member).last_step == 5


def test_seconds_to_wait_are_checked(twin):
    for wait_s in each([-1, "1", None, float("nan"), True]):
        with refused(twin.store, InvalidArgumentError, "wait_s", repr(wait_s)):
            twin.store.restore("three", wait_s=wait_s)
