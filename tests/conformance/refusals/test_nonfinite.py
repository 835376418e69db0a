"""Rule 9: scaled sums must be finite, and their squares; otherwise the call is refused whole."""

from itertools import product

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from tests.conformance.cases import (
    OPTIMIZERS,
    config,
    each,
    float32,
    generator,
    normal,
    ones,
    raising,
    unchanged,
)

INF, NAN, MAX = np.inf, np.nan, float(np.finfo(np.float32).max)


@pytest.fixture
def twin(open_twin):
    """A table of each optimizer, one more of the same layout and one of another."""
    twin = open_twin()
    tables = {kind: (5, optimizer) for kind, optimizer in OPTIMIZERS.items()}
    tables |= {"b": (5, OPTIMIZERS["sgd"]), "c": (7, OPTIMIZERS["adam"])}
    for name, (dim, optimizer) in tables.items():
        twin.create_table(name, **config(dim=dim, optimizer=optimizer))
        twin.on(name, "update", np.arange(10), normal(generator(151), 10, dim))
    return twin


def grads(values, dim=5, element=3):
    """Return gradients that hold `values` in one element of each row."""
    rows = ones(len(values), dim)
    rows[:, element] = values
    return rows


def with_one(rows):
    """Return gradients with a row of ones before them."""
    return np.concatenate([ones(1, 5), rows])


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
SQUARES = {
    "a square": grads([-3e19]),
    "a sum of squares over occurrences": grads([1e19, 1e19]),
    "a sum of squares over dim": np.full((1, 5), 1e19, np.float32),
}
NANS = 0x7F800001, 0xFFC00000, 0xFFFFFFFF
"""Signalling and negative ones."""
BAD = {
    **{
        name: ([700, *[7] * len(v), 800], with_one(np.concatenate([grads(v), ones(1, 5)])), 1.0, "")
        for name, v in SUMS.items()
    },
    **{
        name: ([3, *[7] * len(rows)], with_one(rows), 1.0, "e+19 for ")
        for name, rows in SQUARES.items()
    },
    **{f"element {i}": ([3, 7], with_one(grads([NAN], 5, i)), 1.0, "") for i in range(5)},
    **{f"bits {n:x}": ([7], grads(float32(n), 5, 2), 1.0, "") for n in NANS},
    "float16": ([7], np.full((1, 5), INF, np.float16), 1.0, ""),
    "a scale of zero, which does not heal": ([7], grads([INF]), 0.0, ""),
    "a scale that overflows": ([3, 7], with_one(grads([1e30])), 1e10, ""),
    "a scale that comes too late for a sum": ([7, 7], grads([MAX, MAX]), 0.25, ""),
    "the key that first stood, though its bad entry comes later": (
        [7, 4, 7],
        grads([1.0, NAN, NAN]),
        1.0,
        "",
    ),
}
"""Keys and gradients of which key 7 is refused, a scale, and what the message says of it."""


def test_refused_or_skipped(twin):
    with unchanged(twin.store):
        for kind, (keys, rows, scale, part) in each(product(OPTIMIZERS, BAD.values())):
            parts = f"table '{kind}'", "finite", f"{part}key 7", "skip"
            with raising(InvalidArgumentError, *parts):
                twin.store.table(kind).update(keys, rows, gradient_scale=scale)
    for kind, (keys, rows, scale, _) in each(product(OPTIMIZERS, BAD.values())):
        done = twin.on(kind, "update", keys, rows, gradient_scale=scale, on_nonfinite="skip")
        assert (done.skipped, done.t) == (True, 1)
    for kind in OPTIMIZERS:
        assert not {700, 800} & twin.reference.table(kind).written
        assert twin.store.table(kind).stats()["skipped_updates"] == len(BAD)


LARGEST = np.concatenate([np.full((1, 5), 8e18, np.float32), grads([-1.8446742e19, 2.0**57])])
"""Squares of one element, and of all."""
TAKEN = {
    "sums at the edge, which the scale lessens": ([7] * 4, grads([MAX, -MAX, MAX, -1e30]), 1e-20),
    "in chunks": ([7] * 65, grads([MAX * 0.5, *[0.0] * 63, MAX * 0.25]), 1e-20),
    "a scale that lessens": ([3, 7], with_one(grads([1e30])), 1e-30),
    "float16 that would overflow": ([7, 7], np.full((2, 5), 65504.0, np.float16), 1.0),
    "the largest squares": ([3, 6, 8], LARGEST, 1.0),
}


def test_what_is_finite_is_taken_and_leaves_the_state_finite(twin):
    for kind, (keys, rows, scale) in each(product(OPTIMIZERS, TAKEN.values())):
        assert not twin.on(kind, "update", keys, rows, gradient_scale=scale).skipped
        assert np.isfinite(twin.store.table(kind).read_rows(keys)[1]).all()
    rows = np.concatenate([LARGEST, grads([2e19])])
    with unchanged(twin.store):
        for kind in each(OPTIMIZERS):
            with raising(InvalidArgumentError, "e+19 for key 9"):  # not the first large one
                twin.store.table(kind).update([3, 6, 8, 9], rows)


def test_first_table_in_call_order_and_its_first_key_are_named(twin):
    with unchanged(twin.store):
        for kind in each(OPTIMIZERS):
            bad = {
                "c": ([1, 2], ones(2, 7)),
                "b": ([9, 4, 2], with_one(grads([NAN, NAN]))),
                kind: ([5], grads([NAN])),
            }
            with raising(InvalidArgumentError, "table 'b'", "key 4"):
                twin.store.update(bad)
            with raising(InvalidArgumentError, f"table '{kind}'", "key 5"):
                twin.store.update(dict(reversed(bad.items())))
            bad["c"] = ([8, 1], grads([1.0, INF], 7))
            with raising(InvalidArgumentError, "table 'c'", "key 1"):
                twin.store.update(bad)


def test_mean_and_sum_of_bags(twin):
    with unchanged(twin.store):
        for kind in each(OPTIMIZERS):
            table, parts = twin.store.table(kind), (f"table '{kind}'", "key 5")
            for mode in ("sum", "mean"):
                with raising(InvalidArgumentError, *parts):
                    table.update_pooled([5, 6], [0, 1, 2], grads([NAN, MAX]), mode)
            with raising(InvalidArgumentError, *parts):
                table.update_pooled([5, 5], [0, 2], grads([MAX]), "sum")
    for kind in each(OPTIMIZERS):
        twin.on(kind, "update_pooled", [5, 5], [0, 2], grads([MAX]), "mean", gradient_scale=1e-20)
