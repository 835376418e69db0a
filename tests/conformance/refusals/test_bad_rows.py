"""Gradients, rows, states, bags, ranks and `out` of wrong shape, dtype or dim."""

# ruff: noqa: B023
# Each of these calls is made where it stands.

import numpy as np
import pytest

from embstore.config import Adam
from embstore.errors import InvalidArgumentError
from tests.conformance.cases import config, each, float32, ones, raising, unchanged

BAD = {
    "another dim": (ones(2, 3), "(2, 3)"),
    "one row too few": (ones(1), "(1, 4)"),
    "one row too many": (ones(3), "(3, 4)"),
    "transposed": (ones(4, 2), "(4, 2)"),
    "flat": (ones(1, 8)[0], "(8,)"),
    "three dimensions": (ones(2)[None], "(1, 2, 4)"),
    "none": (None, "object"),
    "a number": (1.0, "float64"),
    "float64": (ones(2).astype(np.float64), "float64"),
    "a list": ([[1.0] * 4] * 2, "float64"),
    "int": (np.ones((2, 4), np.int32), "int32"),
    "bool": (np.ones((2, 4), bool), "bool"),
    "complex": (ones(2) * 1j, "complex64"),
    "another byte order": (ones(2).astype(">f4"), ">f4"),
    "text": (np.full((2, 4), "1"), "<U1"),
    "ragged": ([[1.0], [2.0, 3.0]], ""),
    "empty": (np.empty((0, 4), np.float32), "(0, 4)"),
}


