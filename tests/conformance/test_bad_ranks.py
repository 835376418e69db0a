"""Ranks that are not a list of shares."""

import pytest

from embstore.errors import InvalidArgumentError
from tests.conformance.cases import config, ones, refused

ONE_TABLE = {
    "a number": 5,
    "none": None,
    "numbers": [5, 6],
    "keys without gradients": [([1],)],
    "three arrays": [([1], ones(1), ones(1))],
}
SEVERAL_TABLES = {
    "a number": 5,
    "none": None,
    "one rank's mapping": {"a": ([1], ones(1))},
    "pairs": [([1], ones(1))],
    "keys without gradients": [{"a": [1]}],
    "nothing for a table": [{"a": None}],
}


@pytest.mark.parametrize("ranks", ONE_TABLE.values(), ids=ONE_TABLE)
def test_of_one_table(open_twin, ranks):
    twin = open_twin()
    table = twin.create_table("a", **config())
    with refused(twin.store, InvalidArgumentError, "expected", "table 'a'"):
        table.update_ranks(ranks)


@pytest.mark.parametrize("ranks", SEVERAL_TABLES.values(), ids=SEVERAL_TABLES)
def test_of_several_tables(open_twin, ranks):
    twin = open_twin()
    twin.create_table("a", **config())
    with refused(twin.store, InvalidArgumentError, "expected"):
        twin.store.update_ranks(ranks)
