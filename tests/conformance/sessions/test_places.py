"""A session's place is bound to its tables: one that was made again has not seen its steps.

That a place outlives closing, killing and restoring is in test_leases.py.
"""

import pytest

from tests.conformance.cases import config
from tests.conformance.sessions.training import Plan, expect, steps_of, train

TABLE = config(dim=6, rows=200)


@pytest.fixture
def twin(open_twin):
    return open_twin(a=TABLE, b=TABLE)


def trained(twin, tables, first, last):
    """Go on with steps `first` to `last` of the run over some tables, on both."""
    keys = [{name: [number, 107] for name in tables} for number in range(1, last + 1)]
    steps = steps_of(621, dict.fromkeys(tables, TABLE), keys)[first - 1 :]
    train(twin.store, Plan(tuple(tables)), steps, expect(twin.reference, steps))


def place(twin, tables):
    """Return the place that the run over some tables would go on after."""
    store = twin.store
    found = Plan(tuple(tables)).open(store).last_step
    store.sessions.close(store.sessions.join("run", 0).member)
    return found


def made_again(twin, name):
    twin.drop_table(name)
    twin.create_table(name, **TABLE)


@pytest.mark.parametrize("seen", ["at once", "after a restart", "after a kill"])
def test_a_run_begins_anew_over_a_table_that_was_made_again(twin, seen):
    trained(twin, "ab", 1, 5)
    made_again(twin, "b")
    if seen != "at once":
        twin.checkpoint("kept")
        twin.crash() if seen == "after a kill" else twin.reopen()
    assert place(twin, "ab") == 0
    trained(twin, "ab", 1, 2)
    assert place(twin, "ab") == 2, "the place is now that of the new table"


def test_a_run_goes_on_over_what_is_left_of_its_tables(twin):
    trained(twin, "ab", 1, 5)
    twin.drop_table("b")
    assert place(twin, "a") == 5


def test_a_run_goes_on_with_a_table_more(twin):
    trained(twin, "a", 1, 5)
    assert place(twin, "ab") == 5
    trained(twin, "ab", 6, 7)
    made_again(twin, "b")
    assert place(twin, "ab") == 0
    assert place(twin, "a") == 7


def test_a_name_that_is_used_for_other_tables_begins_anew(twin):
    trained(twin, "a", 1, 5)
    assert place(twin, "b") == 0
    assert place(twin, "a") == 5


def test_a_restored_table_has_its_place_again(twin):
    trained(twin, "ab", 1, 5)
    twin.checkpoint("five")
    made_again(twin, "b")
    assert place(twin, "ab") == 0
    twin.restore("five")
    assert place(twin, "ab") == 5