class OnDevice:
    """An array in the memory of some GPU."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (2, 4), "typestr": "<f4", "data": (1, False), "version": 3}


def test_arrays_of_a_device_that_is_not_the_stores(twin):
    table, keys, rows = twin.store.table("a"), [1, 2], OnDevice()
    for call in (
        lambda: table.lookup(rows),
        lambda: table.lookup_pooled(rows, [0, 1, 2]),
        lambda: table.read_rows(rows),
        lambda: table.update(keys, rows),
        lambda: table.update_pooled(keys, [0, 1, 2], rows),
        lambda: table.assign(keys, rows),
        lambda: table.put_rows(keys, rows, ones(2, 8), 1),
        lambda: table.put_rows(keys, ones(2), rows, 1),
    ):
        assert_refused(call)


@pytest.fixture
def twin(open_twin):
    """A store that is in the end as it was."""
    twin = open_twin()
    for name in "ab":
        twin.create_table(name, **config(optimizer=Adam(0.1)))
        twin.on(name, "update", [1, 2], ones(2))
    with unchanged(twin.store):
        yield twin


def assert_refused(call, *parts):
    with raising(InvalidArgumentError, "table 'a'", "expected", "found", *parts):
        call()


def test_gradients_and_rows(twin):
    for rows, found in each(BAD.values()):
        store, table, keys = twin.store, twin.store.table("a"), [1, 2]
        assert_refused(lambda: table.update(keys, rows), "gradients", found)
        assert_refused(lambda: table.update_pooled(keys, [0, 1, 2], rows), "gradients", found)
        assert_refused(lambda: table.update_ranks([(keys, rows)]), "gradients", found)
        shares = {"b": (keys, ones(2)), "a": (keys, rows)}
        assert_refused(lambda: store.update(shares), "gradients", found)
        assert_refused(lambda: store.update_ranks([shares]), "gradients", found)
        assert_refused(lambda: table.assign(keys, rows), "rows", found)
        assert_refused(lambda: table.put_rows(keys, rows, ones(2, 8), 1), "weights", found)


def test_state(twin):
    table = twin.store.table("a")
    for state, found in each(
        [
            (ones(2, 4), "(2, 4)"),
            (ones(2, 0), "(2, 0)"),
            (ones(1, 8), "(1, 8)"),
            (np.ones((2, 8)), "float64"),
            (None, "object"),
        ]
    ):
        assert_refused(lambda: table.put_rows([1, 2], ones(2), state, 1), "state", found)


def test_add_t(twin):
    table = twin.store.table("a")
    for add_t in each([-1, 1.0, True, None, "1", 2**64, np.int64(-1), 2**64 - 1]):
        assert_refused(lambda: table.put_rows([1], ones(1), ones(1, 8), add_t), "add_t")


def test_weights_of_bags(twin):
    table = twin.store.table("a")
    for weights, parts in each(
        [
            (ones(1, 3)[0], ["(3,)"]),
            (ones(2, 1), ["(2, 1)"]),
            ([1.0, 2.0], ["float64"]),
            (np.array([1, 2]), ["int64"]),
            (2.0, ["float64"]),
            ("ab", ["<U2"]),
            (np.array([1.0, np.nan], np.float32), ["finite"]),
            (np.array([np.inf, 1.0], np.float32), ["finite"]),
            (np.array([1.0, -np.inf], np.float16), ["finite"]),
            (float32(0x3F800000, 0x7FC00001), ["finite"]),
        ]
    ):
        expected = (InvalidArgumentError, "table 'a'", "weights", *parts)
        with raising(*expected):
            table.lookup_pooled([1, 2], [0, 2], "sum", weights)
        with raising(*expected):
            table.lookup_pooled([1, 2], [0, 2], weights=weights, admit=False)
        with raising(*expected):
            table.update_pooled([1, 2], [0, 2], ones(1), "sum", weights)


def test_weights_go_with_the_sum_only(twin):
    table, weights = twin.store.table("a"), ones(1, 2)[0]
    with raising(InvalidArgumentError, "table 'a'", "weights", '"sum"'):
        table.lookup_pooled([1, 2], [0, 2], "mean", weights)
    with raising(InvalidArgumentError, "table 'a'", "weights", '"sum"'):
        table.update_pooled([1, 2], [0, 2], ones(1), "mean", weights)


def test_mode(twin):
    table = twin.store.table("a")
    wanted = '"sum" or "mean"'
    for mode in each(["max", "SUM", "", None, 1, b"sum", True]):
        assert_refused(lambda: table.lookup_pooled([1], [0, 1], mode), wanted, repr(mode))
        assert_refused(lambda: table.update_pooled([1], [0, 1], ones(1), mode), wanted)


def not_writeable():
    array = ones(2)
    array.flags.writeable = False
    return array


OUTS = {
    "another shape": ones(3),
    "another dim": ones(2, 5),
    "float64": np.ones((2, 4)),
    "another byte order": ones(2).astype(">f4"),
    "by columns": np.asfortranarray(ones(2)),
    "every other row": ones(4)[::2],
    "not writeable": not_writeable(),
    "a list": [[0.0] * 4] * 2,
    "a number": 1,
}


def test_out(twin):
    store, table, keys = twin.store, twin.store.table("a"), [1, 2]
    for out in each(OUTS.values()):
        assert_refused(lambda: table.lookup(keys, out=out), "out")
        assert_refused(lambda: table.lookup(keys, admit=False, out=out), "out")
        assert_refused(lambda: table.lookup_pooled(keys, [0, 1, 2], out=out), "out")
        both = {"b": keys, "a": keys}
        assert_refused(lambda: store.lookup(both, out={"b": ones(2), "a": out}), "out")


def test_out_of_several_tables_is_a_mapping(twin):
    for out in each([ones(2), [ones(2)], 5]):
        with raising(InvalidArgumentError, "expected out", "mapping"):
            twin.store.lookup({"a": [1, 2]}, out=out)


def test_shares_that_are_no_pairs(twin):
    for pair in each([None, 5, [1], ([1],), ([1], ones(1), 3), {"a": 1}]):
        assert_refused(lambda: twin.store.update({"a": pair}))


def test_shares_that_are_no_mapping(twin):
    for shares in each([None, 5, [1], ([1], ones(1)), "a"]):
        for call in (twin.store.update, twin.store.lookup):
            with raising(InvalidArgumentError, "mapping", "found"):
                call(shares)


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


def test_ranks_of_one_table(twin):
    for ranks in each(ONE_TABLE.values()):
        with raising(InvalidArgumentError, "expected", "table 'a'"):
            twin.store.table("a").update_ranks(ranks)


def test_ranks_of_several_tables(twin):
    for ranks in each(SEVERAL_TABLES.values()):
        with raising(InvalidArgumentError, "expected"):
            twin.store.update_ranks(ranks)


WRAPPING = [0, 2**63 - 1, -(2**62), 2]
"""np.diff of these wraps around: [2**63 - 1, 2**62 + 1, 2**62 + 2], nothing negative."""


def test_offsets(twin):
    """They rise from 0 to the number of keys. Those that wrap were a crash of the process."""
    for offsets in each(
        [[], [0], [1, 2], [0, 3], [0, 1], [0, 2, 1, 2], [0.0, 2.0], [[0, 2]], [-1, 2], WRAPPING]
    ):
        table, bags = twin.store.table("a"), ones(max(len(offsets) - 1, 0))
        for call in (
            lambda: table.lookup_pooled([0, 1], offsets),
            lambda: table.update_pooled([0, 1], offsets, bags),
        ):
            with raising(InvalidArgumentError, "table 'a'", "expected offsets"):
                call()
