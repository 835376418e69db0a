"""Keys of wrong shape, dtype or range: every verb that takes keys refuses them.

Source: "negative, reserved, out-of-range and maximum 64-bit keys", NVE 26.05, HKV's reserved keys,
FBGEMM's bounds modes.
"""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from tests.conformance.cases import config, each, ones, raising, refused, unchanged

pytestmark = pytest.mark.needs("plain_keys")

SHAPES = {
    "a number": (5, "()"),
    "two dimensions": ([[1, 2]], "(1, 2)"),
    "empty, two dimensions": (np.empty((0, 3), np.int64), "(0, 3)"),
    "none": (None, "()"),
    "text": ("12", "()"),
    "a mapping": ({1: 2}, "()"),
    "a set": ({1, 2}, "()"),
    "ragged": ([[1], [2, 3]], "list"),
}
DTYPES = {
    "float": ([1.0, 2.0], "float64"),
    "float32": (np.array([1, 2], np.float32), "float32"),
    "bool": ([True, False], "bool"),
    "beyond uint64": ([1, 2**70], "object"),
    "complex": ([1j], "complex128"),
    "text": (["1", "2"], "<U1"),
    "bytes": ([b"1"], "|S1"),
    "objects": (np.array([1, None]), "object"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), "datetime64[D]"),
}
OUTSIDE = {
    "one beyond": ([1, 1000, 2], "1000"),
    "negative": ([1, -1], "-1"),
    "first of several": ([1, -7, 1000], "-7"),
    "lowest": ([-(2**63)], str(-(2**63))),
    "highest": ([2**63 - 1], str(2**63 - 1)),
    "beyond int64": ([1, 2**63], str(-(2**63))),
    "uint64": (np.array([1, 2**64 - 2], np.uint64), "-2"),
    "the row key of another table": ([(1 << 40) + 5], str((1 << 40) + 5)),
    "2**40": ([2**40], str(2**40)),
    "int8": (np.array([-1], np.int8), "-1"),
    "among many": ([*range(1000), 1001, *range(1000)], "1001"),
}
BAD = SHAPES | DTYPES | OUTSIDE


@pytest.fixture
def twin(open_twin):
    """Two tables of one layout and one of another, trained."""
    twin = open_twin()
    for name, dim in (("a", 4), ("b", 4), ("c", 7)):
        twin.create_table(name, **config(dim=dim))
        twin.on(name, "update", [1, 2], ones(2, dim))
    return twin


def calls(twin, keys):
    """Yield every verb that takes keys, each with what else it wants in the right shape."""
    store, a = twin.store, twin.store.table("a")
    count = np.shape(keys)[0] if not _ragged(keys) and np.ndim(keys) else 0
    rows, bounds = ones(count), [0, count]
    yield lambda: a.lookup(keys)
    yield lambda: a.lookup(keys, admit=False)
    yield lambda: a.lookup_pooled(keys, bounds)
    yield lambda: a.lookup_pooled(keys, bounds, "mean", admit=False)
    yield lambda: a.read_rows(keys)
    yield lambda: a.update(keys, rows)
    yield lambda: a.update_pooled(keys, bounds, ones(1))
    yield lambda: a.update_ranks([([1], ones(1)), (keys, rows)])
    yield lambda: a.assign(keys, rows)
    yield lambda: a.put_rows(keys, rows, np.empty((count, 0), np.float32), 1)
    yield lambda: store.lookup({"b": [1], "a": keys, "c": [1]})
    yield lambda: store.update({"c": ([1], ones(1, 7)), "b": ([1], ones(1)), "a": (keys, rows)})
    yield lambda: store.update_ranks([{"c": ([1], ones(1, 7))}, {"a": (keys, rows)}])


def _ragged(keys):
    return isinstance(keys, list) and len({np.ndim(key) and len(key) for key in keys}) > 1


def test_are_refused_by_every_verb(twin):
    with unchanged(twin.store):
        for keys, found in each(BAD.values()):
            for call in calls(twin, keys):
                with raising(InvalidArgumentError, "table 'a'", "expected keys", "found", found):
                    call()


def test_the_table_out_of_range_is_named(twin):
    with unchanged(twin.store):
        for place in each("abc"):
            keys = {name: [1] for name in "abc"} | {place: [1, 1000]}
            with raising(InvalidArgumentError, f"table {place!r}", "[0, 1000)", "1000"):
                twin.store.lookup(keys)


def test_no_row_is_read_for_a_refused_call(twin):
    before = twin.store.stats()["cache"]
    for call in calls(twin, [500, 1000]):
        with pytest.raises(InvalidArgumentError):
            call()
    assert twin.store.stats()["cache"] == before


def test_no_key_is_in_range_of_a_table_without_rows(open_table):
    twin, table = open_table(a=config(rows=0))
    with refused(twin.store, InvalidArgumentError, "table 'a'", "[0, 0)", "found 0"):
        table.lookup([0])
    assert table.lookup([]).shape == (0, 4)
    twin.on("a", "update", [], np.empty((0, 4), np.float32))
