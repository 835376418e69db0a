"""grow: more rows, and nothing else changes."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from tests.conformance.backends import TINY
from tests.conformance.cases import assert_same, config, ones, refused

pytestmark = pytest.mark.needs("plain_keys")


def test_new_keys_are_allowed_and_old_rows_stay(open_table):
    twin, table = open_table(a=config(rows=10))
    twin.on("a", "update", np.arange(10), ones(10))
    before = table.digest(), table.lookup(np.arange(10))
    with refused(twin.store, InvalidArgumentError, "[0, 10)", "found 10"):
        table.lookup([10])
    done = twin.on("a", "grow", 20)
    assert (done.t, table.rows, table.digest()) == (1, 20, before[0])
    assert_same(table.lookup(np.arange(10)), before[1])
    twin.on("a", "update", [9, 10, 19], ones(3))


def test_the_same_call_is_checked_anew_after_growing(open_table):
    """The store remembers the last call's keys; what was in range may not be what is."""
    twin, table = open_table(a=config(rows=10))
    keys = [1, 10]
    with pytest.raises(InvalidArgumentError):
        table.lookup(keys)
    twin.on("a", "grow", 11)
    table.lookup(keys)
    twin.checkpoint("grown")
    twin.on("a", "grow", 12)
    table.lookup([11])
    twin.restore("grown")
    with refused(twin.store, InvalidArgumentError, "[0, 11)"):
        table.lookup([11])


@pytest.mark.parametrize("rows", [10, np.int64(11), 2**40])
def test_to_as_many_and_to_the_most(open_twin, rows):
    twin = open_twin(a=config(rows=10))
    twin.store.table("a").grow(rows)
    twin.reference.table("a").grow(int(rows))
    twin.on("a", "update", [int(rows) - 1], ones(1))


def test_rows_beyond_the_first_size_are_folded_and_read_again(open_twin):
    twin = open_twin(limits=TINY, a=config(rows=10, dim=64))
    for end in (10, 1000, 9000):  # into other segments of the base
        twin.on("a", "grow", max(end, 10))
        keys = np.arange(end // 2, end, max(end // 200, 1))
        twin.on("a", "update", keys, ones(len(keys), 64))
        twin.store.flush()
        twin.reopen()
        twin.settle()
    assert twin.store.stats()["storage"]["folds"] > 0
    twin.crash()
