"""Handles of tables: what they mean after drop, restore and growing."""

import pytest

from embstore.errors import TableNotFoundError
from tests.conformance.cases import config, ones
from tests.conformance.refusals.test_closed import TABLE_CALLS


def assert_dead(table):
    for name, call in TABLE_CALLS.items():
        with pytest.raises(TableNotFoundError, match="'a'"):
            raise AssertionError(f"{name} was answered: {call(table)}")


def test_of_a_dropped_table_is_refused_and_never_means_the_next_of_that_name(open_table):
    twin, table = open_table()
    twin.drop_table("a")
    assert_dead(table)
    again = twin.create_table("a", **config())
    assert_dead(table)
    assert again.t == 0


def test_comes_back_with_the_table_that_a_restore_brings_back(open_twin):
    twin = open_twin()
    old = twin.create_table("a", **config())
    twin.checkpoint("c")
    twin.drop_table("a")
    new = twin.create_table("a", **config())
    twin.restore("c")
    assert_dead(new)
    assert old.t == 0
    twin.on("a", "update", [1], ones(1))
    assert old.t == 1


def test_of_a_table_made_after_the_checkpoint_is_dead_for_ever(open_twin):
    twin = open_twin()
    twin.checkpoint("c")
    table = twin.create_table("a", **config())
    twin.restore("c")
    assert_dead(table)
    twin.create_table("a", **config())
    assert_dead(table)


def test_table_ids_are_not_used_again_after_restore_and_reopening(open_twin):
    """A row of the lost future must not come back as a row of the new table."""
    twin = open_twin()
    twin.checkpoint("c")
    twin.create_table("a", **config())
    twin.on("a", "update", [1, 2], ones(2))
    twin.store.flush()
    twin.restore("c")
    twin.reopen()
    twin.create_table("a", **config())
    twin.check()
    twin.on("a", "update", [2], ones(1))
