"""Rule 9: scaled sums must be finite, and their squares; otherwise the call is refused whole."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from tests.conformance.cases import OPTIMIZERS, config, float32, generator, normal, ones, refused

INF, NAN, MAX = np.inf, np.nan, float(np.finfo(np.float32).max)
SUMS = {
    "nan": [NAN],
    "inf": [INF],
    "-inf": [-INF],
    "inf that another takes back": [INF, -INF],
    "a sum that overflows": [MAX, MAX],
    "a sum that overflows on the way": [MAX, MAX, -MAX, -MAX],
    "between chunks": [MAX * 0.75, *[0.0] * 63, MAX * 0.75],
    "the last of many": [*[1.0] * 300, NAN],
}


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS)
def twin(request, open_twin):
    twin = open_twin()
    for name, dim in (("a", 5), ("b", 5), ("c", 7)):
        twin.create_table(name, **config(dim=dim, optimizer=request.param))
        twin.on(name, "update", np.arange(10), normal(generator(151), 10, dim))
    return twin


def grads(values, dim=5, element=3):
    """Return gradients that hold `values` in one element of each row."""
    rows = ones(len(values), dim)
    rows[:, element] = values
    return rows


@pytest.mark.parametrize("values", SUMS.values(), ids=SUMS)
def test_refused_or_skipped(twin, values):
    keys = [700, *[7] * len(values), 800]
    rows = np.concatenate([ones(1, 5), grads(values), ones(1, 5)])
    with refused(twin.store, InvalidArgumentError, "table 'a'", "finite", "key 7", "skip"):
        twin.store.table("a").update(keys, rows)
    done = twin.on("a", "update", keys, rows, on_nonfinite="skip")
    assert (done.skipped, done.t) == (True, 1)
    assert not {700, 800} & twin.reference.table("a").written


def test_sums_at_the_edge_are_taken_where_the_scale_lessens_them(twin):
    values = [MAX, -MAX, MAX, -1e30]
    twin.on("a", "update", [7] * 4, grads(values), gradient_scale=1e-20)
    chunks = [MAX * 0.5, *[0.0] * 63, MAX * 0.25]
    twin.on("a", "update", [7] * 65, grads(chunks), gradient_scale=1e-20)


def test_zero_scale_does_not_heal(twin):
    with refused(twin.store, InvalidArgumentError, "table 'a'", "key 7"):
        twin.store.table("a").update([7], grads([INF]), gradient_scale=0.0)


def test_scale_that_overflows(twin):
    keys, rows = [3, 7], np.concatenate([ones(1, 5), grads([1e30])])
    with refused(twin.store, InvalidArgumentError, "table 'a'", "key 7"):
        twin.store.table("a").update(keys, rows, gradient_scale=1e10)
    assert twin.on("a", "update", keys, rows, gradient_scale=1e10, on_nonfinite="skip").skipped
    twin.on("a", "update", keys, rows, gradient_scale=1e-30)


def test_scale_that_would_mend_an_overflowing_sum_comes_too_late(twin):
    with refused(twin.store, InvalidArgumentError, "key 7"):
        twin.store.table("a").update([7, 7], grads([MAX, MAX]), gradient_scale=0.25)


SQUARES = {
    "a square": grads([-3e19]),
    "a sum over occurrences": grads([1e19, 1e19]),
    "a sum over dim": np.full((1, 5), 1e19, np.float32),
}


@pytest.mark.parametrize("rows", SQUARES.values(), ids=SQUARES)
def test_squares_that_overflow_are_refused_or_skipped(twin, rows):
    keys = [3, *[7] * len(rows)]
    rows = np.concatenate([ones(1, 5), rows])
    with refused(twin.store, InvalidArgumentError, "table 'a'", "finite", "e+19 for key 7", "skip"):
        twin.store.table("a").update(keys, rows)
    assert twin.on("a", "update", keys, rows, on_nonfinite="skip").skipped
    assert twin.store.table("a").stats()["skipped_updates"] == 1


def test_the_largest_squares_are_taken_and_leave_the_state_finite(twin):
    """Those of one element, and of all."""
    keys = [3, 7, 8]
    rows = np.concatenate([np.full((1, 5), 8e18, np.float32), grads([-1.8446742e19, 2.0**57])])
    assert not twin.on("a", "update", keys, rows).skipped
    assert np.isfinite(twin.store.table("a").read_rows(keys)[1]).all()
    with refused(twin.store, InvalidArgumentError, "e+19 for key 9"):  # not the first large one
        twin.store.table("a").update([*keys, 9], np.concatenate([rows, grads([2e19])]))


@pytest.mark.parametrize("element", range(5))
def test_whichever_element_it_is(twin, element):
    with refused(twin.store, InvalidArgumentError, "key 7"):
        twin.store.table("a").update([3, 7], np.concatenate([ones(1, 5), grads([NAN], 5, element)]))


def test_first_table_in_call_order_and_its_first_key_are_named(twin):
    bad = {
        "c": ([1, 2], ones(2, 7)),
        "b": ([9, 4, 2], np.concatenate([ones(1, 5), grads([NAN, NAN])])),
        "a": ([5], grads([NAN])),
    }
    with refused(twin.store, InvalidArgumentError, "table 'b'", "key 4"):
        twin.store.update(bad)
    with refused(twin.store, InvalidArgumentError, "table 'a'", "key 5"):
        twin.store.update(dict(reversed(bad.items())))
    bad["c"] = ([8, 1], grads([1.0, INF], 7))
    with refused(twin.store, InvalidArgumentError, "table 'c'", "key 1"):
        twin.store.update(bad)


def test_first_by_occurrence_is_where_its_key_first_stood(twin):
    """Key 9 stands before key 4, though its bad entry comes after it."""
    rows = grads([1.0, NAN, NAN])
    with refused(twin.store, InvalidArgumentError, "key 9"):
        twin.store.table("a").update([9, 4, 9], rows)


def test_signalling_and_negative_nans(twin):
    for word in (0x7F800001, 0xFFC00000, 0xFFFFFFFF):
        rows = ones(1, 5)
        rows[0, 2:3] = float32(word)
        with refused(twin.store, InvalidArgumentError, "key 7"):
            twin.store.table("a").update([7], rows)


def test_float16_that_is_not_finite(twin):
    rows = np.full((1, 5), 65504.0, np.float16)
    twin.on("a", "update", [7, 7], np.concatenate([rows, rows]))  # no overflow in fp32
    with refused(twin.store, InvalidArgumentError, "key 7"):
        twin.store.table("a").update([7], np.full((1, 5), np.inf, np.float16))


def test_mean_and_sum_of_bags(twin):
    table = twin.store.table("a")
    for mode in ("sum", "mean"):
        with refused(twin.store, InvalidArgumentError, "table 'a'", "key 5"):
            table.update_pooled([5, 6], [0, 1, 2], grads([MAX, NAN])[[1, 0]], mode)
    with refused(twin.store, InvalidArgumentError, "table 'a'", "key 5"):
        table.update_pooled([5, 5], [0, 2], grads([MAX]), "sum")
    twin.on("a", "update_pooled", [5, 5], [0, 2], grads([MAX]), "mean", gradient_scale=1e-20)
